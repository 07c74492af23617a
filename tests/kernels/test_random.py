"""Counter-based numbers: pinned values, independence of how they are asked for, distribution."""

from __future__ import annotations

import numpy as np

import kernels

PINNED = [4371719355105619978, 1528516087104071685, 16165184558626042316]
PINNED_NORMAL = [994361999, 1017623183, 1000795668]


def test_values_are_pinned() -> None:
    """A change here is a change of the arithmetic: every run's weights and order depend on it."""
    assert [int(x) for x in kernels.random_u64(1, "test", np.arange(3))] == PINNED
    assert kernels.normal_weights(1, "test", 3, 0.02).view(np.uint32).tolist() == PINNED_NORMAL


def test_a_value_depends_on_its_counter_only() -> None:
    many = kernels.random_u64(5, "p", 3, np.arange(1000))
    assert int(kernels.random_u64(5, "p", 3, 777)[0]) == int(many[777])
    w = kernels.normal_weights(5, "p", 300_000, 1.0)
    assert np.array_equal(kernels.normal_weights(5, "p", 1000, 1.0), w[:1000])


def test_seed_purpose_and_every_index_part_matter() -> None:
    seen = {
        int(kernels.random_u64(*key)[0])
        for key in ((1, "a", 0), (2, "a", 0), (1, "b", 0), (1, "a", 1), (1, "a", 0, 0), (1, "a"))
    }
    assert len(seen) == 6
    assert len(np.unique(kernels.random_u64(1, "a", np.arange(50)[:, None], np.arange(50)))) == 2500


def test_bits_are_balanced() -> None:
    words = kernels.random_u64(9, "bits", np.arange(20_000))
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64)
    assert np.abs(bits.mean(0) - 0.5).max() < 0.02


def test_weights_are_nearly_normal() -> None:
    w = kernels.normal_weights(3, "w", 400_000, 0.02).astype(np.float64) / 0.02
    assert abs(w.mean()) < 0.01
    assert abs(w.std() - 1) < 0.01
    assert abs((np.abs(w) < 1).mean() - 0.683) < 0.005
    assert abs((w**4).mean() - 2.9) < 0.05  # 3 - 1.2/12
    assert np.abs(w).max() < 6
