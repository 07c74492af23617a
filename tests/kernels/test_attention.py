"""Attention: nothing leaks from later positions, cached steps give the same bits, gradients."""

from __future__ import annotations

import numpy as np
import pytest

import kernels

from .helpers import assert_same_bits, normal

BATCH, SEQ, HEADS, DIM = 2, 23, 3, 10
BOTH = pytest.mark.parametrize("which", ["compiled", "reference"])


@pytest.fixture
def k(which: str, request: pytest.FixtureRequest) -> kernels.Kernels:
    loaded: kernels.Kernels = request.getfixturevalue(which)
    return loaded


def qkv(seed: int) -> list[np.ndarray]:
    return [normal(seed + i, BATCH * SEQ, HEADS * DIM) for i in range(3)]


def float_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The same in binary64 without quantisation."""
    q, k, v = (
        x.astype(np.float64).reshape(BATCH, SEQ, HEADS, DIM).transpose(0, 2, 1, 3)
        for x in (q, k, v)
    )
    s = q @ k.swapaxes(-1, -2) / np.sqrt(DIM)
    s = np.where(np.tril(np.ones((SEQ, SEQ), bool)), s, -np.inf)
    a = np.exp(s - s.max(-1, keepdims=True))
    a /= a.sum(-1, keepdims=True)
    return (a @ v).transpose(0, 2, 1, 3).reshape(BATCH * SEQ, HEADS * DIM)


@BOTH
@pytest.mark.parametrize("position", [0, 1, 6, 15, SEQ - 1])
def test_no_row_depends_on_a_later_position_or_another_sequence(
    k: kernels.Kernels, position: int
) -> None:
    q, key, v = qkv(1)
    before, _ = k.attention(q, key, v, BATCH, HEADS)
    for array in (q, key, v):
        array[SEQ + position] = normal(99, HEADS * DIM, scale=50)
    after, _ = k.attention(q, key, v, BATCH, HEADS)
    assert_same_bits(after[: SEQ + position], before[: SEQ + position])
    assert not np.array_equal(after[SEQ + position :], before[SEQ + position :])


@BOTH
def test_cached_steps_equal_the_full_forward(k: kernels.Kernels) -> None:
    q, key, v = qkv(2)
    full, _ = k.attention(q, key, v, BATCH, HEADS)
    for sequence in range(BATCH):
        cache: list[list[np.ndarray]] = [[], [], [], []]
        for t in range(SEQ):
            row = slice(sequence * SEQ + t, sequence * SEQ + t + 1)
            parts = (*k.quantise_heads(key[row], HEADS), *k.quantise_heads(v[row], HEADS))
            for kept, part in zip(cache, parts, strict=True):
                kept.append(part)
            step = k.attention_step(q[row], *(np.concatenate(kept) for kept in cache))
            assert_same_bits(step, full[row])


def test_close_to_float_attention(compiled: kernels.Kernels) -> None:
    q, key, v = qkv(3)
    o, _ = compiled.attention(q, key, v, BATCH, HEADS)
    exact = float_attention(q, key, v)
    assert np.linalg.norm(o - exact) < 0.02 * np.linalg.norm(exact)


def test_gradients_agree_with_finite_differences(compiled: kernels.Kernels) -> None:
    inputs = qkv(4)
    do = normal(9, BATCH * SEQ, HEADS * DIM)
    _, saved = compiled.attention(*inputs, BATCH, HEADS)
    step = 1e-5
    for index, gradient in enumerate(compiled.attention_backward(do, saved)):
        numeric = np.zeros(gradient.shape)
        for place in np.ndindex(gradient.shape):
            if (place[0] * 31 + place[1]) % 11:
                continue  # one in eleven is enough, and cheap
            moved = [x.astype(np.float64) for x in inputs]
            moved[index][place] += step
            above = (float_attention(*moved) * do).sum()
            moved[index][place] -= 2 * step
            numeric[place] = (above - (float_attention(*moved) * do).sum()) / (2 * step)
        checked = numeric != 0
        g, n = gradient[checked], numeric[checked]
        assert g @ n / (np.linalg.norm(g) * np.linalg.norm(n)) > 0.999
        assert np.linalg.norm(g - n) < 0.05 * np.linalg.norm(n)


@BOTH
def test_scores_that_overflow_are_refused(k: kernels.Kernels) -> None:
    q, key, v = qkv(5)
    q[3] = 3e38
    key[2] = 3e38
    with pytest.raises(kernels.NonFiniteInputError, match="score"):
        k.attention(q, key, v, BATCH, HEADS)


@BOTH
def test_shapes_are_checked(k: kernels.Kernels) -> None:
    q, key, v = qkv(6)
    _, saved = k.attention(q, key, v, BATCH, HEADS)
    k8, sk = k.quantise_heads(key, HEADS)
    wrong = [
        lambda: k.attention(q, key, v, BATCH, 4),
        lambda: k.attention(q, key, v, 5, HEADS),
        lambda: k.attention(q, key, v[1:].copy(), BATCH, HEADS),
        lambda: k.attention_backward(q[1:].copy(), saved),
        lambda: k.attention_step(q[:2].copy(), k8, sk, k8, sk),
        lambda: k.attention_step(q[:1].copy(), k8, sk, k8[1:].copy(), sk),
        lambda: k.quantise_heads(key, 7),
    ]
    for call in wrong:
        with pytest.raises(kernels.ShapeError):
            call()
