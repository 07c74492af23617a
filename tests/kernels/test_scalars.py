"""Rotary tables, the schedule and other numbers that come from big integers."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

import kernels
from kernels import scalars


def decimal_cos(x: Decimal) -> Decimal:
    """Taylor series in 120 digits."""
    term = total = Decimal(1)
    k = 0
    while abs(term) > Decimal(10) ** -110:
        k += 2
        term *= -x * x / (k * (k - 1))
        total += term
    return total


def test_pi() -> None:
    with localcontext() as context:
        context.prec = 120
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628")
        error = Decimal(scalars.pi_fixed()) / Decimal(2) ** 256 - pi
        assert abs(error) < Decimal(10) ** -70


def nearest(x: Decimal, y: np.float32) -> bool:
    """Is y the float32 nearest to x?"""
    around = (np.nextafter(y, np.float32(-9)), np.nextafter(y, np.float32(9)))
    return all(abs(Decimal(float(y)) - x) < abs(Decimal(float(z)) - x) for z in around)


@pytest.mark.parametrize(("dim", "base"), [(2, 10_000), (6, 10_000), (32, 10_000), (10, 500_000)])
def test_rope_tables_are_correctly_rounded(dim: int, base: int) -> None:
    cos, sin = kernels.rope_tables(300, dim, base)
    assert cos[0].tolist() == [1.0] * (dim // 2)
    assert sin[0].tolist() == [0.0] * (dim // 2)
    with localcontext() as context:
        context.prec = 120
        half_pi = Decimal(scalars.pi_fixed()) / Decimal(2) ** 257
        for position in (1, 2, 7, 150, 299):
            for i in range(dim // 2):
                angle = position * (-Decimal(2 * i) / dim * Decimal(base).ln()).exp()
                turns = angle % (4 * half_pi)
                assert nearest(decimal_cos(turns), cos[position, i])
                assert nearest(decimal_cos(turns - half_pi), sin[position, i])


def test_rope_tables_are_shared_and_cannot_be_changed() -> None:
    cos, _ = kernels.rope_tables(8, 4)
    assert kernels.rope_tables(8, 4)[0] is cos
    with pytest.raises(ValueError, match="read-only"):
        cos[0, 0] = 2
    for bad in ((8, 3, 10_000), (0, 4, 10_000), (8, 4, 1)):
        with pytest.raises(ValueError, match="rope"):
            kernels.rope_tables(*bad)


def test_cosine_of_pi_is_the_nearest_float() -> None:
    assert scalars.cosine_of_pi(0, 7) == 1.0
    assert scalars.cosine_of_pi(1, 3) == 0.5
    assert scalars.cosine_of_pi(1, 2) == 0.0
    assert scalars.cosine_of_pi(7, 7) == -1.0
    for n in range(1, 500):
        exact = scalars.cosine_of_pi(n, 500)
        assert abs(exact - math.cos(math.pi * n / 500)) <= 5e-16
    with pytest.raises(ValueError, match="fraction"):
        scalars.cosine_of_pi(3, 2)


def test_fixed_point_is_rounded_to_nearest_and_refused_at_a_tie() -> None:
    one = 1 << 256
    assert scalars.round_fixed(one + (one >> 24) - (one >> 60), 24) == 1.0
    assert scalars.round_fixed(one + (one >> 24) + (one >> 60), 24) == 1 + 2.0**-23
    assert scalars.round_fixed(-one - (one >> 25), 24) == -1.0
    assert scalars.round_fixed(2 * one - (one >> 30), 24) == 2.0  # the carry lengthens it
    assert scalars.round_fixed(one >> 100, 24) == 2.0**-100
    assert scalars.round_fixed(0, 24) == 0.0
    for tie in (one + (one >> 24), one + (one >> 24) + 1000):
        with pytest.raises(ArithmeticError, match="decide"):
            scalars.round_fixed(tie, 24)


def test_integer_root() -> None:
    for value, degree in ((10**40, 2), (2**512 - 1, 32), (7**30, 30), (7**30 - 1, 30), (1, 5)):
        root = scalars.integer_root(value, degree)
        assert root**degree <= value < (root + 1) ** degree
    assert scalars.integer_root(0, 3) == 0


def test_schedule_warms_up_and_decays_to_its_floor() -> None:
    rates = [kernels.schedule(s, lr=2.0, warmup=4, steps=20, lr_floor=0.1) for s in range(22)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[4] == 2.0
    assert rates[12] == pytest.approx(1.1)
    assert all(a > b for a, b in itertools.pairwise(rates[4:21]))
    assert rates[20] == rates[21] == pytest.approx(0.2)
    assert kernels.schedule(0, lr=1.0, warmup=0, steps=1, lr_floor=0.5) == 1.0
    assert kernels.schedule(3, lr=1.0, warmup=9, steps=5, lr_floor=0.5) == pytest.approx(4 / 9)


def test_clip_factor() -> None:
    assert kernels.clip_factor(0.0, 1.0) == 1.0
    assert kernels.clip_factor(0.5, 1.0) == 1.0
    assert kernels.clip_factor(4.0, 1.0) == 1.0 / (4.0 + 1e-6)


def test_adam_scalars_round_binary64_once() -> None:
    s = kernels.adam_scalars(
        lr=0.1, beta1=0.9, beta2=0.95, beta1_power=0.9, beta2_power=0.95,
        eps=1e-8, weight_decay=0.1, clip=1.0,
    )  # fmt: skip
    assert s.one_minus_beta1 == np.float32(1 - 0.9)
    assert s.one_minus_beta1 != np.float32(1) - np.float32(0.9)
    assert s.c2 == np.float32(1 - 0.95)
