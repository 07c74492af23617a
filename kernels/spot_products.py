"""Spot checks of a product: cells chosen in strata, or all of it by Freivalds' check.

Cells are computed again from the operands, bit for bit; faulty edges and tiles are likelier than
faulty single cells, hence the strata. The check of the whole costs the reading of three matrices
instead of their product: with a random x, S x must be A (B x) (R. Freivalds, 1977). S, the integer
sums, are found from the result: a scaled and rounded sum below 2^21 has one possible origin.
May import: errors, random, reference, types.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .errors import UnsoundError
from .random import random_u64
from .reference.products import epilogue, integer_product, quantise_along
from .types import F32, F64, Ints, Quantised

CELLS = 16
_TILE_ROWS, _TILE_COLS = 6, 16
_STRIP = 1 << 17
"""Values of a strip: temporary arrays that stay in the cache."""
_SUSPECTS = 8
"""Rows that one check of a whole product computes again: its time is bounded."""
_CERTAIN = 2.0**21
"""Sums below it are found exactly: two roundings change them by less than a half."""

Index = npt.NDArray[np.int64]
Rows = Index | slice


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


def check_cells(turn: int, result: F32, name: str, left: F32 | Quantised, right: Quantised) -> int:
    """How many cells of a product were compared. Raises UnsoundError."""
    rows, cols = chosen_cells(turn, *result.shape)
    expected = product_cells(name, left, right, rows, cols)
    wrong = np.flatnonzero(result[rows, cols].view(np.int32) != expected.view(np.int32))
    if wrong.size:
        first = wrong[0]
        raise _unsound(name, result, int(rows[first]), int(cols[first]), expected[first])
    return rows.size


def product_cells(
    name: str, left: F32 | Quantised, right: Quantised, rows: Index, cols: Index
) -> F32:
    """The cells (rows[i], cols[i]) of a product, by its definition in `reference.products`."""
    a, a_scale = _lines(name, left, right.limit, rows)
    products: npt.NDArray[np.int64] = a.astype(np.int64) * _columns(right)[cols]
    total = np.add.reduce(products, axis=1).astype(np.float64)
    return epilogue(total, a_scale, right.scale[cols])


def check_whole(turn: int, result: F32, name: str, left: F32 | Quantised, right: Quantised) -> int:
    """How many cells of a product were compared: all, or none if a sum could leave binary64's
    exact integers. Raises UnsoundError.

    One wrong cell of a row whose sums are all below 2^21 is always found (int8 products are like
    that), several with probability 1 - 1 / spread at least; in rows with larger sums (12 bits),
    what is off by more than the sums are uncertain. Whatever looks wrong is computed again, so
    nothing is called wrong that is not.
    """
    height, width = result.shape
    columns = _columns(right)
    inner = columns.shape[1]
    spread = min(1 << 15, (1 << 52) // (width * inner * right.limit**2))
    if spread < 2:
        return 0
    draws = random_u64(0, "whole", turn, np.arange(width))
    x = spread + (draws % np.uint64(spread)).astype(np.float64)
    mixed = np.zeros(inner)
    for part in _strips(width, inner):
        mixed += x[part] @ columns[part].astype(np.float64)
    suspects: list[int] = []
    for part in _strips(height, max(inner, width)):
        a, a_scale = _lines(name, left, right.limit, part)
        wrong = _inconsistent(result[part], a_scale[:, None], right.scale, x, a @ mixed)
        suspects += (part.start + np.flatnonzero(wrong)).tolist()
    for row in suspects[:_SUSPECTS]:
        a, a_scale = _lines(name, left, right.limit, slice(row, row + 1))
        for part in _strips(width, inner):
            total = integer_product(a, columns[part].T)
            expected = epilogue(total, a_scale[:, None], right.scale[part])[0]
            differ = result[row, part].view(np.int32) != expected.view(np.int32)
            if differ.any():
                at = int(np.flatnonzero(differ)[0])
                raise _unsound(name, result, row, part.start + at, expected[at])
    return result.size


def _inconsistent(
    y: F32, row_scale: F32, col_scale: F32, x: F64, expected: F64
) -> npt.NDArray[np.bool_]:
    """Which rows of y cannot be the scaled sums of a product S with S x = expected."""
    unit = row_scale.astype(np.float64) * col_scale
    sums = np.rint(y / np.where(unit > 0, unit, 1)) + 0.0
    size = np.abs(sums)
    uncertain = (size >= _CERTAIN) & np.isfinite(size)
    unlike = epilogue(sums, row_scale, col_scale).view(np.int32) != y.view(np.int32)
    doubt = np.where(uncertain, size * 2.0**-22 + 1, 0) @ x
    off = np.abs(sums @ x - expected)
    return np.asarray((unlike & ~uncertain).any(1) | ~(off <= doubt))


def _strips(length: int, width: int) -> Iterator[slice]:
    """Lines of `width` values, as many at a time as a strip holds."""
    step = max(1, _STRIP // width)
    for start in range(0, length, step):
        yield slice(start, min(length, start + step))


def _lines(name: str, left: F32 | Quantised, limit: int, rows: Rows) -> tuple[Ints, F32]:
    """Rows of the left operand as the product sees it: integers [n, K] and scales [n]."""
    by_rows = name != "linear_dw"
    if isinstance(left, Quantised):
        return left.q[rows] if by_rows else left.q[:, rows].T, left.scale[rows]
    lines = left[rows] if by_rows else np.ascontiguousarray(left[:, rows].T)
    q, scale = quantise_along(lines, limit, 1)
    return q, scale[:, 0]


def _columns(right: Quantised) -> Ints:
    """The columns of the right operand, one in each row [N, K]."""
    return right.q if right.by_rows else right.q.T


def _unsound(name: str, result: F32, row: int, col: int, expected: np.float32) -> UnsoundError:
    return UnsoundError(
        f"this computer multiplied wrongly: in {name}, a product of shape {result.shape}, row "
        f"{row}, column {col} is {result[row, col]!r} and must be {expected!r}. Look for "
        "overheating, overclocking or bad memory."
    )
