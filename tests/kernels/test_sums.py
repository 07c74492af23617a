"""Sums go without a flush just as far as int32 holds them, and not one unit further."""

from __future__ import annotations

import numpy as np
import pytest

import kernels
from kernels import INT12_LIMIT, Quantised
from kernels.jit import products, sums
from kernels.jit.sums import INT12_FLUSH, MAGNITUDES

from .helpers import F32, assert_same_bits

FULL = INT12_LIMIT


def column(inner: int, total: int, first: int = 0) -> F32:
    """[inner]: magnitudes from `first` on that add up to `total`, the largest at the limit."""
    x = np.zeros(inner, np.int64)
    x[first], rest = FULL, x[first + 1 :]
    rest[:] = (total - FULL) // rest.size
    rest[: (total - FULL) % rest.size] += 1
    assert np.abs(x).sum() == total
    assert np.abs(x).max() == FULL
    return x.astype(np.float32)


def right(*columns: F32) -> F32:
    """[K, 17]: these columns last, ones and a value at the limit before them."""
    x = np.ones((columns[0].size, 17), np.float32)
    x[0] = FULL
    x[:, 17 - len(columns) :] = np.stack(columns, axis=1)
    return np.ascontiguousarray(x)


def block(x: F32) -> int:
    """What is summed in int32 at a time if x is on the right."""
    q = kernels.load().quantise_cols(x)
    assert q.q.tolist() == x.tolist()  # every scale is one
    return products._panels(q, False).block


def test_the_bound_is_the_largest_that_int32_allows() -> None:
    assert FULL * MAGNITUDES <= 2**31 - 1 < FULL * (MAGNITUDES + 1)


@pytest.mark.parametrize(("count", "long"), [(256, 256), (257, 257), (1024, 1024), (1025, 513)])
def test_blocks_are_even(count: int, long: int) -> None:
    assert sums.long_block(count) == long
    assert sums.even_block(count, 256) == -(-count // -(-count // 256)) <= 256


def products_of(k: kernels.Kernels, signs: F32, x: F32) -> list[F32]:
    """All that meets x[K, N] on the left: rows at the limit with the signs given, as floats and
    laid out before."""
    rows = np.ascontiguousarray(np.stack([signs, -signs, np.abs(signs)]) * np.float32(FULL))
    cols = np.ascontiguousarray(rows.T)
    return [
        k.linear_dx(rows, x),
        k.linear_dx(k.quantise_rows(rows, FULL), x),
        k.linear_dw(cols, x),
        k.linear_dw(k.quantise_cols(cols, FULL), x),
    ]


@pytest.mark.parametrize("inner", [514, 1023, 1024, 2048, 2050, 4096, 5001])
@pytest.mark.parametrize("over", [0, 1])
def test_what_would_overflow_is_flushed(
    compiled: kernels.Kernels, reference: kernels.Kernels, inner: int, over: int
) -> None:
    """The last column's last block has the magnitudes that int32 just holds, or one more, against
    a left operand at its limit throughout. A sum one over the bound overflows."""
    long = sums.long_block(-(-inner // 2))
    first = (-(-inner // 2) - 1) // long * long * 2
    values = column(inner, MAGNITUDES + over, first)
    values[first::3] *= -1
    signs = np.where(values < 0, np.float32(-1), np.float32(1))
    x = right(values)
    assert block(x) == (sums.even_block(-(-inner // 2), int(INT12_FLUSH)) if over else long)
    assert over == (FULL * int(np.abs(values[first:]).sum()) > 2**31 - 1)
    for ours, expected in zip(
        products_of(compiled, signs, x), products_of(reference, signs, x), strict=True
    ):
        assert_same_bits(ours, expected)


def mixed(inner: int, total: int) -> tuple[F32, F32]:
    values = column(inner, total)
    values[::3] *= -1
    return values, np.where(values < 0, np.float32(-1), np.float32(1))


@pytest.mark.parametrize("wrong", ["bound", "last column", "signs"])
def test_a_wrong_bound_would_be_seen(
    compiled: kernels.Kernels,
    reference: kernels.Kernels,
    monkeypatch: pytest.MonkeyPatch,
    wrong: str,
) -> None:
    """One unit too generous, a column not looked at, magnitudes added with their signs: each lets
    int32 overflow, and the product differs."""
    values, signs = mixed(1024, MAGNITUDES + 1)
    x = right(values)

    def largest(q: np.ndarray, rows: int, total: np.ndarray) -> int:
        assert q.shape == (rows, total.size)  # one block
        wide = q.astype(np.int64)
        if wrong == "bound":
            return int(np.abs(wide).sum(0).max()) - 1
        if wrong == "last column":
            return int(np.abs(wide).sum(0)[:-1].max())
        return int(np.abs(wide.sum(0)).max())

    expected = products_of(reference, signs, x)
    for ours, right_one in zip(products_of(compiled, signs, x), expected, strict=True):
        assert_same_bits(ours, right_one)
    monkeypatch.setattr(sums, "_largest_sum", largest)
    unchecked = compiled.observed(lambda *_: None)  # a spot check would see it at its turn
    for ours, right_one in zip(products_of(unchecked, signs, x), expected, strict=True):
        assert ours.tobytes() != right_one.tobytes()


@pytest.mark.parametrize("over", [0, 1])
def test_small_rows_on_the_left_need_no_flush_either(
    compiled: kernels.Kernels, reference: kernels.Kernels, over: int
) -> None:
    """The right operand is at its limit throughout, so it is the left one that decides."""
    values, signs = mixed(1024, MAGNITUDES + over)
    x = np.ascontiguousarray(np.repeat(signs[:, None], 5, axis=1) * np.float32(FULL))
    rows = np.ascontiguousarray(np.stack([values, -values]))
    assert block(x) == INT12_FLUSH
    for k_rows, name in ((rows, "linear_dx"), (np.ascontiguousarray(rows.T), "linear_dw")):
        ours, expected = (getattr(k, name)(k_rows, x) for k in (compiled, reference))
        assert_same_bits(ours, expected)


def test_ordinary_operands_are_not_flushed(compiled: kernels.Kernels) -> None:
    """Activations and weights with a bell curve, as at the start of a run."""
    rng = np.random.default_rng(1)
    for inner in (672, 1024, 1376, 4096):
        x = rng.standard_normal((inner, 40)).astype(np.float32)
        q: Quantised = compiled.quantise_cols(x)
        assert products._panels(q, False).block == sums.long_block(inner // 2)
