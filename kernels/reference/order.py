"""The written order of every reduction. May import: constants, types.

Integer maxima are free of order; float sums are not, so theirs is spelled out.
"""

from __future__ import annotations

import numpy as np

from ..constants import INFINITY_BITS, MAGNITUDE_BITS, ROW_LANES
from ..types import F32, I32, Ints


def integer_max(a: Ints, axis: int | None = None) -> Ints:
    """Largest value along an axis (or of all) of an integer array."""
    if a.dtype.kind not in "iu":
        raise TypeError("maxima are taken of integers only")
    return np.asarray(np.max(a, axis=axis))


def magnitude_bits(x: F32) -> I32:
    """Bit patterns of |x|: as int32 they order as the magnitudes do, NaN above infinity."""
    return x.view(np.int32) & np.int32(MAGNITUDE_BITS)


def all_finite(x: F32) -> bool:
    """True when no element is NaN or infinite."""
    return bool(integer_max(magnitude_bits(x)) < INFINITY_BITS)


def total_order(x: F32) -> I32:
    """int32 keys that order as the floats do, -0 below +0; its own inverse on bit patterns."""
    bits = x.view(np.int32)
    return bits ^ ((bits >> np.int32(31)) & np.int32(MAGNITUDE_BITS))


def from_total_order(key: I32) -> F32:
    """The float32 values of total-order keys."""
    return (key ^ ((key >> np.int32(31)) & np.int32(MAGNITUDE_BITS))).view(np.float32)


def lane_sum(x: F32, lanes: int = ROW_LANES) -> F32:
    """Sum over the last axis: lane j adds x[j], x[j+lanes], ... from +0, then a halving tree.

    The tree adds lane j + w to lane j for w = lanes/2, ..., 1. Padding is +0, and adding a zero
    of either sign to a lane that started at +0 changes no bit, so a masked tail may hold zeros.
    Works in the dtype of x.
    """
    pad = -x.shape[-1] % lanes
    if pad:
        x = np.concatenate([x, np.zeros((*x.shape[:-1], pad), x.dtype)], axis=-1)
    chunks = x.reshape(*x.shape[:-1], -1, lanes)
    acc = np.zeros((*x.shape[:-1], lanes), x.dtype)
    for i in range(chunks.shape[-2]):
        acc += chunks[..., i, :]
    width = lanes // 2
    while width:
        acc = acc[..., :width] + acc[..., width : 2 * width]
        width //= 2
    return acc[..., 0]


def column_sum(x: F32) -> F32:
    """Sum of the rows of x[M, K], from +0 in ascending row order -> [K]."""
    acc = np.zeros(x.shape[1], np.float32)
    for row in x:
        acc += row
    return acc
