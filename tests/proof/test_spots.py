"""Strata beat uniform choice where faults are likely, and cost little where they are not."""

from __future__ import annotations

import pytest

from . import spots


def test_edges_are_always_seen() -> None:
    for fault in ("last column", "last row"):
        assert spots.rate(fault, 128, 96, 300, strata=True) == 1.0
        assert spots.rate(fault, 128, 96, 300, strata=False) < 0.5


def test_a_tile_is_seen_nearly_as_often() -> None:
    ours, uniform = (spots.rate("one tile", 60, 64, 3000, strata=s) for s in (True, False))
    assert 0.5 * uniform < ours


def test_a_check_of_a_whole_product_sees_one_flipped_bit() -> None:
    """In int8 always; in 12 bits if it is one of the higher."""
    exact, twelve = (spots.whole(name, 60, 64, 40, 50) for name in ("linear", "linear_dw"))
    assert exact.found == 1.0
    assert 0.2 < twelve.found <= 1.0


def test_heads_are_seen_as_often_as_stated() -> None:
    last, one = spots.head_rate(2, 3, 2000)
    assert last > 0.5
    assert 0.1 < one < 0.25


def test_the_cost_is_measured_over_all_operations_of_a_slot() -> None:
    ((preset, slot, looks, count),) = spots.costs(("nano",))
    assert preset == "nano"
    assert min(slot, looks) > 0
    products, attention = 3 * (7 * 3 + 1), 2 * 3
    assert count == pytest.approx(16 * (products + attention) / 127)
