"""The sender alone: hostile, stale and reneging SACKs, losses, reordering, its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pnode.net.fast.flight import MAX_LATE, MAX_REORDERING, REORDERING
from p2pnode.net.fast.packets import DataChunk, ProtocolViolation, SackChunk
from p2pnode.net.fast.sending import MAX_OUTSTANDING, MAX_RENEGED, PROBES, Sender

WINDOW = 4 << 20
PAYLOAD = 1160


def sender(initial: int = 1, window: int = WINDOW) -> Sender:
    made = Sender(initial, PAYLOAD, WINDOW, lambda chunk: chunk)  # type: ignore[arg-type,return-value]
    made.peer_window = window
    return made


def tsns(packets: list[bytes]) -> list[int]:
    return [packet.tsn for packet in packets if isinstance(packet, DataChunk)]


def loaded(nbytes: int = PAYLOAD * 10) -> tuple[Sender, list[int]]:
    made = sender()
    made.send(0, 53, bytes(nbytes))
    return made, tsns(made.packets(0.0))


def sack(cumulative: int, *blocks: tuple[int, int], window: int = WINDOW) -> SackChunk:
    return SackChunk(cumulative, window, list(blocks))


def test_a_message_is_cut_and_marked():
    made = sender()
    made.send(5, 53, bytes(PAYLOAD + 1))
    made.send(5, 53, b"x", unordered=True)
    first, second, third = made.packets(0.0)
    assert [(c.flags, c.sequence, len(c.payload)) for c in (first, second, third)] == [
        (2, 0, PAYLOAD),
        (1, 0, 1),
        (4 | 2 | 1 | 8, 0, 1),  # the last of all asks for a SACK at once
    ]
    assert made.left == [(5, 53, PAYLOAD + 1), (5, 53, 1)]
    assert made.sequences == {5: 1}


def test_what_was_acknowledged_is_forgotten():
    made, sent = loaded()
    assert sent == list(range(1, 11))
    made.take(sack(4, (2, 3)), 0.05)
    assert made.flight.nbytes == 4 * PAYLOAD
    made.take(sack(10), 0.06)
    assert made.idle
    assert made.deadline is None
    assert made.flight.round_trip is not None


def test_stale_and_impossible_sacks_are_left_unread():
    made, _ = loaded()
    made.take(sack(5), 0.05)
    flight, window = made.flight.nbytes, made.congestion.window
    for hostile in (
        sack(4, window=0),  # stale
        sack(11, window=0),  # never sent
        sack(2**31, window=0),
        sack(2**32 - 1, window=0),
    ):
        made.take(hostile, 0.05)
        assert (made.flight.nbytes, made.congestion.window, made.peer_window) == (
            flight,
            window,
            WINDOW,
        )
    for blocks in ([(0, 3)], [(1, 60_000)], [(9, 4)], [(3, 2), (0, 0)], [(65_535, 65_535)]):
        made.take(sack(5, *blocks), 0.05)
        assert made.flight.nbytes == flight
    made.take(sack(10), 0.06)
    assert made.idle


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 70),
            st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), max_size=6),
            st.integers(0, WINDOW),
        ),
        max_size=12,
    )
)
def test_no_sequence_of_sacks_breaks_the_books(sacks):
    made, _ = loaded(60 * PAYLOAD)
    now = 0.0
    for cumulative, blocks, window in sacks:
        now += 0.01
        made.take(SackChunk(cumulative, window, blocks), now)
        made.packets(now)
        packets = made.flight.outstanding.values()
        assert made.flight.nbytes == sum(p.nbytes for p in packets if not (p.acked or p.lost))
        assert made.congestion.window >= 4 * PAYLOAD
        if made.deadline is not None:
            made.expire(made.deadline)
    made.take(sack(made.next_tsn - 1), now + 1)
    assert made.flight.nbytes == 0


def test_a_packet_is_lost_when_three_later_ones_arrived():
    made, _ = loaded()
    made.take(sack(1, (2, 1 + REORDERING - 1)), 0.05)  # TSN 2 missing; 3 and 4 came
    assert tsns(made.packets(0.05)) == []
    made.take(sack(1, (2, 1 + REORDERING)), 0.05)
    assert tsns(made.packets(0.05)) == [2]
    made.take(sack(1, (2, 9)), 0.05)
    assert tsns(made.packets(0.05)) == [], "sent again once, then waited for"


def test_a_lost_retransmission_is_noticed_by_later_packets():
    made, _ = loaded(PAYLOAD * 10)
    made.take(sack(0, (2, 5)), 0.05)
    assert tsns(made.packets(0.05)) == [1]
    made.send(0, 53, bytes(PAYLOAD * 8))
    assert tsns(made.packets(0.06)) == list(range(11, 19))
    made.take(sack(0, (2, 18)), 0.12)
    assert tsns(made.packets(0.12))[0] == 1


def test_reordering_raises_the_patience():
    made, _ = loaded()
    made.take(sack(0, (2, 4)), 0.05)
    assert tsns(made.packets(0.05)) == [1]
    made.take(SackChunk(4, WINDOW, []), 0.051)  # it had only been late: it came twice
    assert made.flight.reordering == 2 * REORDERING


def test_a_needless_probe_is_no_sign_of_reordering():
    """It was the answer that was lost, so two copies arrived and nothing was out of order."""
    made, _ = loaded()
    made.take(sack(9), 0.05)
    for _ in range(PROBES):
        due = made.deadline
        assert due is not None
        assert tsns(made.expire(due)) == [10]
    made.take(sack(10), due + 0.001)
    assert made.flight.reordering == REORDERING
    assert made.counts.timeouts == 0


def test_of_a_few_packets_the_lost_one_is_found_by_time():
    made, _ = loaded(PAYLOAD * 2)
    window = made.congestion.window
    made.take(sack(0, (2, 2)), 0.05)
    assert tsns(made.packets(0.05)) == [], "it may come yet"
    due = made.deadline
    assert due is not None
    assert 0.05 < due < 0.06
    assert made.expire(due) == []
    assert tsns(made.packets(due)) == [1]
    assert made.counts.probes == 0
    assert made.congestion.window == window, "it was not filled, so it is not to blame"


def test_a_path_that_reorders_much_does_not_hide_losses():
    made, _ = loaded()
    made.take(sack(1), 0.05)
    made.flight.reordering, made.flight.late_part = MAX_REORDERING, MAX_LATE
    made.take(sack(1, (2, 9)), 0.06)
    due = made.deadline
    assert due is not None
    assert due <= 2 * 0.06 + 0.01
    assert made.expire(due) == []
    assert tsns(made.packets(due)) == [2]


def test_probes_come_before_a_time_out_which_spares_a_window_that_was_not_filled():
    made, _ = loaded(PAYLOAD)
    made.congestion.window = 50.0 * PAYLOAD
    for timeouts in (0,) * PROBES + (1, 2, 3):
        due = made.deadline
        assert due is not None
        assert tsns(made.expire(due)) == [1]
        assert made.counts.timeouts == timeouts
    made.take(sack(1), due + 0.05)
    made.send(0, 53, bytes(PAYLOAD * 200))
    sent, now = len(made.packets(due + 0.1)), due + 0.1
    assert sent == 10, "begins anew"
    while sent < 100:  # slow start leads back to where it was
        now += 0.05
        made.take(sack(made.next_tsn - 1), now)
        sent = len(made.packets(now))
        if made.congestion.window >= 50 * PAYLOAD:
            break
    assert now < due + 0.3


def test_a_receiver_may_drop_what_it_had_not_acknowledged_for_good():
    made, _ = loaded()
    made.take(sack(0, (3, 10)), 0.05)
    made.packets(0.05)
    made.take(sack(2), 0.1)  # 3 to 10 were dropped
    assert sorted(tsns(made.packets(0.1))) == list(range(3, 11))


def test_a_receiver_that_takes_back_again_and_again_is_cut_off():
    made, _ = loaded()
    now = 0.05
    for _ in range(MAX_RENEGED):
        made.take(sack(0, (1, 10)), now)  # the first block begins where the cumulative TSN would be
        assert sorted(tsns(made.packets(now))) == list(range(1, 11))
        now += 0.05
    with pytest.raises(ProtocolViolation, match="takes back"):
        made.take(sack(0, (1, 10)), now)


def test_sequence_of_tsns_is_bounded():
    made = sender()
    made.congestion.window = 1e12
    for _ in range(MAX_OUTSTANDING + 100):
        made.send(0, 53, b"x")
    assert len(made.packets(0.0)) == MAX_OUTSTANDING - 1
    made.take(sack(1000), 0.01)
    assert len(made.packets(0.01)) == 101


def test_the_peers_window_is_honoured():
    made = sender(window=3 * PAYLOAD)
    made.send(0, 53, bytes(PAYLOAD * 10))
    assert len(made.packets(0.0)) == 3
    made.take(sack(3, window=0), 0.05)
    assert len(made.packets(0.05)) == 1  # asks whether it opened
    assert made.packets(0.06) == []
    made.take(sack(4, window=2 * PAYLOAD), 0.1)
    assert len(made.packets(0.1)) == 2


def test_larger_packets_are_used_from_then_on():
    made, _ = loaded()
    made.set_payload(15_972)
    made.send(0, 53, bytes(40_000))
    made.take(sack(10), 0.05)
    assert [len(p.payload) for p in made.packets(0.05)] == [15_972, 15_972, 40_000 - 2 * 15_972]
