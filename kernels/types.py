"""Array aliases and the plain data that operations hand to each other.

May import: numpy only.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]
Ints = npt.NDArray[Any]

INT8_LIMIT = 127
"""Largest magnitude of a forward operand."""
INT12_LIMIT = 2047
"""Largest magnitude of a backward operand (12 bits with sign, kept in int16)."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Quantised:
    """A matrix as integers and one binary32 scale per row or per column.

    q: int8 (limit 127) or int16 (limit 2,047), the shape of the source.
    scale: float32, one per row (`by_rows`) or per column; source ~ q * scale. 0 where the
    source's largest magnitude is below 2^-100.
    tiles: forms of q that a product has laid out for itself; filled on first use, so that a
    shared operand is laid out once. Not part of the value.
    """

    q: Ints
    scale: F32
    limit: int
    by_rows: bool
    tiles: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class AttentionSaved:
    """What attention keeps for its backward form: references to its inputs and per-row softmax.

    The T x T probabilities are not kept; the backward form recomputes them from these, bit for
    bit.
    q, k, v: the float32 inputs, (B*T, H*D). q8, k8, v8: int8 (B*T*H, D), with scales (B*T*H,).
    peak, inverse_sum: float32 (B, H, T), the largest score of each row and 1 / sum of exp.
    """

    q: F32
    k: F32
    v: F32
    q8: Quantised
    k8: Quantised
    v8: Quantised
    peak: F32
    inverse_sum: F32
    batch: int
    heads: int


@dataclasses.dataclass(frozen=True, slots=True)
class AdamScalars:
    """The binary32 constants of one Adam step, each rounded once from its binary64 value."""

    lr: np.float32
    beta1: np.float32
    one_minus_beta1: np.float32
    beta2: np.float32
    one_minus_beta2: np.float32
    c1: np.float32
    """1 - beta1^t"""
    c2: np.float32
    """1 - beta2^t"""
    eps: np.float32
    weight_decay: np.float32
    clip: np.float32
    """Factor on the gradient, min(1, c / (norm + 1e-6))."""
