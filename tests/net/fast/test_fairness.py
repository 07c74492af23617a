"""Beside a TCP flow on one bottleneck both get on: Reno and CUBIC, modelled, in simulated time."""

from __future__ import annotations

import math

import pytest

from tests.net.fast.path import Simulation, line

RATE = 1e6  # 8 Mbit/s


class Reno:
    """RFC 5681, with selective acknowledgements."""

    kept = 0.5

    def __init__(self, simulation: Simulation, packet_bytes: int = 1160) -> None:
        self.simulation = simulation
        self.packet_bytes = packet_bytes
        self.window = 10.0 * packet_bytes
        self.threshold = math.inf
        self.shortest: float | None = None
        self.reduced_at = -1

    def acked(
        self, nbytes: int, rtt: float | None, number: int, next_number: int, *, full: bool
    ) -> None:
        if rtt is not None:
            self.shortest = min(rtt, self.shortest or rtt)
        if full and number >= self.reduced_at:
            self.window += nbytes if self.window < self.threshold else self.growth(nbytes)

    def growth(self, nbytes: int) -> float:
        return self.packet_bytes * nbytes / self.window

    def lost(self, nbytes: int, number: int, next_number: int, *, on_their_way: float) -> None:
        if number >= self.reduced_at:
            self.reduced_at = next_number
            self.window = self.threshold = max(self.window * self.kept, 2.0 * self.packet_bytes)

    def timed_out(self, next_number: int, *, on_their_way: float) -> None:
        self.reduced_at = next_number
        self.threshold = self.window / 2
        self.window = float(self.packet_bytes)


class Cubic(Reno):
    """RFC 9438."""

    kept = 0.7
    most = 0.0
    began: float | None = None

    def growth(self, nbytes: int) -> float:
        if self.began is None:
            self.began = self.simulation.now
        most, window = self.most / self.packet_bytes, self.window / self.packet_bytes
        elapsed = self.simulation.now - self.began + (self.shortest or 0.0)
        target = 0.4 * (elapsed - (most * (1 - self.kept) / 0.4) ** (1 / 3)) ** 3 + most
        step = min(max(target - window, 0.0), window / 2) / window
        return max(step * nbytes, 0.01 * nbytes / window)

    def lost(self, nbytes: int, number: int, next_number: int, *, on_their_way: float) -> None:
        if number >= self.reduced_at:
            self.most, self.began = self.window, None
        super().lost(nbytes, number, next_number, on_their_way=on_their_way)


def share(other: type[Reno] | None, queue: float, seconds: float = 21.0) -> float:
    """Part of the bottleneck that the other flow gets beside ours, after the first third."""
    there, back = line(rate=RATE, queue=queue), line(rate=RATE, queue=queue)
    ours, theirs = Simulation(there, back, seed=1), Simulation(there, back, seed=2)
    theirs.share_time_with(ours)
    if other is not None:
        theirs.ends[0].sender.congestion = other(ours)  # type: ignore[assignment]
    for simulation in (ours, theirs):
        simulation.keep = False
        sender = simulation.ends[0].sender
        for _ in range(int(seconds * RATE) // 50_000):
            sender.send(0, 53, bytes(50_000))
        simulation.flush(0)
    ours.run(seconds / 3)
    before = ours.bytes[1], theirs.bytes[1]
    ours.run(seconds)
    mine, others = ours.bytes[1] - before[0], theirs.bytes[1] - before[1]
    assert mine + others > 0.85 * RATE * seconds * 2 / 3, "together they fill the line"
    return others / (mine + others)


@pytest.mark.parametrize(
    ("other", "queue", "least"),
    [
        (Cubic, 0.1, 0.25),
        (Cubic, 0.02, 0.2),
        (Cubic, 0.005, 0.1),
        (Reno, 0.1, 0.2),
        (None, 0.1, 0.3),
    ],
)
def test_the_other_flow_keeps_a_share(other: type[Reno] | None, queue: float, least: float):
    assert share(other, queue) > least
