"""Norm, rotary embedding, SwiGLU, embedding and loss against binary64 forms and their slopes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kernels

from .helpers import assert_same_bits, normal

EPS = 1e-5


def slope(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Gradient of sum(f(x) * dy) in binary64 by central differences."""
    x = x.astype(np.float64)
    gradient = np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        kept = x[place]
        x[place] = kept + 1e-6
        above = f(x)
        x[place] = kept - 1e-6
        gradient[place] = ((above - f(x)) * dy).sum() / 2e-6
        x[place] = kept
    return gradient


def test_rmsnorm(compiled: kernels.Kernels) -> None:
    x, gain, dy = normal(1, 5, 19), normal(2, 19), normal(3, 5, 19)

    def exact(x: np.ndarray, gain: np.ndarray = gain) -> np.ndarray:
        return x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + EPS) * gain

    y, inv = compiled.rmsnorm(x, gain, EPS)
    np.testing.assert_allclose(y, exact(x), rtol=1e-5)
    dx, dgain = compiled.rmsnorm_backward(dy, x, gain, inv)
    np.testing.assert_allclose(dx, slope(exact, x, dy), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dgain, slope(lambda g: exact(x, g), gain, dy), rtol=1e-4, atol=1e-5)


def test_swiglu(compiled: kernels.Kernels) -> None:
    gate, up, dh = normal(1, 4, 9, scale=3), normal(2, 4, 9), normal(3, 4, 9)

    def exact(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return gate / (1 + np.exp(-gate.astype(np.float64))) * up

    np.testing.assert_allclose(compiled.swiglu(gate, up), exact(gate, up), rtol=1e-5, atol=1e-7)
    dgate, dup = compiled.swiglu_backward(dh, gate, up)
    np.testing.assert_allclose(dgate, slope(lambda g: exact(g, up), gate, dh), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dup, slope(lambda u: exact(gate, u), up, dh), rtol=1e-4, atol=1e-5)


def test_swiglu_of_extreme_gates_is_finite(compiled: kernels.Kernels) -> None:
    gate = np.array([[-3e38, -1e5, -90, 90, 1e5, 3e38]], np.float32)
    h = compiled.swiglu(gate, np.ones_like(gate))
    np.testing.assert_allclose(h[0, 3:], gate[0, 3:])
    assert np.abs(h[0, 1:3]).max() < 1e-30
    assert np.isfinite(h).all()


def test_rope_rotates_each_pair_by_its_position(compiled: kernels.Kernels) -> None:
    seq_len, heads, dim = 6, 2, 8
    cos, sin = kernels.rope_tables(seq_len, dim)
    x = normal(1, 2 * seq_len, heads * dim)
    y = compiled.rope(x, cos, sin)
    pairs = x.reshape(-1, heads, 2, dim // 2)
    turned = pairs[:, :, 0] + 1j * pairs[:, :, 1].astype(np.float64)
    angle = np.arange(seq_len)[:, None] * 10_000.0 ** (-np.arange(dim // 2) * 2 / dim)
    turned *= np.exp(1j * np.tile(angle, (2, 1)))[:, None, :]
    expected = np.stack([turned.real, turned.imag], 2).reshape(y.shape)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(compiled.rope_backward(y, cos, sin), x, rtol=1e-5, atol=1e-6)


def test_rope_of_one_token_equals_its_row(compiled: kernels.Kernels) -> None:
    cos, sin = kernels.rope_tables(9, 4)
    x = normal(1, 9, 12)
    full = compiled.rope(x, cos, sin)
    for t in range(9):
        row = slice(t, t + 1)
        assert_same_bits(compiled.rope(x[row], cos[row], sin[row]), full[row])


def test_embedding_adds_tokens_in_ascending_order(compiled: kernels.Kernels) -> None:
    ids = np.array([2, 0, 2, 2], np.int32)
    assert_same_bits(compiled.embed(normal(1, 3, 5), ids), normal(1, 3, 5)[ids])
    # In this order 2^24 + 1 + 1 stays 2^24; the other way round it would not.
    dy = np.array([[2.0**24], [5.0], [1.0], [1.0]], np.float32)
    gradient = np.zeros((3, 1), np.float32)
    compiled.embed_backward(dy, ids, gradient)
    assert gradient.tolist() == [[5.0], [0.0], [2.0**24]]


def test_column_sums_are_in_ascending_token_order(
    compiled: kernels.Kernels, reference: kernels.Kernels
) -> None:
    x = np.ones((4, 1), np.float32)
    dy = np.array([[2.0**24], [1.0], [1.0], [-(2.0**24)]], np.float32)
    for k in (compiled, reference):
        _, dgain = k.rmsnorm_backward(dy, x, x[0], np.ones(4, np.float32))
        assert dgain.tolist() == [0.0]


def test_ids_out_of_range_are_refused(compiled: kernels.Kernels) -> None:
    table = normal(1, 3, 5)
    for bad in (-1, 3):
        ids = np.array([0, bad], np.int32)
        with pytest.raises(kernels.ShapeError):
            compiled.embed(table, ids)
        with pytest.raises(kernels.ShapeError):
            compiled.cross_entropy(normal(1, 2, 3), ids)
        with pytest.raises(kernels.ShapeError):
            compiled.embed_backward(normal(1, 2, 5), ids, table)


def test_cross_entropy(compiled: kernels.Kernels) -> None:
    logits = normal(1, 7, 21, scale=3)
    targets = np.arange(7, dtype=np.int32)

    def exact(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        return np.log(np.exp(x).sum(1)) - x[np.arange(7), targets]

    loss, dlogits = compiled.cross_entropy(logits, targets)
    assert abs(loss / 2**24 - exact(logits).sum()) < 1e-5
    expected = slope(exact, logits, np.full(7, 1 / 7))
    np.testing.assert_allclose(dlogits, expected, rtol=1e-4, atol=1e-6)


def test_a_non_finite_logit_is_refused(
    compiled: kernels.Kernels, reference: kernels.Kernels
) -> None:
    for k in (compiled, reference):
        for bad in (np.nan, np.inf, -np.inf):
            logits = normal(1, 3, 4)
            logits[2, 3] = bad
            with pytest.raises(kernels.NonFiniteInputError, match="logit"):
                k.cross_entropy(logits, np.zeros(3, np.int32))


def test_a_loss_that_cannot_be_counted_is_refused(
    compiled: kernels.Kernels, reference: kernels.Kernels
) -> None:
    for k in (compiled, reference):
        for height in (1e12, 3e38):
            logits = np.array([[height, -height]], np.float32)
            assert k.cross_entropy(logits, np.zeros(1, np.int32))[0] == 0
            with pytest.raises(kernels.NonFiniteInputError, match="loss"):
                k.cross_entropy(logits, np.ones(1, np.int32))
