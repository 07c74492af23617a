"""Spot checks: sound products pass, wrong ones are found while training, by strata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernels
from kernels import jit, reference
from kernels.spot import EVERY, SpotChecks
from kernels.spot_products import CELLS, chosen_cells

from .helpers import normal
from .test_forms_agree import backward_products, forward_product

Form = Callable[..., Any]


def watched(forms: dict[str, Form], whole: int = 10**9, **changes: Form) -> kernels.Kernels:
    return kernels.Kernels("numba", {**forms, **changes}, lambda: False, spots=SpotChecks(1, whole))


@pytest.mark.parametrize("whole", [1, 10**9], ids=["whole", "cells"])
@pytest.mark.parametrize("forms", [jit.FORMS, reference.FORMS], ids=["compiled", "reference"])
def test_sound_products_pass(forms: dict[str, Form], whole: int) -> None:
    """Ragged shapes; float operands and quantised ones; with an array for the answer or not."""
    ops = watched(forms, whole)
    for seed in range(8):
        forward_product(ops, seed)
        backward_products(ops, seed)
    dy, x, w = normal(1, 50, 30), normal(2, 50, 20), normal(3, 30, 20)
    ops.linear_dx(ops.quantise_rows(dy, 2047), w)
    ops.linear_dw(ops.quantise_cols(dy), ops.quantise_cols(x), np.empty((30, 20), np.float32))
    ops.linear(ops.quantise_rows(x), w)
    cells = CELLS * (8 * 4 + 3)
    if whole == 1:
        assert ops.counts["spot_cells"] > 20 * cells
    else:
        assert ops.counts["spot_cells"] == cells


def spoiled(name: str, *place: Any) -> Form:
    """The compiled form with the last bit wrong at a place."""

    def form(*args: Any) -> Any:
        result = jit.FORMS[name](*args)
        result.view(np.int32)[place] ^= 1
        return result

    return form


@pytest.mark.parametrize("name", ["linear", "linear_dx", "linear_dw"])
@pytest.mark.parametrize(
    "place",
    [(slice(None), -1), (-1,), (0, 0), (slice(None), slice(None, None, 16)), (slice(5, None, 6),)],
    ids=["last column", "last row", "corner", "first columns of tiles", "last rows of tiles"],
)
def test_faults_at_edges_are_found_at_the_first_look(name: str, place: tuple[Any, ...]) -> None:
    ops = watched(jit.FORMS, **{name: spoiled(name, *place)})
    a, b = normal(1, 60, 44), normal(2, 60, 44)
    b = np.ascontiguousarray(b.T) if name == "linear_dx" else b
    with pytest.raises(kernels.UnsoundError, match=f"in {name}, a product of shape"):
        getattr(ops, name)(a, b)


def test_one_wrong_cell_is_found_only_where_it_is_looked_for() -> None:
    rows, cols = chosen_cells(1, 60, 50)
    x, w = normal(1, 60, 44), normal(2, 50, 44)
    inside = next((r, c) for r, c in zip(rows[12:], cols[12:], strict=True))
    with pytest.raises(kernels.UnsoundError, match=f"row {inside[0]}, column {inside[1]} is"):
        watched(jit.FORMS, linear=spoiled("linear", *inside)).linear(x, w)
    looked = set(zip(rows.tolist(), cols.tolist(), strict=True))
    elsewhere = next((r, c) for r in range(60) for c in range(50) if (r, c) not in looked)
    watched(jit.FORMS, linear=spoiled("linear", *elsewhere)).linear(x, w)


def test_cells_are_chosen_in_strata() -> None:
    seen = set()
    for turn in range(40):
        rows, cols = chosen_cells(turn, 61, 37)
        assert rows.size == cols.size == CELLS
        assert rows.min() >= 0
        assert cols.min() >= 0
        assert rows.max() == 60
        assert cols.max() == 36
        corners = {(0, 0), (0, 36), (60, 0), (60, 36)}
        assert corners <= set(zip(rows.tolist(), cols.tolist(), strict=True))
        assert (rows == 60).sum() >= 4
        assert (cols == 36).sum() >= 4
        seen |= set(zip(rows[12:].tolist(), cols[12:].tolist(), strict=True))
    assert len(seen) > 140
    for shape in ((1, 1), (1, 40), (7, 1), (6, 16)):
        rows, cols = chosen_cells(5, *shape)
        assert (rows < shape[0]).all()
        assert (cols < shape[1]).all()


def test_every_so_many_products_are_looked_at() -> None:
    ops = kernels.load()
    x, w = normal(1, 20, 8), ops.quantise_rows(normal(2, 9, 8))
    before = ops.counts["spot_cells"]
    for _ in range(2 * EVERY):
        ops.linear(x, w)
    assert ops.counts["spot_cells"] - before == 2 * CELLS
