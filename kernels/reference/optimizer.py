"""The gradient grid, the average, the norm and Adam.

May import: constants, errors, types, order.
"""

from __future__ import annotations

import numpy as np

from ..constants import FLAT_LANES
from ..errors import AccumulatorBoundError, NonFiniteInputError
from ..types import F32, I32, AdamScalars
from .order import all_finite, integer_max, lane_sum


def power_of_two(exponent: int) -> np.float32:
    """2^exponent, -126 <= exponent <= 127, by building its bits."""
    if not -126 <= exponent <= 127:
        raise ValueError("the exponent must lie in -126..127")
    return np.float32(np.array((exponent + 127) << 23, np.int32).view(np.float32)[()])


def float_limit(limit: int) -> np.float32:
    """Largest binary32 integer not above `limit`: f32(limit) itself may be rounded up."""
    drop = max(0, limit.bit_length() - 24)
    return np.float32((limit >> drop) << drop)


def grid(g: F32, exponent: int, limit: int) -> tuple[I32, int, int]:
    """g[n] -> (q[n] = rint(g * 2^-exponent) clamped to +-limit, how many clamped, largest |q|)."""
    if not all_finite(g):
        raise NonFiniteInputError("the gradient holds NaN or infinity; it was not put on the grid.")
    bound = float_limit(limit)
    scaled = np.rint(g * power_of_two(-exponent))
    above, below = scaled > bound, scaled < -bound
    clamped = np.where(above, bound, np.where(below, -bound, scaled))
    q = clamped.astype(np.int32)
    return q, int(np.count_nonzero(above | below)), int(integer_max(np.abs(q)))


def grid_add(acc: I32, q: I32) -> None:
    """acc[n] += q[n] in place, refused as a whole if any sum leaves int32."""
    total = acc.astype(np.int64) + q
    if integer_max(np.abs(total)) > 2**31 - 1:
        raise AccumulatorBoundError("the sum of gradients leaves int32; nothing was added.")
    acc[:] = total


def dequantise(total: I32, exponent: int, slots: int) -> F32:
    """f32(total) * 2^exponent / f32(slots)."""
    return total.astype(np.float32) * power_of_two(exponent) / np.float32(slots)


def norm(g: F32) -> np.float32:
    """Euclidean norm of g[n]: squares summed in 4,096 lanes and a halving tree."""
    return np.float32(np.sqrt(lane_sum(g * g, FLAT_LANES)))


def adam(
    w: F32, m: F32, v: F32, g: F32, s: AdamScalars, decays: bool, out: tuple[F32, F32, F32]
) -> None:
    """One Adam step of a contiguous stretch [n], written to out = (w, m, v)."""
    for name, array in (("weight", w), ("gradient", g), ("first moment", m), ("second moment", v)):
        if not all_finite(array):
            raise NonFiniteInputError(f"a {name} is NaN or infinite; the step was refused.")
    decay = s.weight_decay if decays else np.float32(0.0)
    clipped = g * s.clip
    m2 = s.beta1 * m + s.one_minus_beta1 * clipped
    v2 = s.beta2 * v + s.one_minus_beta2 * clipped * clipped
    update = (m2 / s.c1) / (np.sqrt(v2 / s.c2) + s.eps) + decay * w
    w2 = w - s.lr * update
    for name, array in (("weight", w2), ("first moment", m2), ("second moment", v2)):
        if not all_finite(array):
            raise NonFiniteInputError(f"a new {name} is NaN or infinite; the step was refused.")
    out[0][:], out[1][:], out[2][:] = w2, m2, v2
