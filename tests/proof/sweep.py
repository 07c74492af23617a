"""Functions of one float over every binary32 pattern: compiled against reference bit for bit, and
their error against binary64.

The error of binary64's own exp and log (below 1 ulp of binary64) decides the rounding to binary32
only next to a tie; there 60-digit decimals decide. May import: kernels.
"""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

import kernels

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

CHUNK = 1 << 16
"""Patterns at a time: temporary arrays that stay in the cache; more take three times as long."""
PATTERNS = 1 << 32
_NEAR = 2.0**-24
"""How near to a tie, in ulp of binary32, binary64's error could decide: far more than it can."""


@dataclasses.dataclass(frozen=True)
class Function:
    """One function; `low` and `high` bound where its error is stated."""

    ours: Callable[[kernels.Kernels, F32], F32]
    binary64: Callable[[F64], F64]
    decimal: Callable[[decimal.Decimal], decimal.Decimal]
    low: float
    high: float
    least: float = 0.0
    """Smallest magnitude for which it is stated. (Half of an odd subnormal is all but a tie.)"""


def _silu(ops: kernels.Kernels, x: F32) -> F32:
    column = x[:, None]
    return ops.swiglu(column, np.ones_like(column)).reshape(-1)


def _slope(ops: kernels.Kernels, x: F32) -> F32:
    """Derivative of silu, as the gradient of a gate."""
    column = x[:, None]
    ones = np.ones_like(column)
    return ops.swiglu_backward(ones, column, ones)[0].reshape(-1)


_EPS = np.float32(1e-5)


def _inverse_root(ops: kernels.Kernels, x: F32) -> F32:
    """1 / sqrt(x^2 + 1e-5), the norm of a row of one value."""
    return ops.rmsnorm(x[:, None], np.ones(1, np.float32), float(_EPS))[1]


FUNCTIONS = {
    "exp": Function(lambda ops, x: ops.exp(x), np.exp, lambda x: x.exp(), -87.33654, 88.37626),
    "log": Function(lambda ops, x: ops.log(x), np.log, lambda x: x.ln(), 2.0**-126, 3.4e38),
    "silu": Function(
        _silu,
        lambda x: x / (1 + np.exp(-x)),
        lambda x: x / (1 + (-x).exp()),
        low=-80.0,
        high=3.4e38,
        least=2.0**-100,
    ),
    "slope": Function(
        _slope,
        lambda x: (1 + x / (1 + np.exp(x))) / (1 + np.exp(-x)),
        lambda x: (1 + x / (1 + x.exp())) / (1 + (-x).exp()),
        low=-1.0,
        high=100.0,
    ),
    "inverse-root": Function(
        _inverse_root,
        lambda x: 1 / np.sqrt(x * x + float(_EPS)),
        lambda x: 1 / (x * x + decimal.Decimal(float(_EPS))).sqrt(),
        low=-1.8e19,
        high=1.8e19,
    ),
}


@dataclasses.dataclass
class Outcome:
    """What a sweep found."""

    patterns: int = 0
    differing: int = 0
    """Patterns for which compiled and reference form give other bits (any NaN for any other is
    no difference)."""
    measured: int = 0
    misrounded: int = 0
    """Of the measured: not the binary32 number nearest to the exact value."""
    near_ties: int = 0
    worst: float = 0.0
    """Largest error in ulp."""
    worst_at: float = 0.0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / max(1, self.measured)

    def add(self, other: Outcome) -> None:
        if other.worst > self.worst:
            self.worst, self.worst_at = other.worst, other.worst_at
        for name in ("patterns", "differing", "measured", "misrounded", "near_ties", "total"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def chunks(step: int) -> Iterator[F32]:
    """Every step-th pattern."""
    for start in range(0, PATTERNS, CHUNK * step):
        stop = min(start + CHUNK * step, PATTERNS)
        yield np.arange(start, stop, step, np.int64).astype(np.uint32).view(np.float32)


def examine(name: str, live: kernels.Kernels, reference: kernels.Kernels, x: F32) -> Outcome:
    """One chunk."""
    function = FUNCTIONS[name]
    y, expected = function.ours(live, x), function.ours(reference, x)
    same = (y.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(y) & np.isnan(expected))
    outcome = Outcome(patterns=x.size, differing=int((~same).sum()))
    with np.errstate(all="ignore"):
        inside = (x >= np.float32(function.low)) & (x <= np.float32(function.high))
        inside &= np.abs(x) >= np.float32(function.least)
    x, y = x[inside], y[inside]
    if not x.size:
        return outcome
    exact = function.binary64(x.astype(np.float64))
    nearest = exact.astype(np.float32)
    ulp = np.spacing(np.abs(nearest)).astype(np.float64)
    errors = np.abs(y - exact) / ulp
    towards = np.where(exact > nearest, np.float32(np.inf), np.float32(-np.inf))
    halfway = (nearest.astype(np.float64) + np.nextafter(nearest, towards)) / 2
    tie = np.abs(halfway - exact) / ulp < _NEAR
    for i in np.flatnonzero(tie):
        nearest[i] = _nearest(function, x[i], nearest[i])
    worst = int(np.argmax(errors))
    outcome.measured, outcome.near_ties = x.size, int(tie.sum())
    outcome.misrounded = int((y != nearest).sum())
    outcome.worst, outcome.worst_at = float(errors[worst]), float(x[worst])
    outcome.total = float(errors.sum())
    return outcome


def _nearest(function: Function, x: np.float32, guess: np.float32) -> np.float32:
    """The binary32 number nearest to the function of x, which is next to the guess."""
    with decimal.localcontext(decimal.Context(prec=60)):
        exact = function.decimal(decimal.Decimal(float(x)))
        around = (np.nextafter(guess, np.float32(end)) for end in (-np.inf, np.inf))
        return min((guess, *around), key=lambda value: abs(decimal.Decimal(float(value)) - exact))


def sweep(
    name: str,
    live: kernels.Kernels,
    reference: kernels.Kernels,
    step: int = 1,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """Every step-th pattern of a function; `told` is called after each chunk."""
    found = Outcome()
    for x in chunks(step):
        found.add(examine(name, live, reference, x))
        told(found)
    return found
