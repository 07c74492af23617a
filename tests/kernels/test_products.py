"""Quantisation and products: exactness against Python integers, bounds, refusals, sharing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kernels
from kernels import INT8_LIMIT, INT12_LIMIT, Quantised
from kernels.jit import target, tile
from kernels.jit.compile import kernel

from .helpers import assert_same_bits, normal

BOTH = pytest.mark.parametrize("which", ["compiled", "reference"])


@pytest.fixture
def k(which: str, request: pytest.FixtureRequest) -> kernels.Kernels:
    loaded: kernels.Kernels = request.getfixturevalue(which)
    return loaded


@pytest.fixture
def k_both(compiled: kernels.Kernels, reference: kernels.Kernels) -> list[kernels.Kernels]:
    return [compiled, reference]


def constant(value: int, limit: int, rows: int, cols: int, by_rows: bool) -> Quantised:
    dtype = np.int8 if limit == INT8_LIMIT else np.int16
    scale = np.ones(rows if by_rows else cols, np.float32)
    return Quantised(np.full((rows, cols), value, dtype), scale, limit, by_rows)


@BOTH
@pytest.mark.parametrize("value", [127, -127, -128])
def test_int8_is_exact_up_to_its_bound(k: kernels.Kernels, value: int) -> None:
    inner = 131_071
    a = constant(value, INT8_LIMIT, 2, inner, True)
    b = constant(-128, INT8_LIMIT, 1, inner, True)
    assert k.linear(a, b).tolist() == [[float(np.float32(inner * value * -128))]] * 2


@BOTH
def test_int8_beyond_its_bound_is_refused(k: kernels.Kernels) -> None:
    a = constant(1, INT8_LIMIT, 1, 131_072, True)
    with pytest.raises(kernels.AccumulatorBoundError, match="131072 products"):
        k.linear(a, a)


@BOTH
@pytest.mark.parametrize("inner", [511, 512, 513, 514, 1024, 1025, 1026, 5000])
def test_12_bit_is_exact_across_the_flush(k: kernels.Kernels, inner: int) -> None:
    """At full magnitude int32 overflows after 512 terms; the answer must not show it."""
    for sign in (1, -1):
        a = constant(INT12_LIMIT, INT12_LIMIT, 1, inner, True)
        b = constant(sign * INT12_LIMIT, INT12_LIMIT, inner, 1, False)
        expected = float(np.float32(sign * inner * INT12_LIMIT**2))
        assert k.linear_dx(a, b).tolist() == [[expected]]
        assert k.linear_dw(constant(INT12_LIMIT, INT12_LIMIT, inner, 1, False), b).tolist() == [
            [expected]
        ]


@BOTH
def test_random_12_bit_sums_equal_python_integers(k: kernels.Kernels) -> None:
    rng = np.random.default_rng(5)
    a = rng.integers(-2047, 2048, (3, 1777)).astype(np.int16)
    b = rng.integers(-2047, 2048, (1777, 4)).astype(np.int16)
    ones = np.ones(8, np.float32)
    y = k.linear_dx(
        Quantised(a, ones[:3], INT12_LIMIT, True), Quantised(b, ones[:4], INT12_LIMIT, False)
    )
    for i, j in itertools.product(range(3), range(4)):
        total = sum(int(p) * int(q) for p, q in zip(a[i], b[:, j], strict=True))
        assert y[i, j] == np.float32(total)


@BOTH
def test_zero_sums_are_plus_zero(k: kernels.Kernels) -> None:
    y = k.linear(constant(-1, INT8_LIMIT, 7, 3, True), constant(0, INT8_LIMIT, 17, 3, True))
    assert not np.signbit(y).any()


@BOTH
def test_quantisation_rounds_ties_to_even_and_spans_the_limit(k: kernels.Kernels) -> None:
    x = np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0, 0.0]], np.float32)
    rows = k.quantise_rows(x)
    assert rows.q.tolist() == [[127, 0, 2, 2, 0, -2, -127, 0]]
    assert rows.scale.tolist() == [1.0]
    cols = k.quantise_cols(np.ascontiguousarray(x.T), INT8_LIMIT)
    assert cols.q.T.tolist() == rows.q.tolist()


@BOTH
def test_magnitudes_below_the_floor_are_flushed_and_counted(k: kernels.Kernels) -> None:
    x = np.ones((4, 3), np.float32)
    x[1] = 2.0**-101
    x[2] = 2.0**-100
    before = k.counts["flushed_scales"]
    rows = k.quantise_rows(x)
    assert rows.q[1].tolist() == [0, 0, 0]
    assert rows.scale[1] == 0
    assert rows.q[2].tolist() == [127, 127, 127]
    assert k.counts["flushed_scales"] == before + 1


@BOTH
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_non_finite_operands_are_refused(k: kernels.Kernels, bad: float) -> None:
    x = np.ones((5, 9), np.float32)
    x[4, 8] = bad
    for quantise in (k.quantise_rows, k.quantise_cols):
        with pytest.raises(kernels.NonFiniteInputError):
            quantise(x, INT12_LIMIT)
    with pytest.raises(kernels.NonFiniteInputError):
        k.linear(x, x)


@BOTH
def test_prepared_operands_give_the_same_bits(k: kernels.Kernels) -> None:
    x, w, dy = normal(1, 20, 30), normal(2, 40, 30), normal(3, 20, 40)
    left = k.quantise_rows(x)
    for _ in range(2):
        assert_same_bits(k.linear(left, k.quantise_rows(w)), k.linear(x, w))
    assert_same_bits(
        k.linear_dx(k.quantise_rows(dy, 2047), k.quantise_cols(w, 2047)), k.linear_dx(dy, w)
    )
    assert_same_bits(
        k.linear_dw(k.quantise_cols(dy, 2047), k.quantise_cols(x, 2047)), k.linear_dw(dy, x)
    )


@BOTH
def test_wrong_shapes_types_and_operands_are_refused(k: kernels.Kernels) -> None:
    x, w = normal(1, 4, 6), normal(2, 5, 6)
    wrong = [
        lambda: k.linear(x, normal(3, 5, 7)),
        lambda: k.linear(x.astype(np.float64), w),  # type: ignore[arg-type]
        lambda: k.linear(x.T, w),
        lambda: k.linear(x[0], w),
        lambda: k.linear(k.quantise_rows(x, 2047), w),
        lambda: k.linear(k.quantise_cols(x, 127), w),
        lambda: k.quantise_rows(x, 128),
        lambda: k.quantise_rows(x[:0]),
        lambda: k.linear_dw(x, w),
    ]
    for call in wrong:
        with pytest.raises(kernels.ShapeError):
            call()


def test_read_only_inputs_are_accepted(compiled: kernels.Kernels) -> None:
    x, w = normal(1, 4, 6), normal(2, 5, 6)
    frozen = x.copy()
    frozen.flags.writeable = False
    assert_same_bits(compiled.linear(frozen, w), compiled.linear(x, w))


def test_products_are_close_to_the_float_product(compiled: kernels.Kernels) -> None:
    x, w, dy = normal(1, 64, 96), normal(2, 80, 96), normal(3, 64, 80)

    def relative(y: np.ndarray, exact: np.ndarray) -> float:
        return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))

    assert relative(compiled.linear(x, w), x @ w.T) < 0.015
    assert relative(compiled.linear_dx(dy, w), dy @ w) < 0.001
    assert relative(compiled.linear_dw(dy, x), dy.T @ x) < 0.001


@pytest.mark.parametrize("count", [1, 2, 17])
@pytest.mark.parametrize("mode", ["pairs", "outer", "quads"])
def test_every_mode_of_the_tile_is_exact(mode: str, count: int) -> None:
    """Also those for other processors, where they can be compiled here."""
    if mode == "quads" and target.QUADS is None:
        pytest.skip("this processor has no instruction for four products of int8")
    per_word, kind = (4, np.int8) if mode == "quads" else (2, np.int16)
    limit = 127 if mode == "quads" else 2047
    rng = np.random.default_rng(count)
    rows, cols, last = tile.TILE_ROWS, tile.TILE_COLS, 3
    a = rng.integers(-limit, limit + 1, (rows, count, per_word)).astype(kind)
    b = rng.integers(-limit, limit + 1, (count, cols, per_word)).astype(kind)
    expected = np.einsum("rki,kci->rc", a.astype(np.int64), b.astype(np.int64))
    expected[last:] = expected[last]
    start = np.zeros(cols, np.int32)
    if mode == "quads" and target.QUADS is not None and target.QUADS.unsigned_left:
        a ^= np.int8(-128)
        start = (-128 * b.astype(np.int64).sum((0, 2))).astype(np.int32)
    block = tile.scaled(mode)

    @kernel
    def run(left, right, start, row_scale, col_scale, out, count):  # type: ignore[no-untyped-def]
        block(left, 5, count, 1, 3, right, 7, count, start, 0, row_scale, 1, col_scale, 2, out, 3,
              20)  # fmt: skip

    ones = np.ones(rows + cols, np.float32)
    out = np.full(3 + 20 * rows, np.float32(7))
    shift = np.zeros(8, np.int32)
    run(
        np.concatenate([shift[:5], a.reshape(-1).view(np.int32)]),
        np.concatenate([shift[:7], b.reshape(-1).view(np.int32)]), start, ones, ones, out, count,
    )  # fmt: skip
    assert out[3:].reshape(rows, 20)[:, :cols].tolist() == expected.astype(np.float32).tolist()
    assert (out[:3] == 7).all()
    assert (out[3:].reshape(rows, 20)[:, cols:] == 7).all()


@pytest.mark.parametrize("limit", [INT8_LIMIT, INT12_LIMIT])
@pytest.mark.parametrize("seed", range(4))
def test_a_float_left_operand_equals_a_quantised_one(
    compiled: kernels.Kernels, seed: int, limit: int
) -> None:
    """It is quantised a chunk at a time; the chunks must not show."""
    rng = np.random.default_rng(seed)
    m, n, inner = (int(i) for i in rng.integers(1, 300, 3))
    inner += 500 * (seed % 2)
    left = normal(seed, m, inner) * np.float32(10.0) ** rng.integers(-30, 30, (m, 1)).astype(
        np.float32
    )
    if limit == INT8_LIMIT:
        w = compiled.quantise_rows(normal(seed + 1, n, inner), limit)
        assert_same_bits(
            compiled.linear(left, w), compiled.linear(compiled.quantise_rows(left, limit), w)
        )
        return
    right = compiled.quantise_cols(normal(seed + 1, inner, n), limit)
    rows = compiled.quantise_rows(left, limit)
    assert_same_bits(compiled.linear_dx(left, right), compiled.linear_dx(rows, right))
    turned = np.ascontiguousarray(left.T)
    cols = compiled.quantise_cols(turned, limit)
    assert_same_bits(compiled.linear_dw(turned, right), compiled.linear_dw(cols, right))


def test_a_gradient_goes_where_it_is_asked_to(k_both: list[kernels.Kernels]) -> None:
    dy, x = normal(1, 9, 7), normal(2, 9, 5)
    for k in k_both:
        out = np.zeros((7, 5), np.float32)
        assert k.linear_dw(dy, x, out) is out
        assert_same_bits(out, k.linear_dw(dy, x))
        for wrong in (np.zeros((5, 7), np.float32), np.zeros((7, 5)), out.T):
            with pytest.raises(kernels.ShapeError):
                k.linear_dw(dy, x, wrong)
        out.flags.writeable = False
        with pytest.raises(kernels.ShapeError, match="read-only"):
            k.linear_dw(dy, x, out)
