"""Seeded arrays and bit-pattern comparison for the kernel tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.types import AttentionSaved, Quantised

F32 = np.ndarray[Any, np.dtype[np.float32]]


def normal(seed: int, *shape: int, scale: float = 1.0) -> F32:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def leaves(result: Any) -> list[np.ndarray]:
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in leaves(part)]
    if isinstance(result, Quantised):
        return [result.q, result.scale]
    if isinstance(result, AttentionSaved):
        return [result.peak, result.inverse_sum]
    return [np.asarray(result)]


def assert_same_bits(a: Any, b: Any) -> None:
    """Equal shapes, dtypes and bit patterns: -0 is not +0."""
    for x, y in zip(leaves(a), leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert x.tobytes() == y.tobytes()
