"""Strata beat uniform choice where faults are likely, and cost little where they are not."""

from __future__ import annotations

from . import spots


def test_edges_are_always_seen() -> None:
    for fault in ("last column", "last row"):
        assert spots.rate(fault, 128, 96, 300, strata=True) == 1.0
        assert spots.rate(fault, 128, 96, 300, strata=False) < 0.5


def test_a_tile_is_seen_nearly_as_often() -> None:
    ours, uniform = (spots.rate("one tile", 60, 64, 3000, strata=s) for s in (True, False))
    assert 0.5 * uniform < ours
