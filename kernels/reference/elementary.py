"""exp and log from correctly rounded operations only. May import: constants, types."""

from __future__ import annotations

import numpy as np

from .. import constants as c
from ..types import F32


def exp(x: F32) -> F32:
    """e^x to less than one unit in the last place, elementwise.

    Domain: every float32. Below -87.33654 (the least normal result) the answer is +0; above
    88.37626 it is exp(88.37626), about 2.4e38; NaN gives +0 (callers refuse it before).
    """
    bounded = np.where(x < c.EXP_HIGH, x, c.EXP_HIGH)
    bounded = np.where(bounded > c.EXP_LOW, bounded, c.EXP_LOW)
    biased = bounded * c.LOG2_E + c.ROUNDING_BIAS
    n = biased - c.ROUNDING_BIAS
    r = bounded - n * c.LN2_HIGH
    r = r - n * c.LN2_LOW
    y = c.EXP_C5 * r + c.EXP_C4
    y = y * r + c.EXP_C3
    y = y * r + c.EXP_C2
    y = y * r + c.EXP_C1
    y = y * r + c.EXP_C0
    y = (y * (r * r) + r) + c.ONE
    exponent = biased.view(np.int32) - np.int32(c.ROUNDING_BIAS_BITS) + np.int32(127)
    power = (exponent << np.int32(23)).view(np.float32)
    return np.where(x >= c.EXP_LOW, y * power, c.ZERO)


def log(x: F32) -> F32:
    """Natural logarithm, elementwise, to about one unit in the last place.

    Domain: positive normal float32. Outside it the answer is a pinned number without meaning.
    """
    bits = x.view(np.int32)
    exponent = (bits >> np.int32(23)) - np.int32(126)
    m = ((bits & np.int32(0x007FFFFF)) | np.int32(0x3F000000)).view(np.float32)
    small = m < c.SQRT_HALF
    e = exponent.astype(np.float32) - np.where(small, c.ONE, c.ZERO)
    f = np.where(small, (m + m) - c.ONE, m - c.ONE)
    z = f * f
    y = np.full(x.shape, c.LOG_C[0])
    for coefficient in c.LOG_C[1:]:
        y = y * f + coefficient
    y = y * f * z
    y = y + e * c.LN2_LOW
    y = y - c.HALF * z
    return (f + y) + e * c.LN2_HIGH
