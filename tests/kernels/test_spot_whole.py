"""Freivalds' check of whole products: sound ones pass, one wrong cell anywhere is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernels
from kernels import reference, spot_products
from kernels.spot import SpotChecks

from .helpers import normal

OPS = kernels.load(reference=True)
NAMES = ("linear", "linear_dx", "linear_dw")


def product(
    name: str, m: int = 70, k: int = 90, n: int = 50, scale: float = 1.0
) -> tuple[np.ndarray, kernels.Quantised, np.ndarray]:
    """The left operand, the right one, their product."""
    left, right = normal(1, m, k, scale=scale), normal(2, n, k, scale=scale)
    b = OPS.quantise_rows(right) if name == "linear" else None
    if name != "linear":
        b = OPS.quantise_cols(np.ascontiguousarray(right.T))
        left = left if name == "linear_dx" else np.ascontiguousarray(left.T)
    assert b is not None
    return left, b, getattr(OPS, name)(left, b)


def check(name: str, left: Any, right: kernels.Quantised, result: np.ndarray, turn: int = 1) -> int:
    with np.errstate(all="ignore"):
        return spot_products.check_whole(turn, result, name, left, right)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 300, 1), (70, 90, 50), (300, 40, 700)])
def test_sound_products_pass(name: str, shape: tuple[int, int, int]) -> None:
    """Also of magnitudes whose scaled sums underflow or overflow, and with rows of zeros."""
    for scale in (1.0, 2.0**-70, 2.0**70):
        left, right, y = product(name, *shape, scale=scale)
        assert check(name, left, right, y) == y.size
    left, right, y = product(name, *shape)
    left[:] *= np.arange(left.shape[1], dtype=np.float32) % 3 > 0
    left[0] = 0
    assert check(name, left, right, getattr(OPS, name)(left, right)) == y.size


@pytest.mark.parametrize("name", NAMES)
def test_a_quantised_left_operand_passes_too(name: str) -> None:
    left, right, y = product(name)
    rows = name != "linear_dw"
    quantised = (OPS.quantise_rows if rows else OPS.quantise_cols)(left, right.limit)
    assert check(name, quantised, right, y) == y.size


def test_one_flipped_bit_of_an_int8_product_is_found_wherever_it_is() -> None:
    left, right, y = product("linear")
    rng = np.random.default_rng(1)
    for turn in range(200):
        row, col, bit = (int(rng.integers(n)) for n in (*y.shape, 32))
        wrong = y.copy()
        wrong.view(np.uint32)[row, col] ^= np.uint32(1 << bit)
        with pytest.raises(kernels.UnsoundError, match=f"row {row}, column {col} is"):
            check("linear", left, right, wrong, turn)


@pytest.mark.parametrize("name", ["linear_dx", "linear_dw"])
def test_of_a_12_bit_product_what_is_grossly_wrong_is_found(name: str) -> None:
    left, right, y = product(name)
    rng = np.random.default_rng(2)
    for turn in range(60):
        row, col = (int(rng.integers(n)) for n in y.shape)
        wrong = y.copy()
        wrong[row, col] += np.float32(1e-3) * np.abs(y).max()
        with pytest.raises(kernels.UnsoundError, match=f"row {row}, column {col} is"):
            check(name, left, right, wrong, turn)


def test_sums_that_are_off_by_one_or_permuted_are_found() -> None:
    """Each of their numbers is a possible one; only together they are wrong."""
    left, right, y = product("linear")
    a = reference.FORMS["quantise_rows"](left, 127)
    total = a.q.astype(np.int64) @ right.q.T.astype(np.int64)
    total[33, 11] += 1
    wrong = total.astype(np.float32) * a.scale[:, None] * right.scale
    assert wrong[33, 11] != y[33, 11]
    with pytest.raises(kernels.UnsoundError, match="row 33, column 11 is"):
        check("linear", left, right, wrong)
    total[33] = np.roll(total[33], 1)
    with pytest.raises(kernels.UnsoundError, match="row 33, "):
        check("linear", left, right, total.astype(np.float32) * a.scale[:, None] * right.scale)


@pytest.mark.parametrize("wrong", [np.float32(-0.0), np.float32("nan"), np.float32("inf")])
def test_minus_zero_nan_and_infinity_are_found(wrong: np.float32) -> None:
    left, right, _ = product("linear")
    left[20] = 0
    y = OPS.linear(left, right)
    y[20, 30] = wrong
    with pytest.raises(kernels.UnsoundError, match="row 20, column 30 is"):
        check("linear", left, right, y)


def test_a_product_that_could_leave_exact_integers_is_left_alone() -> None:
    huge = np.broadcast_to(np.float32(0), (1, 1 << 16))
    endless = kernels.Quantised(
        np.broadcast_to(np.int16(0), (1 << 16, 1 << 16)), np.zeros(1 << 16, np.float32), 2047, False
    )
    assert check("linear_dx", huge, endless, huge) == 0


def test_every_eighth_look_at_a_product_is_at_all_of_it() -> None:
    def spoiled(*args: Any) -> Any:
        y = reference.FORMS["linear"](*args)
        y[31, 17] += np.float32(1)
        return y

    looked = set(zip(*(x.tolist() for x in spot_products.chosen_cells(8, 70, 50)), strict=True))
    assert (31, 17) not in looked
    left, right, _ = product("linear")
    forms = {**reference.FORMS, "linear": spoiled}
    ops = kernels.Kernels("reference", forms, lambda: False, spots=SpotChecks(every=1))
    for _ in range(7):
        ops.linear(left, right)
    with pytest.raises(kernels.UnsoundError, match="row 31, column 17 is"):
        ops.linear(left, right)
