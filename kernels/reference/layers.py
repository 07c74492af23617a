"""Norm, rotary embedding, SwiGLU, residual and embedding. May import: constants, types, siblings.

One rounding per operation, left to right as written.
"""

from __future__ import annotations

import numpy as np

from ..constants import ONE
from ..types import F32, I32
from .elementary import exp
from .order import column_sum, lane_sum


def rmsnorm(x: F32, gain: F32, eps: np.float32) -> tuple[F32, F32]:
    """x[M, K], gain[K] -> y[M, K] = x * inv * gain, inv[M] = 1 / sqrt(mean(x^2) + eps)."""
    mean_square = lane_sum(x * x) / np.float32(x.shape[1])
    inv = ONE / np.sqrt(mean_square + eps)
    return x * inv[:, None] * gain, inv


def rmsnorm_backward(dy: F32, x: F32, gain: F32, inv: F32) -> tuple[F32, F32]:
    """-> dx[M, K], dgain[K] (summed over tokens in ascending order)."""
    normed = x * inv[:, None]
    weighted = dy * gain
    along = lane_sum(weighted * normed) / np.float32(x.shape[1])
    dx = (weighted - normed * along[:, None]) * inv[:, None]
    return dx, column_sum(dy * normed)


def _halves(x: F32, cos: F32) -> tuple[F32, F32, F32]:
    """Views (sequences, T, H, D/2) of the first and second half of each head, and the output."""
    seq_len, half = cos.shape
    heads = x.shape[1] // (2 * half)
    parts = x.reshape(-1, seq_len, heads, 2, half)
    return parts[:, :, :, 0], parts[:, :, :, 1], np.empty(parts.shape, np.float32)


def rope(x: F32, cos: F32, sin: F32) -> F32:
    """Rotate the pair (i, i + D/2) of each head of x[M, H*D] by its position's angle."""
    a, b, out = _halves(x, cos)
    cos, sin = cos[:, None, :], sin[:, None, :]
    out[:, :, :, 0] = a * cos - b * sin
    out[:, :, :, 1] = b * cos + a * sin
    return out.reshape(x.shape)


def rope_backward(dy: F32, cos: F32, sin: F32) -> F32:
    """Rotate back."""
    a, b, out = _halves(dy, cos)
    cos, sin = cos[:, None, :], sin[:, None, :]
    out[:, :, :, 0] = a * cos + b * sin
    out[:, :, :, 1] = b * cos - a * sin
    return out.reshape(dy.shape)


def swiglu(gate: F32, up: F32) -> F32:
    """silu(gate) * up, silu(x) = x * (1 / (1 + exp(-x)))."""
    return gate * (ONE / (ONE + exp(-gate))) * up


def swiglu_backward(dh: F32, gate: F32, up: F32) -> tuple[F32, F32]:
    """-> dgate, dup."""
    sigmoid: F32 = ONE / (ONE + exp(-gate))
    slope: F32 = np.multiply(sigmoid, ONE + gate * (ONE - sigmoid))
    dgate: F32 = dh * up * slope
    dup: F32 = dh * (gate * sigmoid)
    return dgate, dup


def add(a: F32, b: F32) -> F32:
    """a + b."""
    return a + b


def embed(table: F32, ids: I32) -> F32:
    """table[V, K], ids[M] -> [M, K]."""
    return table[ids]


def embed_backward(dy: F32, ids: I32, dtable: F32) -> None:
    """Add row m of dy[M, K] to row ids[m] of dtable[V, K], in ascending m, in place."""
    for row, token in zip(dy, ids, strict=True):
        dtable[token] += row
