"""Draws of the next token: their shares, their ties, and that nothing but integers decides."""

from __future__ import annotations

import numpy as np
import pytest

from p2pnode.errors import NonFiniteError
from p2pnode.train.arithmetic import kernels
from p2pnode.train.sampler import WEIGHT_ONE, Sampler

VOCAB = 256


@pytest.fixture(scope="module")
def ops():
    return kernels.load(reference=True)


@pytest.fixture(scope="module")
def logits():
    """Tokens 65, 66, 67 with shares 0.5, 0.3, 0.2; the rest next to never."""
    logits = np.full(VOCAB, -50, np.float32)
    logits[[65, 66, 67]] = np.log([0.5, 0.3, 0.2]).astype(np.float32)
    return logits


def drawn(ops, logits, n=200, temperature=1.0, top_k=0, top_p=1.0, seed=5):
    sampler = Sampler(ops, temperature, top_k, top_p, seed)
    return [sampler.pick(logits, i) for i in range(n)]


def test_draws_follow_the_probabilities(ops, logits):
    tokens = drawn(ops, logits, 3_000)
    for token, share in ((65, 0.5), (66, 0.3), (67, 0.2)):
        assert tokens.count(token) / 3_000 == pytest.approx(share, abs=0.03)


def test_a_low_temperature_sharpens_them(ops, logits):
    tokens = drawn(ops, logits, 1_000, temperature=0.5)  # squares: 25, 9, 4 of 38
    assert tokens.count(65) / 1_000 == pytest.approx(25 / 38, abs=0.05)


def test_top_k_keeps_the_likeliest(ops, logits):
    assert set(drawn(ops, logits, top_k=2)) == {65, 66}
    assert set(drawn(ops, logits, top_k=1)) == {65}


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-12, {65}), (0.49, {65}), (0.51, {65, 66}), (0.79, {65, 66}), (0.81, {65, 66, 67})],
)
def test_top_p_keeps_the_fewest_that_hold_the_share(ops, logits, top_p, kept):
    assert set(drawn(ops, logits, top_p=top_p)) == kept


def test_top_p_counts_within_the_top_k(ops, logits):
    # Of 65 and 66 alone the first has 5/8.
    assert set(drawn(ops, logits, top_k=2, top_p=0.62)) == {65}
    assert set(drawn(ops, logits, top_k=2, top_p=0.63)) == {65, 66}


def test_all_of_the_share_changes_no_draw(ops, logits):
    assert drawn(ops, logits, top_p=1.0, seed=8) == drawn(ops, logits, top_p=1 - 2**-40, seed=8)


def test_equal_logits_rank_by_number(ops):
    flat = np.zeros(VOCAB, np.float32)
    flat[::2] = -0.0  # no order between zeros
    assert Sampler(ops, 0, 0, 1.0, 1).pick(flat, 0) == 0
    assert set(drawn(ops, flat, top_k=3)) == {0, 1, 2}


def test_draws_are_those_of_exact_integers(ops):
    """The same by Python's integers alone, from the definition."""
    logits = (np.arange(VOCAB, dtype=np.float32) * np.float32(0.37)) % np.float32(5)
    order = sorted(range(VOCAB), key=lambda i: (-float(logits[i]), i))[:100]
    top = logits[order[0]]
    weights = [
        int(np.float64(ops.exp((logits[[i]] - top) / np.float32(0.7))[0]) * WEIGHT_ONE)
        for i in order
    ]
    share = int(0.9 * 2**32)
    kept = next(n for n in range(1, 101) if sum(weights[:n]) >= (sum(weights) * share) >> 32)
    expected = []
    for position in range(50):
        draw = int(kernels.random_u64(11, "generate", position)[0])
        point = (draw * sum(weights[:kept])) >> 64
        expected.append(next(order[n] for n in range(kept) if sum(weights[: n + 1]) > point))
    assert drawn(ops, logits, 50, 0.7, 100, 0.9, 11) == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(ops, bad):
    logits = np.zeros(VOCAB, np.float32)
    logits[9] = bad
    with pytest.raises(NonFiniteError):
        Sampler(ops, 1.0, 0, 1.0, 1).pick(logits, 0)
