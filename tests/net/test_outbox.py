"""Outbox: order by priority, no doubles, bounded queue, bounded bytes in flight."""

from __future__ import annotations

import dataclasses
import random

import pytest

from p2pnode.errors import PeerError
from p2pnode.limits import LIMITS
from p2pnode.net.events import NO_RUN, Priority
from p2pnode.net.outbox import FIRST_FRAGMENT, FRAGMENT_SECONDS, LEAST_FRAGMENT, Outbox
from p2pnode.protocol.frames import DATA_HEADER_BYTES, Channel, Reassembler

FRAGMENT = LIMITS.fragment_bytes
RTT = 0.05


class Receiver:
    """The other end: joins frames and knows how many bytes came."""

    def __init__(self) -> None:
        self.joined = {c: Reassembler(c) for c in Channel}
        self.bytes = 0
        self.messages: list[bytes] = []

    def take(self, channel: Channel, frame: bytes) -> None:
        self.bytes += len(frame)
        if done := self.joined[channel].receive(frame):
            self.messages.append(bytes(done[1]))


def drain(outbox: Outbox, receiver: Receiver, now: float = 0.0) -> list[bytes]:
    while not outbox.empty:
        while taken := outbox.take(now, RTT):
            receiver.take(*taken)
        now += 0.01
        outbox.window.acknowledged(receiver.bytes, now)
    return receiver.messages


def put(outbox: Outbox, data: bytes, priority=Priority.SHARD, key=None) -> bool:
    return outbox.put([data], priority, NO_RUN, key)


def test_urgent_messages_overtake_also_in_the_middle_of_a_long_one():
    outbox, receiver = Outbox(FRAGMENT), Receiver()
    put(outbox, b"s" * 5 * FRAGMENT, Priority.STATE)
    receiver.take(*outbox.take(0.0, RTT))
    put(outbox, b"g" * 3 * FRAGMENT, Priority.SHARD)
    receiver.take(*outbox.take(0.0, RTT))
    outbox.window.acknowledged(receiver.bytes, 0.01)
    put(outbox, b"control", Priority.CONTROL)
    assert [m[:1] for m in drain(outbox, receiver)] == [b"c", b"g", b"s"]


def test_equal_priorities_keep_their_order():
    outbox = Outbox(FRAGMENT)
    for i in range(20):
        put(outbox, bytes([i]))
    assert drain(outbox, Receiver()) == [bytes([i]) for i in range(20)]


def test_a_waiting_message_with_the_same_key_is_replaced_in_place():
    outbox = Outbox(FRAGMENT)
    put(outbox, b"old status", key="status")
    put(outbox, b"after")
    assert put(outbox, b"status", key="status")
    assert outbox.queued == len(b"status") + len(b"after")
    assert drain(outbox, Receiver()) == [b"status", b"after"]
    assert put(outbox, b"status", key="status")
    assert not outbox.empty


def test_a_partly_sent_message_stands_and_its_double_is_not_sent():
    outbox, receiver = Outbox(FRAGMENT), Receiver()
    put(outbox, b"a" * 3 * FRAGMENT, key="shard")
    receiver.take(*outbox.take(0.0, RTT))
    assert put(outbox, b"b" * 3 * FRAGMENT, key="shard")
    assert drain(outbox, receiver) == [b"a" * 3 * FRAGMENT]


def test_a_key_can_move_to_another_priority():
    outbox = Outbox(FRAGMENT)
    put(outbox, b"x", Priority.STATE, key="k")
    put(outbox, b"first", Priority.SHARD)
    put(outbox, b"y", Priority.CONTROL, key="k")
    assert drain(outbox, Receiver()) == [b"y", b"first"]
    assert outbox.queued == 0


def test_the_queue_is_bounded_in_bytes():
    outbox = Outbox(FRAGMENT, dataclasses.replace(LIMITS, queued_bytes=1000))
    assert put(outbox, b"x" * 900, key="a")
    assert not put(outbox, b"y" * 101)
    assert not put(outbox, b"y" * 1001, key="a")
    assert put(outbox, b"y" * 1000, key="a")
    assert drain(outbox, Receiver()) == [b"y" * 1000]
    assert put(outbox, b"z" * 1000)


def test_relayed_frames_are_bounded_and_count_as_in_flight():
    outbox = Outbox(FRAGMENT, dataclasses.replace(LIMITS, relay_queue_bytes=3000))
    assert outbox.put_frame(Channel.BULK, b"r" * 2000)
    assert not outbox.put_frame(Channel.BULK, b"r" * 2000)
    assert outbox.put_frame(Channel.CONTROL, b"c" * 1000)
    put(outbox, b"state", Priority.STATE)
    assert outbox.take(0.0, RTT) == (Channel.CONTROL, b"c" * 1000)
    assert outbox.take(0.0, RTT) == (Channel.BULK, b"r" * 2000)
    assert outbox.window.in_flight == 3000
    assert outbox.put_frame(Channel.BULK, b"r" * 3000)


def test_nothing_more_is_sent_until_something_is_acknowledged():
    outbox = Outbox(FRAGMENT)
    put(outbox, b"x" * 20 * FRAGMENT)
    sent = 0
    while taken := outbox.take(0.0, RTT):
        sent += len(taken[1])
    assert sent == outbox.window.in_flight == 2 * (FIRST_FRAGMENT + DATA_HEADER_BYTES)
    outbox.window.acknowledged(sent, 0.001)
    more = 0
    while taken := outbox.take(0.001, RTT):
        more += len(taken[1])
    assert sent < more <= LIMITS.in_flight_bytes


@pytest.mark.parametrize("rate", [20_000, 200_000, 2_000_000, 50_000_000])
def test_the_window_follows_the_path(rate: int):
    """A path of `rate` bytes/s with a 50 ms round trip: full use, at most half a second queued."""
    outbox = Outbox(FRAGMENT)
    put(outbox, bytes(int(min(rate * 30, 60_000_000))))
    now, free_at, received, acks = 0.0, 0.0, 0, []
    worst_queue, began, busy = 0.0, 0.0, 0.0
    while not outbox.empty:
        while taken := outbox.take(now, RTT):
            free_at = max(free_at, now) + len(taken[1]) / rate
            busy += len(taken[1]) / rate
            received += len(taken[1])
            acks.append((free_at + RTT, received))
            assert outbox.window.in_flight <= LIMITS.in_flight_bytes
            worst_queue = max(worst_queue, free_at - now)
        now, total = acks.pop(0)
        outbox.window.acknowledged(total, now)
    two_frames = 2 * (FRAGMENT + DATA_HEADER_BYTES) / rate
    assert worst_queue <= max(0.6, two_frames)
    in_flight_bound = LIMITS.in_flight_bytes / RTT
    assert busy / (now - began) > 0.8 * min(1.0, in_flight_bound / rate)


def test_a_pause_does_not_look_like_a_slow_path():
    outbox, receiver = Outbox(FRAGMENT), Receiver()
    put(outbox, bytes(2_000_000))
    drain(outbox, receiver, 0.0)
    fast = outbox.window.rate
    for i in range(30):  # one small message a second, as when nothing trains
        put(outbox, b"status")
        receiver.take(*outbox.take(100.0 + i, RTT))
        outbox.window.acknowledged(receiver.bytes, 100.0 + i + RTT)
    assert outbox.window.rate == fast


def test_the_first_sample_after_a_pause_does_not_count_the_pause():
    outbox, receiver = Outbox(FRAGMENT), Receiver()
    put(outbox, bytes(20_000_000))
    drain(outbox, receiver, 0.0)
    fast = outbox.window.rate
    put(outbox, bytes(20_000_000))
    while taken := outbox.take(500.0, RTT):
        receiver.take(*taken)
    outbox.window.acknowledged(receiver.bytes, 500.01)
    assert outbox.window.rate == pytest.approx(fast, rel=0.05)


def test_impossible_acknowledgements_are_refused():
    outbox = Outbox(FRAGMENT)
    put(outbox, b"x" * 100)
    _, frame = outbox.take(0.0, RTT)
    with pytest.raises(PeerError, match="acknowledged"):
        outbox.window.acknowledged(len(frame) + 1, 1.0)
    outbox.window.acknowledged(len(frame), 1.0)
    with pytest.raises(PeerError, match="acknowledged"):
        outbox.window.acknowledged(len(frame) - 1, 1.0)


def test_random_traffic_arrives_complete_and_the_queue_counts_right():
    rng = random.Random(4)
    outbox, receiver, expected, now = Outbox(2048), Receiver(), [], 0.0
    for _ in range(500):
        now += 0.01
        data = rng.randbytes(rng.choice([0, 10, 3000, 20_000]))
        if put(outbox, data, rng.choice(list(Priority))):
            expected.append(data)
        if rng.random() < 0.7 and (taken := outbox.take(now, RTT)):
            receiver.take(*taken)
        if rng.random() < 0.5:
            outbox.window.acknowledged(receiver.bytes, now)
    assert sorted(drain(outbox, receiver, now)) == sorted(expected)
    assert outbox.queued == 0


def _frames_after(rate: float) -> list[int]:
    """Payloads of a message's frames, sent after a path was found to deliver `rate` bytes/s."""
    outbox, now = Outbox(FRAGMENT), 0.0
    for data in (b"x" * 20 * FIRST_FRAGMENT, b"y" * FRAGMENT):
        put(outbox, data)
        lengths = []
        while taken := outbox.take(now, RTT):
            lengths.append(len(taken[1]) - DATA_HEADER_BYTES)
            now += len(taken[1]) / rate
            outbox.window.acknowledged(outbox.window._sent_bytes, now)
    return lengths


@pytest.mark.parametrize("rate", [500.0, 5_000.0, 50_000.0, 5_000_000.0])
def test_a_frame_takes_no_longer_than_half_a_second_on_a_slow_line(rate: float):
    lengths = _frames_after(rate)
    assert sum(lengths) == FRAGMENT
    expected = min(FRAGMENT, max(LEAST_FRAGMENT, rate * FRAGMENT_SECONDS))
    assert lengths[0] == pytest.approx(expected, rel=0.01)
    assert lengths[0] / rate < LIMITS.silence, "each is heard of before the silence limit"


@pytest.mark.parametrize("rtt", [0.05, 0.6, 1.5])
def test_no_path_is_too_long_to_be_filled(rtt: float):
    """A window of less than a round trip would measure what it allows, and allow what it measured:
    the first rate, a fragment or two a round trip, would stay for good."""
    path = 150_000.0  # bytes a second
    outbox, receiver = Outbox(FRAGMENT), Receiver()
    put(outbox, bytes(int(60 * path)))
    acknowledgements: list[tuple[float, int]] = []
    now = free_at = 0.0
    late = 0
    while now < 60.0:
        while taken := outbox.take(now, rtt):
            receiver.take(*taken)
            free_at = max(free_at, now) + len(taken[1]) / path
            acknowledgements.append((free_at + rtt, receiver.bytes))
        now, total = acknowledgements.pop(0)
        outbox.window.acknowledged(total, now)
        if now < 40.0:
            late = total
    assert outbox.window.acked - late > 0.9 * 20 * path
