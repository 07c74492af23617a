"""Numbers on which wrong arithmetic shows: edges of binades, subnormals, few or all bits set.

May import: numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def numbers(seed: int, count: int, low: int = -149, high: int = 127) -> F32:
    """Finite float32 of either sign, the binary exponent between low and high: a quarter at the
    edges of a binade, a quarter with few bits set (sums and products of which are often ties), the
    rest with any bits; every 64th is a zero."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 4, count)
    mantissa = rng.integers(0, 1 << 23, count)
    few = (1 << rng.integers(0, 23, count)) | (1 << rng.integers(0, 23, count))
    edge = rng.choice(np.array([0, 1, 2, 0x7FFFFF, 0x7FFFFE, 0x400000]), count)
    mantissa = np.select([kind == 0, kind == 1], [edge, few], mantissa)
    exponent = rng.integers(low, high + 1, count)
    # Below 2**-126 the exponent is in the mantissa's leading zeros.
    subnormal = ((1 << 23) | mantissa) >> np.clip(-126 - exponent, 0, 23)
    bits = np.where(exponent >= -126, ((exponent + 127) << 23) | mantissa, subnormal)
    bits |= rng.integers(0, 2, count) << 31
    bits[::64] &= 1 << 31
    return bits.astype(np.uint32).view(np.float32)
