"""Paired measurements: all candidates in every round, ratios within a round, medians of those.

Time is the CPU time of the calling thread: who else uses the machine counts less, and every
candidate runs on one thread. A wall clock is used where candidates use several.
May import: nothing of ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Candidates = Mapping[str, Callable[[], object]]
LEAST_SECONDS = 2e-3
"""A candidate is repeated within a round until it takes this long."""


class Times:
    """Seconds per call of every candidate in every round."""

    def __init__(self, seconds: Mapping[str, Sequence[float]]) -> None:
        self._seconds = seconds

    def median(self, name: str) -> float:
        """Median seconds of one call."""
        return statistics.median(self._seconds[name])

    def speed(self, name: str, base: str) -> float:
        """How many times as fast as `base`: the median of the ratios within the rounds."""
        pairs = zip(self._seconds[base], self._seconds[name], strict=True)
        return statistics.median(b / a for b, a in pairs)


def measure(candidates: Candidates, rounds: int, *, threads: int = 1) -> Times:
    """Run every candidate once unmeasured, then all of them in turn, `rounds` times."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    repeats = {}
    for name, run in candidates.items():
        run()
        start = clock()
        run()
        repeats[name] = max(1, round(LEAST_SECONDS / max(clock() - start, 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = clock()
            for _ in range(repeats[name]):
                run()
            seconds[name].append((clock() - start) / repeats[name])
    return Times(seconds)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)
