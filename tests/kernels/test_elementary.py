"""exp and log: error bounds against binary64, domain and edges."""

from __future__ import annotations

import numpy as np

import kernels
from kernels.constants import EXP_HIGH, EXP_LOW


def every(step: int, low: float, high: float) -> np.ndarray:
    """Every step-th float32 between two positive numbers."""
    first, last = (int(np.float32(x).view(np.int32)) for x in (low, high))
    return np.arange(first, last, step).astype(np.int32).view(np.float32)


def ulps(y: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(y - exact) / np.spacing(np.abs(exact).astype(np.float32))))


def test_exp_is_within_one_ulp(compiled: kernels.Kernels) -> None:
    x = every(211, 2.0**-20, 87.33)
    for signed in (x, -x):
        assert ulps(compiled.exp(signed), np.exp(signed.astype(np.float64))) < 1.0


def test_log_is_within_one_ulp(compiled: kernels.Kernels) -> None:
    x = np.concatenate([every(1009, 2.0**-126, 3e38), every(17, 0.7, 1.4)])
    x = x[x != 1]
    assert ulps(compiled.log(x), np.log(x.astype(np.float64))) < 1.0


def test_edges_of_exp(compiled: kernels.Kernels, reference: kernels.Kernels) -> None:
    below = np.nextafter(EXP_LOW, np.float32(-100))
    x = np.array([0, -0.0, EXP_LOW, below, -1e30, -np.inf, EXP_HIGH, 89, np.inf], np.float32)
    y = reference.exp(x)
    assert y.tobytes() == compiled.exp(x).tobytes()
    assert y[:2].tolist() == [1, 1]
    assert y[2] >= 2.0**-126
    assert y[3:6].tolist() == [0, 0, 0]
    assert not np.signbit(y).any()
    assert y[6] == y[7] == y[8]
    assert np.isfinite(y[8])


def test_log_of_one_is_zero(reference: kernels.Kernels) -> None:
    assert reference.log(np.ones(1, np.float32)).tolist() == [0.0]
