"""The judge itself: binary32 in integers against Python's rationals, case by case."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from .binary32 import B32, power_of_two, where
from .inputs import numbers

_LARGEST = Fraction(2**24 - 1) * 2**104


def nearest(value: Fraction) -> float:
    """The binary32 number nearest to a rational, ties to even, as Python's float."""
    size = abs(value)
    if size == 0:
        return 0.0
    exponent = max(math.floor(math.log2(size.numerator) - math.log2(size.denominator)) - 24, -149)
    while size / Fraction(2) ** exponent >= 2**24:
        exponent += 1
    while exponent > -149 and size / Fraction(2) ** exponent < 2**23:
        exponent -= 1
    rounded = round(size / Fraction(2) ** exponent) * Fraction(2) ** exponent  # ties to even
    result = math.inf if rounded > _LARGEST else float(rounded)
    return -result if value < 0 else result


def check(found: B32, exact: list[Fraction]) -> None:
    """Bit patterns, but for the sign of a zero (see `test_signs_of_zero`)."""
    wanted = np.array([nearest(value) for value in exact], np.float32)
    assert np.array_equal(found.floats, wanted)


PAIRS: dict[str, tuple[Callable[[B32, B32], B32], Callable[[Fraction, Fraction], Fraction]]] = {
    "add": (lambda a, b: a + b, lambda a, b: a + b),
    "sub": (lambda a, b: a - b, lambda a, b: a - b),
    "mul": (lambda a, b: a * b, lambda a, b: a * b),
    "div": (lambda a, b: a / b, lambda a, b: a / b),
}


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_operations_on_pairs(name: str) -> None:
    ours, exact = PAIRS[name]
    a, b = numbers(1, 4000), numbers(2, 4000)
    near = np.nextafter(a[:1000], np.float32(0))  # cancellation, and quotients near 1
    a, b = np.concatenate([a, a[:1000]]), np.concatenate([b, near])
    if name == "div":
        b = np.where(b == 0, np.float32(3), b)
    rationals = [exact(Fraction(float(x)), Fraction(float(y))) for x, y in zip(a, b, strict=True)]
    check(ours(B32.of(a), B32.of(b)), rationals)


def test_ties_are_met() -> None:
    """Sums and products that lie halfway: without them the test above would show less."""
    one, half = np.float32(1), np.float32(2.0**-24)
    odd = np.nextafter(one, np.float32(2))
    sums = B32.of([one, odd, -one]) + B32.of([half, half, -half])
    assert sums.floats.tolist() == [1.0, float(np.nextafter(odd, np.float32(2))), -1.0]
    smallest = np.float32(2.0**-149)
    products = B32.of([smallest, smallest * np.float32(3)]) * B32.of([0.5, 0.5])
    assert products.floats.tolist() == [0.0, 2.0**-148]


def test_square_roots() -> None:
    x = np.abs(numbers(3, 3000))
    squares = (np.arange(1, 500, dtype=np.float32) ** 2).astype(np.float32)
    for value, root in zip(
        *(np.concatenate([x, squares]), B32.of(np.concatenate([x, squares])).sqrt().floats),
        strict=True,
    ):
        below, above = (
            (Fraction(float(root)) + Fraction(float(np.nextafter(root, end)))) / 2
            for end in (np.float32(-1), np.float32(np.inf))
        )
        assert max(below, 0) ** 2 <= Fraction(float(value)) <= above**2


def test_rounding_and_integers() -> None:
    x = np.concatenate([numbers(4, 3000), np.arange(-9, 10, dtype=np.float32) * np.float32(0.5)])
    check(B32.of(x).rint(), [Fraction(round(Fraction(float(v)))) for v in x])
    n = np.array([0, 1, 2**24 + 1, 2**24 + 3, -(2**31), 2**61 - 1, 123456789], np.int64)
    check(B32.of_integers(n), [Fraction(int(v)) for v in n])
    small = np.array([-5.0, 0.0, 8388609.0, 2.0**60], np.float32)
    assert B32.of(small).integers().tolist() == [-5, 0, 8388609, 2**60]


def test_signs_of_zero() -> None:
    plus, minus = B32.of(0.0), B32.of(-0.0)
    one = B32.of(1.0)
    for zero, negative in (
        (minus + minus, True), (minus + plus, False), (one - one, False), (minus * one, True),
        (minus * minus, False), (minus / one, True), (minus.sqrt(), True), (minus.rint(), True),
        (B32.of(-0.25).rint(), True), (minus - plus, True),
    ):  # fmt: skip
        assert zero.floats == 0
        assert bool(zero.negative) is negative


def test_order_and_powers() -> None:
    x, y = numbers(5, 3000), numbers(6, 3000)
    assert np.array_equal(B32.of(x) < B32.of(y), x < y)
    assert np.array_equal(B32.of(x) > B32.of(y), x > y)
    assert not bool(B32.of(-0.0) < B32.of(0.0))
    e = np.array([-150, -149, -126, 0, 127, 128])
    wanted = [0.0, 2.0**-149, 2.0**-126, 1.0, 2.0**127, math.inf]
    assert power_of_two(e).floats.tolist() == wanted
    assert where(x < y, B32.of(x), B32.of(y)).floats.tolist() == np.where(x < y, x, y).tolist()
