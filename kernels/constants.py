"""Typed binary32 literals shared by both forms. May import: numpy only.

The polynomials for exp and log, with their split of ln 2, are those of the Cephes library
(S. L. Moshier, expf and logf), evaluated here without fused multiply-add.
"""

from __future__ import annotations

import numpy as np

ZERO = np.float32(0.0)
HALF = np.float32(0.5)
ONE = np.float32(1.0)

MAGNITUDE_BITS = 0x7FFFFFFF
INFINITY_BITS = 0x7F800000
FLUSH_BITS = (127 - 100) << 23
"""Bit pattern of 2^-100: a row whose largest magnitude is below it has scale 0."""

LOG2_E = np.float32(1.44269504088896341)
ROUNDING_BIAS = np.float32(12582912.0)
"""1.5 * 2^23: (x + bias) - bias rounds |x| < 2^22 to the nearest integer, ties to even."""
ROUNDING_BIAS_BITS = 0x4B400000
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
EXP_LOW = np.float32(-87.33654)
EXP_HIGH = np.float32(88.37626)
EXP_C5 = np.float32(1.9875691500e-4)
EXP_C4 = np.float32(1.3981999507e-3)
EXP_C3 = np.float32(8.3334519073e-3)
EXP_C2 = np.float32(4.1665795894e-2)
EXP_C1 = np.float32(1.6666665459e-1)
EXP_C0 = np.float32(5.0000001201e-1)

SQRT_HALF = np.float32(0.707106781186547524)
LOG_C = tuple(
    np.float32(c)
    for c in (
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
)

ROW_LANES = 16
FLAT_LANES = 4096
INT8_MAX_INNER = 131_071
"""128 * 128 * 131,071 < 2^31: an int8 product with this inner dimension cannot overflow int32."""
INT12_MAX_INNER = 2**31 - 1
"""2,047^2 * (2^31 - 1) < 2^53: a 12-bit product is exact in binary64."""
INT12_FLUSH = 512
"""2,047^2 * 512 < 2^31: how many terms of a 12-bit product fit in int32."""
LOSS_UNIT = 16_777_216.0
"""2^24: losses are counted in units of 2^-24."""
LOSS_BOUND = 274_877_906_944.0
"""2^38: a slot's summed loss stays below it, so that its integer stays below 2^62."""
