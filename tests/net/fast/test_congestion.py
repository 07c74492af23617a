"""The window: growth and back-off by what losses and round trips say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2pnode.net.fast.congestion import (
    BACK_OFF,
    GENTLE_BACK_OFF,
    INITIAL_PACKETS,
    MUCH_LOSS,
    Congestion,
)

PACKET = 1000


def rounds(made: Congestion, count: int, rtt: float, *, loses: int = 0, start: int = 0) -> int:
    """Windows that are acknowledged whole, but for `loses` packets each; the next number."""
    number = start
    for _ in range(count):
        packets = int(made.window / PACKET)
        end = number + packets
        for i in range(packets):
            if i < loses:
                made.lost(PACKET, number + i, end, on_their_way=made.window)
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
    made.lost(PACKET, number, number + 10, on_their_way=made.window)
    assert made.window == pytest.approx(GENTLE_BACK_OFF * before)
    number = rounds(made, 2, 0.1, start=number + 10)
    before = made.window
    made.lost(PACKET, number, number + 10, on_their_way=made.window)
    assert made.window == pytest.approx(BACK_OFF * before)
    made.lost(PACKET, number + 9, number + 20, on_their_way=made.window)
    assert made.window == pytest.approx(BACK_OFF * before), "one event counts once"


def wide() -> tuple[Congestion, int]:
    """A hundred packets, slow start long past, no queue for some rounds."""
    made, number = settled()
    number = rounds(made, 3, 0.051, start=number)
    made.window = 100.0 * PACKET
    return made, number


def lossy(made: Congestion, number: int, count: int, loss: Callable[[float], float]) -> int:
    """Rounds in which a part of the window, told by it, is lost; the next number."""
    for _ in range(count):
        packets = int(made.window / PACKET)
        number = rounds(made, 1, 0.051, loses=round(packets * loss(made.window)), start=number)
    return number


def test_much_loss_that_falls_with_the_window_is_congestion():
    """A bottleneck without a queue takes 80 packets a round."""
    made, number = wide()
    number = lossy(made, number, 3, lambda window: max(0.0, 1 - 80 * PACKET / window))
    assert made.window <= BACK_OFF * 100 * PACKET * 1.05
    lossy(made, number, 8, lambda window: max(0.0, 1 - 80 * PACKET / window))
    assert made.window <= 90 * PACKET
    assert made._tolerated == MUCH_LOSS


def test_much_loss_that_stays_is_not_of_our_making():
    """Bad radio: one packet in twelve, however few are sent."""
    made, number = wide()
    while made._trial is None:
        before = made.window
        number = lossy(made, number, 1, lambda _: 1 / 12)
    assert made.window <= BACK_OFF * 1.1 * before
    number = lossy(made, number, 8, lambda _: 1 / 12)
    assert made.window >= 100 * PACKET
    number = lossy(made, number, 40, lambda _: 1 / 12)
    assert made.window > 150 * PACKET
    lossy(made, number, 20, lambda _: 0.0)
    assert made._tolerated == MUCH_LOSS, "tolerated only as long as it is there"


def test_no_trial_excuses_the_most_loss():
    made, number = wide()
    lossy(made, number, 60, lambda _: 0.2)
    assert made.window == pytest.approx(INITIAL_PACKETS * PACKET, rel=0.3)


def test_slow_start_goes_on_through_some_loss_and_ends_with_much():
    made = Congestion(PACKET, 4 << 20)
    number = lossy(made, 0, 4, lambda _: 1 / 12)
    assert made.window > 60 * PACKET
    lossy(made, number, 1, lambda _: 1 / 3)
    assert made.window < made._threshold * 1.05


def test_a_loss_says_nothing_of_a_window_that_was_not_filled():
    made, number = settled()
    before = made.window
    made.lost(PACKET, number, number + 1, on_their_way=before / 3)
    assert made.window == before


def test_without_a_queue_no_loss_takes_it_below_the_first_window():
    made, number = settled()
    number = lossy(made, number, 60, lambda _: 0.3)
    assert made.window >= INITIAL_PACKETS * PACKET
    rounds(made, 30, 0.2, loses=1, start=number)
    assert made.window < INITIAL_PACKETS * PACKET


def test_it_stays_within_its_bounds():
    made = Congestion(PACKET, 100 * PACKET)
    rounds(made, 12, 0.05)
    assert made.window == 100 * PACKET
    for number in range(200):
        made.timed_out(number, on_their_way=made.window)
    assert made.window == 4 * PACKET


def test_an_idle_sender_does_not_grow_it():
    made = Congestion(PACKET, 4 << 20)
    made.acked(PACKET, 0.05, 5, 6, full=False)
    assert made.window == 10 * PACKET


def test_after_a_time_out_slow_start_leads_back():
    made, number = settled()
    before = made.window
    made.timed_out(number, on_their_way=made.window)
    number = rounds(made, 6, 0.05, start=number)
    assert BACK_OFF * before <= made.window <= 1.6 * before
