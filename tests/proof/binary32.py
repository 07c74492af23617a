"""IEEE-754 binary32 in integers: + - × ÷ √, rounding and comparing, on whole arrays.

What the hardware, numpy and LLVM do with floats plays no part here, so it can judge them. Every
result is the exact one rounded once, to nearest, ties to even; NaN is not supported. The module
itself is judged by Python's rationals (`test_binary32`). May import: numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]

_INFINITY = 0x7F800000
_SIGN = np.uint32(1 << 31)


class B32:
    """An array of binary32 numbers, as bit patterns. Operators broadcast as numpy's do."""

    def __init__(self, bits: U32) -> None:
        self.bits = np.asarray(bits, np.uint32)

    @classmethod
    def of(cls, values: Any) -> B32:
        """From float32 values."""
        return cls(np.asarray(values, np.float32).view(np.uint32))

    @classmethod
    def of_integers(cls, values: Any) -> B32:
        """Integers below 2**62 in size, rounded."""
        n = np.asarray(values, np.int64)
        return _rounded(n < 0, np.abs(n), np.zeros_like(n))

    @property
    def floats(self) -> NDArray[np.float32]:
        return self.bits.view(np.float32)

    @property
    def negative(self) -> NDArray[np.bool_]:
        return (self.bits & _SIGN) != 0

    def __getitem__(self, index: Any) -> B32:
        return B32(self.bits[index])

    def _parts(self) -> tuple[I64, I64]:
        """(m, e) with |value| = m * 2**e, m below 2**24."""
        magnitude = (self.bits & ~_SIGN).astype(np.int64)
        assert int(magnitude.max(initial=0)) < _INFINITY, "NaN and infinity are not supported"
        field = magnitude >> 23
        m = (magnitude & 0x7FFFFF) | np.where(field > 0, np.int64(1 << 23), np.int64(0))
        return m, np.maximum(field, 1) - 150

    def __neg__(self) -> B32:
        return B32(self.bits ^ _SIGN)

    def __abs__(self) -> B32:
        return B32(self.bits & ~_SIGN)

    def __mul__(self, other: B32) -> B32:
        (a, ea), (b, eb) = self._parts(), other._parts()
        return _rounded(self.negative ^ other.negative, a * b, ea + eb)

    def __add__(self, other: B32) -> B32:
        (a, ea), (b, eb) = self._parts(), other._parts()
        e = np.maximum(ea, eb)
        # 30 bits below the larger one's last; what lies further down is remembered in the last.
        total = _signed(self, _shifted(a << 30, e - ea)) + _signed(other, _shifted(b << 30, e - eb))
        # An exact zero is +0, unless both operands are negative (zeros).
        negative = np.where(total == 0, self.negative & other.negative, total < 0)
        return _rounded(negative, np.abs(total), e - 30)

    def __sub__(self, other: B32) -> B32:
        return self + (-other)

    def __truediv__(self, other: B32) -> B32:
        (a, ea), (b, eb) = _normalised(*self._parts()), _normalised(*other._parts())
        assert (b > 0).all(), "division by zero is not supported"
        quotient, rest = np.divmod(a << 38, b)
        return _rounded(self.negative ^ other.negative, (quotient << 1) | (rest != 0), ea - eb - 39)

    def sqrt(self) -> B32:
        """Of numbers that are not negative; √−0 = −0."""
        m, e = _normalised(*self._parts())
        assert not (self.negative & (m > 0)).any(), "the root of a negative number"
        n = m << (36 + (e & 1))
        root = np.sqrt(n.astype(np.float64)).astype(np.int64)
        root -= root * root > n  # a guess that is off by one at most
        root += (root + 1) * (root + 1) <= n
        return _rounded(self.negative, (root << 1) | (root * root != n), ((e & ~1) - 36) // 2 - 1)

    def rint(self) -> B32:
        """To the nearest integer, ties to even; the sign stays."""
        m, e = self._parts()
        drop = np.clip(-e, 0, 40)
        return _rounded(self.negative, _nearest(m, drop), np.maximum(e, 0))

    def integers(self) -> I64:
        """The values, which must be integers below 2**62 in size."""
        m, e = self._parts()
        assert ((e >= 0) | (m & ((1 << np.clip(-e, 0, 40)) - 1) == 0)).all(), "not an integer"
        assert (e < 38).all(), "too large"
        return _signed(self, np.where(e >= 0, m << np.maximum(e, 0), m >> np.clip(-e, 0, 40)))

    def _key(self) -> I64:
        """Integers that order as the values do; both zeros are 0."""
        return _signed(self, (self.bits & ~_SIGN).astype(np.int64))

    def __lt__(self, other: B32) -> NDArray[np.bool_]:
        return self._key() < other._key()

    def __gt__(self, other: B32) -> NDArray[np.bool_]:
        return self._key() > other._key()


def where(condition: Any, a: B32, b: B32) -> B32:
    """a where the condition holds, else b."""
    return B32(np.where(condition, a.bits, b.bits))


def power_of_two(exponent: I64) -> B32:
    """2**exponent, or 0 or infinity where it is out of range."""
    e = np.asarray(exponent, np.int64)
    return _rounded(np.zeros(e.shape, bool), np.ones_like(e), e)


def _signed(of: B32, magnitude: I64) -> I64:
    return np.where(of.negative, -magnitude, magnitude)


def _shifted(m: I64, by: I64) -> I64:
    """m / 2**by, the last bit set if anything was lost."""
    by = np.minimum(by, 62)
    return (m >> by) | ((m & ((np.int64(1) << by) - 1)) != 0)


def _nearest(m: I64, drop: I64) -> I64:
    """m / 2**drop to the nearest integer, ties to even; drop <= 62 and m < 2**62."""
    whole = m >> drop
    twice = (m - (whole << drop)) << 1
    unit = np.int64(1) << drop
    return whole + ((twice > unit) | ((twice == unit) & (whole & 1 == 1) & (drop > 0)))


def _bit_length(m: I64) -> I64:
    length = np.zeros_like(m)
    for step in (32, 16, 8, 4, 2, 1):
        more = (m >> step) > 0
        m = np.where(more, m >> step, m)
        length += more * step
    return length + (m > 0)


def _normalised(m: I64, e: I64) -> tuple[I64, I64]:
    """The same with 24 bits in m, unless it is 0."""
    shift = np.where(m > 0, 24 - _bit_length(m), 0)
    return m << shift, e - shift


def _rounded(negative: Any, m: I64, e: I64) -> B32:
    """±m * 2**e, 0 <= m < 2**62, rounded once."""
    m, e = np.broadcast_arrays(m, e)
    # The last bit kept is the 24th, or that of subnormal numbers.
    drop = np.maximum(_bit_length(m) - 24, -149 - e)
    kept = np.where(drop > 0, _nearest(m, np.clip(drop, 0, 62)), m << np.clip(-drop, 0, 24))
    # A mantissa that has grown to 25 bits carries into the exponent, as it should.
    bits = np.where(m > 0, ((np.maximum(e + drop, -149) + 149) << 23) + kept, 0)
    bits = np.minimum(bits, _INFINITY)
    return B32(bits.astype(np.uint32) | np.where(negative, _SIGN, np.uint32(0)))
