"""Splits rows among threads. Products are exact and other rows independent of each other, so the
split cannot be seen in the bits.

May import: jit.floatmode.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable

from .floatmode import pin

_LEAST_ROWS = 96
"""A part of a product with fewer rows would take less time than handing it over."""
LEAST_VALUES = 1 << 16
"""The same for values that are computed one by one."""


class Threads:
    """The calling thread and `count` - 1 others. `current` is the one in use."""

    current: Threads

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = concurrent.futures.ThreadPoolExecutor(max(1, count - 1), "kernels")

    def spread(
        self, rows: int, unit: int, work: Callable[[int, int], bool], least: int = _LEAST_ROWS
    ) -> bool:
        """Run work(start, stop) over parts of 0..rows, cut at multiples of `unit`; all true?

        least: how many rows are worth handing over.
        """
        count = min(self._count, max(1, rows // least))
        if count == 1:
            return work(0, rows)
        length = -(-rows // (count * unit)) * unit
        first, *rest = [(start, min(start + length, rows)) for start in range(0, rows, length)]

        def elsewhere(start: int, stop: int) -> bool:
            pin()
            return work(start, stop)

        others = [self._pool.submit(elsewhere, *part) for part in rest]
        done = work(*first)
        concurrent.futures.wait(others)  # all of them write to the caller's arrays
        return all(other.result() for other in others) and done


Threads.current = Threads(1)


def use(count: int) -> None:
    """Compute with `count` threads from now on, the calling one included."""
    Threads.current = Threads(count)


def spread(
    rows: int, unit: int, work: Callable[[int, int], bool], least: int = _LEAST_ROWS
) -> bool:
    """`Threads.spread` of those in use."""
    return Threads.current.spread(rows, unit, work, least)


def share(shape: tuple[int, ...], work: Callable[[slice], object], unit: int = 1) -> None:
    """Run work(rows) over parts of the rows of a matrix, cut at multiples of `unit`."""

    def part(start: int, stop: int) -> bool:
        work(slice(start, stop))
        return True

    spread(shape[0], unit, part, least=max(1, LEAST_VALUES // shape[1]))
