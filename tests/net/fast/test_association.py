"""Two associations over a simulated path: whatever it does, every message arrives once, whole and
in the order of its stream."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pnode.net.fast.association import WINDOW_BYTES
from p2pnode.net.fast.packets import Address, DataChunk, ProtocolViolation, data_packet
from tests.net.fast.path import TAGS, Simulation, line


def messages(count: int, largest: int, seed: int, streams: int = 3) -> list[tuple[int, bytes]]:
    rng = random.Random(seed)
    return [(rng.randrange(streams), rng.randbytes(rng.randint(1, largest))) for _ in range(count)]


def by_stream(messages: list[tuple[int, bytes]]) -> dict[int, list[bytes]]:
    out: dict[int, list[bytes]] = {}
    for stream, data in messages:
        out.setdefault(stream, []).append(data)
    return out


def exchange(simulation: Simulation, sent: tuple[list, list], seconds: float = 120) -> None:
    """Send both ways; everything must arrive."""
    for i in range(2):
        for stream, data in sent[i]:
            simulation.ends[i].sender.send(stream, 53, data)
        simulation.flush(i)
    simulation.run(seconds, lambda: all(end.sender.idle for end in simulation.ends))
    for i in range(2):
        assert by_stream(simulation.received[1 - i]) == by_stream(sent[i])
        assert simulation.ends[i].sender.idle
        assert simulation.ends[i].sender.flight.nbytes == 0
        assert simulation.ends[1 - i].receiver.room == WINDOW_BYTES


CHAOS = st.builds(
    line,
    rate=st.sampled_from([2e5, 12.5e6]),
    delay=st.sampled_from([0.0001, 0.025]),
    queue=st.sampled_from([0.005, 0.1]),
    loss=st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    reorder=st.sampled_from([0.0, 0.3]),
    reorder_by=st.sampled_from([0.001, 0.05]),
    duplicate=st.sampled_from([0.0, 0.1]),
)


@settings(max_examples=25)
@given(there=CHAOS, back=CHAOS, seed=st.integers(0, 99))
def test_every_message_arrives_once_whatever_the_path_does(there, back, seed):
    simulation = Simulation(there, back, seed=seed)
    exchange(simulation, (messages(20, 30_000, seed), messages(20, 3_000, seed + 1)))


@pytest.mark.parametrize("seed", range(3))
def test_tsns_wrap_around(seed: int):
    path = line(loss=0.02, reorder=0.1, duplicate=0.05)
    tsns = (2**32 - 40, 2**32 - 3)
    simulation = Simulation(path, path, seed=seed, tsns=tsns)
    exchange(simulation, (messages(30, 10_000, 1), messages(30, 3_000, 2)))
    assert simulation.ends[0].sender.next_tsn > 2**32


def test_sequence_numbers_wrap_around():
    path = line(loss=0.02, reorder=0.1)
    simulation = Simulation(path, path, seed=2)
    for i in range(2):
        simulation.ends[i].sender.sequences[0] = 65_530
        simulation.ends[i].receiver.expected[0] = 65_530
    exchange(simulation, (messages(40, 100, 1, streams=1), messages(40, 5_000, 2, streams=1)))
    assert 0 < simulation.ends[0].receiver.expected[0] < 65_530


def test_unordered_messages_arrive_too():
    path = line(loss=0.1)
    simulation = Simulation(path, path, seed=3)
    sent = messages(60, 5_000, 4, streams=1)
    for _, data in sent:
        simulation.ends[0].sender.send(0, 53, data, unordered=True)
    simulation.flush(0)
    simulation.run(60)
    assert sorted(simulation.received[1]) == sorted(sent)
    assert simulation.received[1] != sent, "one-packet messages do not wait for lost ones"


def test_a_lost_tail_is_recovered_within_a_few_round_trips():
    simulation = Simulation(line(), line(), seed=1)
    sender = simulation.ends[0].sender
    sender.send(0, 53, bytes(100_000))
    simulation.flush(0)
    simulation.run(2)  # a round trip is known
    assert simulation.bytes[1] == 100_000
    sender.send(0, 53, bytes(10_000))
    simulation.paths[0].loss = 1.0
    simulation.flush(0)
    simulation.paths[0].loss = 0.0
    began = simulation.now
    simulation.run(began + 5, lambda: simulation.bytes[1] == 110_000)
    assert simulation.now - began < 0.4  # stock aiortc: 1 s, its least time-out
    assert sender.counts.timeouts == 0


def test_a_silent_path_is_asked_less_and_less_often():
    simulation = Simulation(line(loss=1.0), line())
    simulation.ends[0].sender.send(0, 53, bytes(100))
    simulation.flush(0)
    simulation.run(30)
    assert 5 < simulation.ends[0].sender.counts.sent < 40
    simulation.paths[0].loss = 0.0
    simulation.run(40)
    assert simulation.bytes[1] == 100


@pytest.mark.parametrize(
    ("rate", "queue", "loss", "least"),
    [
        (12.5e6, 0.1, 0.0, 0.8),
        (12.5e6, 0.02, 0.0, 0.7),
        (12.5e6, 0.1, 0.01, 0.55),
        (12.5e6, 0.02, 0.01, 0.55),
    ],
)
def test_a_long_path_is_filled(rate: float, queue: float, loss: float, least: float):
    """100 Mbit/s and 50 ms, 2.5 s from the start; simulated time, so the figures are exact."""
    path = line(rate=rate, queue=queue, loss=loss)
    simulation = Simulation(path, line(rate=rate, queue=queue, loss=loss), seed=5)
    simulation.keep = False
    sender = simulation.ends[0].sender
    total = 40_000_000
    for _ in range(total // 50_000):
        sender.send(0, 53, bytes(50_000))
    simulation.flush(0)
    simulation.run(2.5)
    assert simulation.bytes[1] / 2.5 > least * rate
    assert sender.counts.timeouts == 0


@pytest.mark.parametrize(
    ("rtt", "loss", "least"), [(0.08, 0.05, 0.6), (0.05, 0.1, 0.3), (0.1, 0.02, 0.65)]
)
def test_a_radio_that_loses_much_is_filled_all_the_same(rtt: float, loss: float, least: float):
    """20 Mbit/s; simulated time, so the figures are exact. Reno would get 4 to 6 %."""
    path = line(rate=2.5e6, delay=rtt / 2, loss=loss)
    simulation = Simulation(path, line(rate=2.5e6, delay=rtt / 2, loss=loss), seed=2)
    simulation.keep = False
    sender = simulation.ends[0].sender
    for _ in range(300):
        sender.send(0, 53, bytes(50_000))
    simulation.flush(0)
    simulation.run(4.0)
    assert simulation.bytes[1] / 4.0 > least * 2.5e6
    assert sender.counts.timeouts == 0


def test_lost_pings_of_an_idle_link_leave_the_window_as_it_was():
    """A transfer that follows minutes of status messages begins as a new link would."""
    path = line(delay=0.04, loss=0.05)
    simulation = Simulation(path, line(delay=0.04, loss=0.05), seed=4)
    ends = simulation.ends
    for second in range(300):
        for i in range(2):
            ends[i].sender.send(0, 53, bytes(12))
            simulation.flush(i)
        simulation.run(second + 1.0)
    sender = ends[0].sender
    assert sender.counts.resent > 20
    assert sender.flight.reordering == 3
    assert sender.congestion.window == 10 * 1160


def test_control_overtakes_bulk_that_waits():
    path = line(rate=1e6)
    simulation = Simulation(path, line(), seed=1)
    sender = simulation.ends[0].sender
    sender.urgent.add(0)
    for _ in range(40):
        sender.send(1, 53, bytes(50_000))
    simulation.flush(0)
    simulation.run(0.2)
    sender.send(0, 53, b"control")
    simulation.flush(0)
    simulation.run(10)
    assert simulation.received[1].index((0, b"control")) <= 8
    assert len(simulation.received[1]) == 41


def test_control_passes_a_gap_that_bulk_left():
    simulation = Simulation(line(), line(), seed=1)
    sender = simulation.ends[0].sender
    sender.urgent.add(0)
    simulation.paths[0].loss = 1.0
    sender.send(1, 53, bytes(500))
    simulation.flush(0)
    simulation.paths[0].loss = 0.0
    sender.send(0, 53, b"control")
    simulation.flush(0)
    simulation.run(5)
    assert simulation.received[1] == [(0, b"control"), (1, bytes(500))]


def test_a_shut_window_stops_the_sender_and_a_probe_finds_it_open():
    simulation = Simulation(line(), line())
    receiver = simulation.ends[1].receiver
    receiver._window = 0
    sender = simulation.ends[0].sender
    sender.peer_window = 0
    for _ in range(4):
        sender.send(0, 53, bytes(5_000))
    simulation.flush(0)
    simulation.run(0.4)
    assert simulation.bytes[1] <= 8 * 1160  # one packet a round trip
    assert sender.flight.nbytes <= 1160
    assert sender.unsent
    receiver._window = WINDOW_BYTES
    simulation.run(20)
    assert simulation.bytes[1] == 20_000


def test_tiny_packets_beyond_a_gap_cannot_fill_the_memory():
    end = Simulation(line(), line()).ends[0]
    for tsn in range(3, 60_000, 2):
        packet = data_packet(Address(5000, 5000, TAGS[0]), DataChunk(2, tsn, 0, 9, 53, b"x"))
        assert end.receive(packet, 0.0)
    held = len(end.receiver._held)
    assert held * 256 <= WINDOW_BYTES
    assert held < 20_000
    assert end.receiver.room == 0
    assert len(end.packets(0.0)[0]) <= 1188


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        ([(2, b"a"), (2, b"b")], "began inside"),
        ([(0, b"a")], "of no message"),
        ([(3, b"")], "without data"),
        ([(2, bytes(60_000)), *[(0, bytes(60_000))] * 4], "more than"),
    ],
)
def test_what_no_sender_may_do_ends_the_association(chunks, says: str):
    end = Simulation(line(), line()).ends[0]
    packets = [
        data_packet(Address(5000, 5000, TAGS[0]), DataChunk(flags, 1 + i, 0, 0, 53, data))
        for i, (flags, data) in enumerate(chunks)
    ]
    for packet in packets[:-1]:
        assert end.receive(packet, 0.0)
    with pytest.raises(ProtocolViolation, match=says):
        end.receive(packets[-1], 0.0)


def test_a_second_init_changes_nothing_and_another_begins_anew():
    simulation = Simulation(line(), line())
    exchange(simulation, (messages(3, 5_000, 1), messages(3, 5_000, 2)))
    cumulative = simulation.ends[0].receiver.cumulative
    simulation.ends[0].peer_starts(TAGS[1], 1, 1000)
    assert simulation.ends[0].receiver.cumulative == cumulative
    simulation.ends[0].peer_starts(TAGS[1], 500, 1000)
    assert simulation.ends[0].receiver.cumulative == 499


def test_nothing_is_taken_before_the_peer_has_started():
    end = Simulation(line(), line()).ends[0]
    end._remote_tsn = None
    packet = data_packet(Address(5000, 5000, TAGS[0]), DataChunk(3, 1, 0, 0, 53, b"x"))
    assert not end.receive(packet, 0.0)
