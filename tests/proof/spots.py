"""How likely one look of a spot check finds a fault, against as many cells chosen uniformly.

May import: kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels.spot_products import CELLS, Index, chosen_cells

Fault = Callable[[np.random.Generator, int, int], tuple[slice, slice]]
"""(randomness, rows, columns) -> the block of wrong cells."""


def _tile(rng: np.random.Generator, height: int, width: int) -> tuple[slice, slice]:
    row, col = 6 * int(rng.integers(-(-height // 6))), 16 * int(rng.integers(-(-width // 16)))
    return slice(row, row + 6), slice(col, col + 16)


def _cell(rng: np.random.Generator, height: int, width: int) -> tuple[slice, slice]:
    row, col = int(rng.integers(height)), int(rng.integers(width))
    return slice(row, row + 1), slice(col, col + 1)


FAULTS: dict[str, Fault] = {
    "last column": lambda rng, height, width: (slice(None), slice(width - 1, width)),
    "last row": lambda rng, height, width: (slice(height - 1, height), slice(None)),
    "one tile": _tile,
    "one cell": _cell,
}


def uniform_cells(rng: np.random.Generator, height: int, width: int) -> tuple[Index, Index]:
    """As many cells as a spot check looks at, anywhere."""
    return rng.integers(height, size=CELLS), rng.integers(width, size=CELLS)


def rate(fault: str, height: int, width: int, looks: int, *, strata: bool) -> float:
    """Share of looks at a product of that shape that see the fault, drawn anew for each."""
    rng = np.random.default_rng(1)
    hits = 0
    for turn in range(looks):
        wrong = np.zeros((height, width), bool)
        wrong[FAULTS[fault](rng, height, width)] = True
        choose = chosen_cells(turn, height, width) if strata else uniform_cells(rng, height, width)
        hits += bool(wrong[choose].any())
    return hits / looks
