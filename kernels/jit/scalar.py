"""Scalar pieces inlined into every kernel: bit casts, exp, log, lane sums, finite checks.

The formulas are those of `reference.elementary` and `reference.order`, operation by operation.
May import: constants, jit.compile, numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .. import constants as c
from .compile import helper, inlined

ZERO, HALF, ONE = c.ZERO, c.HALF, c.ONE
INFINITY_BITS = np.int32(c.INFINITY_BITS)
FLUSH_BITS = np.int32(c.FLUSH_BITS)
LEAST_KEY = np.int32(-(2**31))
ROUNDING_BIAS = c.ROUNDING_BIAS
_MAGNITUDE = np.int32(c.MAGNITUDE_BITS)
_BIAS_BITS = np.int32(c.ROUNDING_BIAS_BITS)
_BIAS_LESS_127 = np.int32(c.ROUNDING_BIAS_BITS - 127)
_MANTISSA = np.int32(0x007FFFFF)
_HALF_BITS = np.int32(0x3F000000)
_LOG2_E, _LN2_HIGH, _LN2_LOW = c.LOG2_E, c.LN2_HIGH, c.LN2_LOW
_LOW, _HIGH = c.EXP_LOW, c.EXP_HIGH
_E5, _E4, _E3, _E2, _E1, _E0 = c.EXP_C5, c.EXP_C4, c.EXP_C3, c.EXP_C2, c.EXP_C1, c.EXP_C0
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8 = c.LOG_C
_SQRT_HALF = c.SQRT_HALF
_SIGN_SHIFT = np.int32(31)


@intrinsic
def bits_of(typing_context: Any, x: Any) -> Any:
    """float32 -> the same bits as int32."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), build


@intrinsic
def float_of(typing_context: Any, x: Any) -> Any:
    """int32 -> the same bits as float32."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), build


@helper
def magnitude(x):
    """Bits of |x|, ordered as the magnitudes are."""
    return np.int32(bits_of(x) & _MAGNITUDE)


@helper
def order_key(x):
    """Total-order key of a float."""
    bits = bits_of(x)
    return np.int32(bits ^ np.int32(np.int32(bits >> _SIGN_SHIFT) & _MAGNITUDE))


@helper
def from_key(key):
    """The float of a total-order key."""
    return float_of(np.int32(key ^ np.int32(np.int32(key >> _SIGN_SHIFT) & _MAGNITUDE)))


@helper
def round_small(x):
    """rint(x) as int32 for |x| < 2^22."""
    return np.int32(bits_of(x + ROUNDING_BIAS) - _BIAS_BITS)


@inlined
def exp32(x):
    """exp of one float32."""
    bounded = x if x < _HIGH else _HIGH
    bounded = bounded if bounded > _LOW else _LOW
    biased = bounded * _LOG2_E + ROUNDING_BIAS
    n = biased - ROUNDING_BIAS
    r = bounded - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    y = _E5 * r + _E4
    y = y * r + _E3
    y = y * r + _E2
    y = y * r + _E1
    y = y * r + _E0
    y = (y * (r * r) + r) + ONE
    power = float_of(np.int32(np.int32(bits_of(biased) - _BIAS_LESS_127) << np.int32(23)))
    return y * power if x >= _LOW else ZERO


@inlined
def log32(x):
    """log of one positive normal float32."""
    bits = bits_of(x)
    exponent = np.int32(np.int32(bits >> np.int32(23)) - np.int32(126))
    m = float_of(np.int32((bits & _MANTISSA) | _HALF_BITS))
    small = m < _SQRT_HALF
    e = np.float32(exponent) - (ONE if small else ZERO)
    f = (m + m) - ONE if small else m - ONE
    z = f * f
    y = _L0 * f + _L1
    y = y * f + _L2
    y = y * f + _L3
    y = y * f + _L4
    y = y * f + _L5
    y = y * f + _L6
    y = y * f + _L7
    y = y * f + _L8
    y = y * f * z
    y = y + e * _LN2_LOW
    y = y - HALF * z
    return (f + y) + e * _LN2_HIGH


@helper
def clear_lanes(lanes):
    """Start 16 lanes at +0."""
    for j in range(16):
        lanes[j] = ZERO


@inlined
def fold_lanes(lanes):
    """Halving tree over 16 lanes; the sum."""
    for j in range(8):
        lanes[j] = lanes[j] + lanes[j + 8]
    for j in range(4):
        lanes[j] = lanes[j] + lanes[j + 4]
    for j in range(2):
        lanes[j] = lanes[j] + lanes[j + 2]
    return lanes[0] + lanes[1]
