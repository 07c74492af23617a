"""Figures to reach: a miss is named, and every row of the table comes from its own products."""

from __future__ import annotations

import pytest

from p2pnode.bench import goals, machine
from p2pnode.bench.goals import Goal, Product


def test_a_miss_is_named_and_a_figure_at_the_bound_is_none() -> None:
    row = Goal("speed", "numpy", 1.5).row([("small", 1.5), ("large", 1.49)])
    assert row == ("speed", "numpy", "at least 1.5", "1.49 to 1.50", "no: large: 1.49")


def test_an_upper_bound_is_missed_from_above() -> None:
    assert Goal("time", "numpy", 0.7, upper=True).row([("", 0.6)])[3:] == ("0.60", "yes")
    assert Goal("time", "numpy", 0.7, upper=True).row([("x", 0.71)])[4] == "no: x: 0.71"


def product(kind: str, shape: tuple[int, int, int], times: float, share: float = 0.9) -> Product:
    return Product(kind, shape, 1.0, times, times, share)


PRODUCTS = [
    *(
        product(f"int8, {kind}", (600, 600, 600), times)
        for kind, times in ((goals.PACKED, 2.0), (goals.FRESH, 1.9), (goals.TILE, 2.1))
    ),
    product(f"int8, {goals.TILE}", (9, 9, 9), 1.4, 0.6),
    *(
        product(f"12-bit {kind}", shape, times)
        for shape, times in (((600, 600, 600), 1.6), ((600, 600, 7777), 1.2))
        for kind in (f"dX, {goals.TILE}", f"dX, {goals.PACKED}", f"dW, {goals.TILE}")
    ),
    product(f"12-bit dW, {goals.ALL_IN}", (600, 600, 600), 1.0),
    product(f"12-bit dW, {goals.ALL_IN}", (7777, 600, 600), 1.69),
]


def test_every_figure_is_held_against_its_own_products() -> None:
    rows = list(goals.of_products(PRODUCTS, sse=False, logits=7777, cube=9))
    found = {row[0]: (row[3], row[4]) for row in rows}
    assert found == {
        "int8, weights packed": ("2.00", "yes"),
        "int8, both operands packed in the call": ("1.90", "yes"),
        "int8, fused float32 epilogue": ("1.40 to 2.10", "yes"),
        "12-bit, tile alone, linear": ("1.60", "yes"),
        "12-bit, tile alone, logits": (
            "1.20",
            "no: 12-bit dX 600, 600, 7777: 1.20; 12-bit dW 600, 600, 7777: 1.20",
        ),
        "12-bit dX, weights packed, linear": ("1.60", "yes"),
        "12-bit dX, weights packed, logits": ("1.20", "yes"),
        "12-bit dW, all in the call, geometric mean": ("1.30", "yes"),
        "12-bit dW, all in the call, worst shape": ("1.00 to 1.69", "no: 600, 600, 600: 1.00"),
        "int8 tile, above 0.3 GOP": ("0.90", "yes"),
        "int8 tile, 9 cubed": ("0.60", "no: 9, 9, 9: 0.60"),
    }


def test_with_sse_only_the_one_figure_for_it_counts() -> None:
    (row,) = goals.of_products(PRODUCTS, sse=True, logits=7777, cube=9)
    assert row[2:] == ("at least 1.8", "2.00", "yes")


def test_numpy_is_held_to_the_older_processor_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "numpy_features", lambda: ["X86_V3", "X86_V4", "AVX512_ICL"])
    name = "NPY_DISABLE_CPU_FEATURES"
    assert name not in machine.environment("host", 1, {})
    assert machine.environment("avx2", 1, {})[name] == "X86_V4 AVX512_ICL"
    assert machine.environment("sse", 1, {})[name] == "X86_V3 X86_V4 AVX512_ICL"
