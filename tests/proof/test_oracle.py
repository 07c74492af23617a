"""Compiled and reference forms against binary32 in integers; and the oracle sees what it should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernels
from kernels import reference as forms
from kernels.reference import elementary

from . import oracle, sweep

COUNT = 20_000


@pytest.fixture(scope="module", params=["compiled", "reference"])
def ops(request: pytest.FixtureRequest) -> kernels.Kernels:
    return kernels.load(reference=request.param == "reference")


@pytest.mark.parametrize("name", sorted(oracle.CHECKS))
def test_bits_are_those_of_integer_arithmetic(name: str, ops: kernels.Kernels) -> None:
    for seed in range(3):
        size, wrong = oracle.CHECKS[name](ops, seed, COUNT)
        assert size >= COUNT
        assert wrong == 0


def changed(**changes: Callable[..., Any]) -> kernels.Kernels:
    return kernels.Kernels("reference", {**forms.FORMS, **changes}, lambda: False)


def fused_silu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Rounded once at the end instead of after every operation."""
    wide = gate.astype(np.float64)
    y: np.ndarray = wide / (1 + elementary.exp(-gate).astype(np.float64)) * up
    return y.astype(np.float32)


def test_fewer_roundings_are_seen() -> None:
    assert oracle.CHECKS["swiglu"](changed(swiglu=fused_silu), 1, COUNT)[1] > 0


def test_a_wrong_sign_of_zero_is_seen() -> None:
    unsigned = changed(exp=lambda x: elementary.exp(x) + np.float32(0), log=elementary.log)
    assert oracle.CHECKS["exp"](unsigned, 1, COUNT)[1] == 0
    broken = changed(rope=lambda x, u, v: forms.FORMS["rope"](x, u, v) + np.float32(0))
    assert oracle.CHECKS["rope"](broken, 1, COUNT)[1] > 0


ULPS = {"exp": 1.0, "log": 1.0, "silu": 4.0, "slope": 10.0, "inverse-root": 3.0}


def test_a_sweep_of_few_patterns_finds_no_difference() -> None:
    live, reference = kernels.load(), kernels.load(reference=True)
    for name in sweep.FUNCTIONS:
        found = sweep.sweep(name, live, reference, 16_001)
        assert found.patterns == -(-sweep.PATTERNS // 16_001)
        assert found.differing == 0
        assert found.worst < ULPS[name], name


def test_a_sweep_sees_a_wrong_bit_and_a_bad_approximation() -> None:
    reference = kernels.load(reference=True)
    x = next(sweep.chunks(4001))[-50_000:]
    broken = changed(log=lambda x: forms.FORMS["log"](x) * np.float32(1 + 2.0**-22))
    found = sweep.examine("log", broken, reference, np.abs(x))
    assert found.differing > 25_000
    assert found.worst > 1.5


def test_near_ties_are_decided_by_decimals() -> None:
    """exp of the smallest numbers is next to 1; half an ulp above it, binary64 cannot tell."""
    x = np.array([2.0**-24, -(2.0**-25), 2.0**-60], np.float32)
    found = sweep.examine("exp", kernels.load(reference=True), kernels.load(reference=True), x)
    assert found.near_ties == 2
    above = np.nextafter(np.float32(1), np.float32(2))
    assert sweep._nearest(sweep.FUNCTIONS["exp"], x[0], np.float32(1)) == above
    below = np.nextafter(np.float32(1), np.float32(0))
    assert sweep._nearest(sweep.FUNCTIONS["exp"], x[1], below) == np.float32(1)
