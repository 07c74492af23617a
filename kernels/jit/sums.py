"""How many words of the inner dimension int32 can sum before a flush to binary64.

Over any block of the inner dimension |sum a b| <= max |a| * sum |b|, and the same with the sides
exchanged. Values of 12 bits are at most 2,047, so int32 holds every sum of a block in which the
magnitudes of each right column, or of each left row, add up to at most `MAGNITUDES`, for
2,047 * MAGNITUDES <= 2**31 - 1. What is held on the way is the sum of some of the same terms, so it
is bounded too. Activations, weights and most gradients are like that: their mean is a quarter of
their largest value.

The bound by Cauchy and Schwarz, from the norms of both sides, admits less where it would be wanted:
of a left row that is all 2,047 it makes 2,047 * sqrt(n) * |b|, which is at least 2,047 * sum |b|.
May import: constants, types, workspace, jit siblings.
"""

from __future__ import annotations

import numpy as np

from .. import constants as c
from ..types import INT12_LIMIT, Ints
from ..workspace import empty
from .compile import kernel

INT8_FLUSH = np.int64((c.INT8_MAX_INNER + 1) // 2)
"""Words of int8 values (as int16 pairs or quads) that int32 can sum: as many as there may be."""
INT12_FLUSH = np.int64(c.INT12_FLUSH // 2)
"""Words of pairs of 12-bit values that int32 can sum whatever they are."""
MAGNITUDES = (2**31 - 1) // INT12_LIMIT
"""What the magnitudes of one side may add up to."""
_LONGEST = 1024
"""Words of a block, so that a panel's part stays in the cache."""


def even_block(count: int, most: int) -> int:
    """Words of a block if `count` are cut into as few as can be, of at most `most`."""
    return -(-count // -(-count // most))


def long_block(count: int) -> int:
    """Words of a block where int32 holds every sum."""
    return even_block(count, _LONGEST)


def block_of(q: Ints) -> int:
    """Words of the blocks in which int32 can sum what q[K, N] gives on the right of a product,
    whatever is on the left; 12-bit values, two in a word."""
    inner, cols = q.shape
    count = -(-inner // 2)
    long, short = long_block(count), even_block(count, int(INT12_FLUSH))
    if long == short:
        return long
    most = int(_largest_sum(q, 2 * long, empty(cols, np.int32)))
    return long if most <= MAGNITUDES else short


@kernel
def _largest_sum(q, block, total):
    """The largest sum of magnitudes of a column of q[K, N] over a block of so many rows.

    total int32 [N]: scratch. 2 * _LONGEST values of any int16 do not overflow it.
    """
    inner, cols = q.shape
    largest = np.int32(0)
    for first in range(0, inner, block):
        for j in range(cols):
            total[j] = np.int32(0)
        for k in range(first, min(first + block, inner)):
            row = q[k]
            for j in range(cols):
                value = np.int32(row[j])
                total[j] = np.int32(total[j] + np.int32(-value if value < 0 else value))
        for j in range(cols):
            largest = total[j] if total[j] > largest else largest
    return largest
