"""The window: growth and back-off by what losses and round trips say."""

from __future__ import annotations

import pytest

from p2pnode.net.fast.congestion import BACK_OFF, GENTLE_BACK_OFF, Congestion

PACKET = 1000


def rounds(made: Congestion, count: int, rtt: float, *, loses: int = 0, start: int = 0) -> int:
    """Windows that are acknowledged whole, but for `loses` packets each; the next number."""
    number = start
    for _ in range(count):
        packets = int(made.window / PACKET)
        end = number + packets
        for i in range(packets):
            if i < loses:
                made.lost(PACKET, number + i, end)
            else:
                made.acked(PACKET, rtt, number + i, end, full=True)
        number = end
    return number


def settled(rtt: float = 0.05) -> tuple[Congestion, int]:
    made = Congestion(PACKET, 4 << 20)
    number = rounds(made, 3, rtt)
    number = rounds(made, 3, rtt * 2, start=number)  # a queue ends slow start
    return made, number


def test_slow_start_doubles_and_ends_with_a_queue():
    made = Congestion(PACKET, 4 << 20)
    number = rounds(made, 3, 0.05)
    assert made.window == 80 * PACKET
    number = rounds(made, 1, 0.1, start=number)
    before = made.window
    assert before < 90 * PACKET
    rounds(made, 1, 0.1, start=number)
    assert made.window == pytest.approx(before + PACKET, rel=0.01)


def test_without_a_queue_it_grows_by_a_part_of_itself_with_one_by_a_packet():
    made, number = settled()
    before = made.window
    number = rounds(made, 1, 0.051, start=number)  # the round that was queued before counts still
    number = rounds(made, 10, 0.051, start=number)
    assert made.window > 1.25 * before
    number = rounds(made, 2, 0.08, start=number)
    before = made.window
    rounds(made, 1, 0.08, start=number)
    assert made.window == pytest.approx(before + PACKET, rel=0.01)


def test_a_loss_without_a_queue_takes_little_and_with_one_much():
    made, number = settled()
    number = rounds(made, 9, 0.051, start=number)
    before = made.window
    made.lost(PACKET, number, number + 10)
    assert made.window == pytest.approx(GENTLE_BACK_OFF * before)
    number = rounds(made, 2, 0.1, start=number + 10)
    before = made.window
    made.lost(PACKET, number, number + 10)
    assert made.window == pytest.approx(BACK_OFF * before)
    made.lost(PACKET, number + 9, number + 20)
    assert made.window == pytest.approx(BACK_OFF * before), "one event counts once"


def test_much_loss_is_congestion_even_if_no_queue_shows():
    made, number = settled()
    number = rounds(made, 9, 0.051, start=number)
    before = made.window
    rounds(made, 3, 0.051, loses=int(made.window / PACKET / 8), start=number)
    assert made.window <= BACK_OFF * before * 1.05


def test_it_stays_within_its_bounds():
    made = Congestion(PACKET, 100 * PACKET)
    rounds(made, 12, 0.05)
    assert made.window == 100 * PACKET
    for number in range(200):
        made.timed_out(number)
    assert made.window == 4 * PACKET


def test_an_idle_sender_does_not_grow_it():
    made = Congestion(PACKET, 4 << 20)
    made.acked(PACKET, 0.05, 5, 6, full=False)
    assert made.window == 10 * PACKET


def test_after_a_time_out_slow_start_leads_back():
    made, number = settled()
    before = made.window
    made.timed_out(number)
    number = rounds(made, 6, 0.05, start=number)
    assert BACK_OFF * before <= made.window <= 1.6 * before
