"""Spot checks: cells of live products computed again in exact integers, while training.

Gates compare kernels before they are used. What goes wrong later (a processor that overheats,
memory that flips bits, a shape that no gate has) is looked for here: of every `EVERY`-th product
`CELLS` cells, chosen in strata, since faulty tiles and edges are likelier than faulty single cells.
May import: errors, random, reference, types.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UnsoundError
from .random import random_u64
from .reference.products import epilogue, quantise_along
from .types import F32, Ints, Quantised

PRODUCTS = ("linear", "linear_dx", "linear_dw")
EVERY = 127
"""A prime, so that over many slots every product of a slot has its turn."""
CELLS = 16
_TILE_ROWS, _TILE_COLS = 6, 16

Index = npt.NDArray[np.int64]


class SpotChecks:
    """Looks at cells of some of the products that it is shown."""

    def __init__(self, every: int = EVERY) -> None:
        self._every = every
        self._seen = 0
        self._lock = threading.Lock()

    def look(self, name: str, args: tuple[Any, ...], result: F32) -> int:
        """How many cells were checked (mostly none). Raises UnsoundError if one is wrong.

        args: the product's operands as the form was given them, still unchanged.
        """
        with self._lock:
            self._seen += 1
            turn = self._seen
        if turn % self._every:
            return 0
        rows, cols = chosen_cells(turn, *result.shape)
        expected = product_cells(name, args[0], args[1], rows, cols)
        wrong = np.flatnonzero(result[rows, cols].view(np.int32) != expected.view(np.int32))
        if wrong.size:
            row, col = int(rows[wrong[0]]), int(cols[wrong[0]])
            raise UnsoundError(
                f"this computer multiplied wrongly: in {name}, a product of shape "
                f"{result.shape}, row {row}, column {col} is {result[row, col]!r} and must be "
                f"{expected[wrong[0]]!r}. Look for overheating, overclocking or bad memory."
            )
        return rows.size


def chosen_cells(turn: int, height: int, width: int) -> tuple[Index, Index]:
    """Rows and columns of `CELLS` cells: the corners, two in the last row, two in the last column,
    four at edges of tiles, the others anywhere. A function of its arguments."""
    draws = random_u64(0, "spot", turn, np.arange(CELLS))
    low = (draws & np.uint64(0xFFFFFFFF)).astype(np.int64)
    rows, cols = low % height, (draws >> np.uint64(32)).astype(np.int64) % width
    last_row, last_col = height - 1, width - 1
    rows[0:4], cols[0:4] = (0, 0, last_row, last_row), (0, last_col, 0, last_col)
    rows[4:6], cols[6:8] = last_row, last_col
    rows[8] -= rows[8] % _TILE_ROWS
    rows[9] += _TILE_ROWS - 1 - rows[9] % _TILE_ROWS
    cols[10] -= cols[10] % _TILE_COLS
    cols[11] += _TILE_COLS - 1 - cols[11] % _TILE_COLS
    return np.minimum(rows, last_row), np.minimum(cols, last_col)


def product_cells(
    name: str, left: F32 | Quantised, right: Quantised, rows: Index, cols: Index
) -> F32:
    """The cells (rows[i], cols[i]) of a product, by its definition in `reference.products`."""
    by_rows = name != "linear_dw"
    if isinstance(left, Quantised):
        a = left.q[rows] if by_rows else left.q[:, rows].T
        a_scale = left.scale[rows]
    else:
        lines = left[rows] if by_rows else np.ascontiguousarray(left[:, rows].T)
        a, scale = quantise_along(lines, right.limit, 1)
        a_scale = scale[:, 0]
    b = right.q[cols] if right.by_rows else right.q[:, cols].T
    return epilogue(_dots(a, b), a_scale, right.scale[cols])


def _dots(a: Ints, b: Ints) -> npt.NDArray[np.float64]:
    """Row by row inner products [n] of integers [n, K]: exact in int64, and in binary64 after."""
    products: npt.NDArray[np.int64] = a.astype(np.int64) * b
    totals: npt.NDArray[np.float64] = np.add.reduce(products, axis=1).astype(np.float64)
    return totals
