"""Does this thread compute as IEEE-754 says? A check by results, which needs no compiled code.

A library loaded later can switch the mode of a thread (flush-to-zero, denormals-are-zero,
rounding). Where numba works, `jit.floatmode` also repairs it. May import: errors, numpy.
"""

from __future__ import annotations

import numpy as np

from .errors import FloatModeError

_SMALLEST = float.fromhex("0x1p-126")
_HALF_ULP = float.fromhex("0x1p-24")
_ULP = float.fromhex("0x1p-23")

_FACTORS = np.array([[_SMALLEST, -_SMALLEST], [0.5, 0.5]], np.float32)
_PRODUCTS = np.array([_SMALLEST / 2, -_SMALLEST / 2], np.float32)
"""Subnormal results: zero under flush-to-zero."""
_TERMS = np.array(
    [
        [_SMALLEST / 4, 1.0, 1.0 + _ULP, -1.0, -1.0 - _ULP],
        [0.0] + [_HALF_ULP] * 2 + [-_HALF_ULP] * 2,
    ],
    np.float32,
)
_SUMS = np.array([_SMALLEST / 4, 1.0, 1.0 + 2 * _ULP, -1.0, -1.0 - 2 * _ULP], np.float32)
"""A subnormal operand, zero under denormals-are-zero; then ties, to even in both directions."""
_EXPECTED = _PRODUCTS.tobytes() + _SUMS.tobytes()


def is_right() -> bool:
    """True if subnormals are kept and ties go to even in this thread."""
    return (_FACTORS[0] * _FACTORS[1]).tobytes() + (_TERMS[0] + _TERMS[1]).tobytes() == _EXPECTED


def refuse() -> FloatModeError:
    """The error for a thread whose mode is wrong and stays so."""
    return FloatModeError(
        "this thread flushes subnormal numbers or does not round to nearest: a library loaded "
        "into this process changed the floating-point mode. Remove the library, or start the node "
        "in a process of its own."
    )


def require() -> bool:
    """Raise FloatModeError unless the mode is right; False, for nothing was repaired."""
    if not is_right():
        raise refuse()
    return False
