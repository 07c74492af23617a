"""Causal attention and its backward form. May import: constants, errors, types, siblings.

Index names: b sequence, h head, i query, j key (j <= i), d channel of a head.
"""

from __future__ import annotations

import numpy as np

from .. import constants as c
from ..errors import NonFiniteInputError
from ..types import F32, I8, INT8_LIMIT, INT12_LIMIT, AttentionSaved, Quantised
from .elementary import exp
from .order import (
    all_finite,
    from_total_order,
    integer_max,
    lane_sum,
    magnitude_bits,
    total_order,
)
from .products import epilogue, integer_product, quantise_along, quantise_rows, scales


def score_factor(head_dim: int) -> np.float32:
    """1 / sqrt(D)."""
    return np.float32(c.ONE / np.sqrt(np.float32(head_dim)))


def _heads(x: F32, batch: int, heads: int) -> F32:
    """(B*T, H*D) -> contiguous (B, H, T, D)."""
    parts = x.reshape(batch, -1, heads, x.shape[1] // heads)
    return np.ascontiguousarray(parts.transpose(0, 2, 1, 3))


def _tokens(x: F32) -> F32:
    """(B, H, T, D) -> contiguous (B*T, H*D)."""
    batch, heads, seq_len, dim = x.shape
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch * seq_len, heads * dim)


def _split(rows: Quantised, batch: int, heads: int) -> tuple[I8, F32]:
    """Quantised (B*T*H, D) -> q (B, H, T, D), scale (B, H, T)."""
    q = rows.q.reshape(batch, -1, heads, rows.q.shape[1]).transpose(0, 2, 1, 3)
    return q, rows.scale.reshape(batch, -1, heads).transpose(0, 2, 1)


def scores(q8: I8, sq: F32, k8: I8, sk: F32) -> F32:
    """(..., I, D), (..., I), (..., J, D), (..., J) -> scores (..., I, J).

    The factor 1/sqrt(D) is multiplied into the row scale.
    """
    row_scale = sq * score_factor(q8.shape[-1])
    total = integer_product(q8, np.swapaxes(k8, -1, -2))
    return epilogue(total, row_scale[..., None], sk[..., None, :])


def softmax(s: F32, seen: np.ndarray) -> tuple[F32, F32, F32]:
    """Scores (..., I, J), which j each i sees -> probabilities, peak (..., I), 1/sum (..., I)."""
    if not all_finite(np.where(seen, s, c.ZERO)):
        raise NonFiniteInputError("an attention score is NaN or infinite; q or k is too large.")
    key = np.where(seen, total_order(s), np.int32(-(2**31)))
    peak = from_total_order(integer_max(key, -1))
    e = np.where(seen, exp(s - peak[..., None]), c.ZERO)
    inverse_sum = c.ONE / lane_sum(e)
    return e * inverse_sum[..., None], peak, inverse_sum


def mix(a: F32, v8: I8, sv: F32) -> F32:
    """Probabilities (..., I, J), values (..., J, D), scales (..., J) -> (..., I, D).

    The scale of v_j is multiplied into a_ij before row i is quantised, so that no scale of row i
    depends on a position after i.
    """
    folded = a * sv[..., None, :]
    scale, inverse = scales(integer_max(magnitude_bits(folded), -1)[..., None], INT8_LIMIT)
    a8 = np.rint(folded * inverse).astype(np.int8)
    return integer_product(a8, v8).astype(np.float32) * scale


def attention(q: F32, k: F32, v: F32, batch: int, heads: int) -> tuple[F32, AttentionSaved]:
    """q, k, v (B*T, H*D) -> o (B*T, H*D) and what the backward form needs."""
    dim = q.shape[1] // heads
    q8, k8, v8 = (quantise_rows(x.reshape(-1, dim), INT8_LIMIT) for x in (q, k, v))
    s = scores(*_split(q8, batch, heads), *_split(k8, batch, heads))
    a, peak, inverse_sum = softmax(s, _causal(s.shape[-1]))
    o = mix(a, *_split(v8, batch, heads))
    saved = AttentionSaved(q, k, v, q8, k8, v8, peak, inverse_sum, batch, heads)
    return _tokens(o), saved


def _causal(seq_len: int) -> np.ndarray:
    """(T, T) bool: does query i see key j?"""
    index = np.arange(seq_len)
    return index[:, None] >= index


def attention_step(q: F32, k8: I8, sk: F32, v8: I8, sv: F32) -> F32:
    """One query row q(1, H*D) against n cached keys and values -> o(1, H*D).

    k8, v8: int8 (n, H, D) with scales (n, H), the query's own position last. Equals row n-1 of
    `attention` over the same tokens, bit for bit.
    """
    heads, dim = k8.shape[1:]
    row = quantise_rows(q.reshape(heads, dim), INT8_LIMIT)
    keys, values = k8.transpose(1, 0, 2), v8.transpose(1, 0, 2)
    s = scores(row.q[:, None], row.scale[:, None], keys, sk.T)
    a, _, _ = softmax(s, np.ones(s.shape[-1], bool))
    return mix(a, values, sv.T).reshape(1, heads * dim)


def attention_backward(do: F32, saved: AttentionSaved) -> tuple[F32, F32, F32]:
    """do (B*T, H*D) -> dq, dk, dv, each (B*T, H*D).

    Products are 12-bit: per row of the left and per column of the right operand, within one
    sequence and head. Quantisation of the forward pass counts as the identity.
    """
    batch, heads = saved.batch, saved.heads
    q, k, v, do = (_heads(x, batch, heads) for x in (saved.q, saved.k, saved.v, do))
    s = scores(*_split(saved.q8, batch, heads), *_split(saved.k8, batch, heads))
    seen = _causal(s.shape[-1])
    e = np.where(seen, exp(s - saved.peak[..., None]), c.ZERO)
    a = e * saved.inverse_sum[..., None]

    da = np.where(seen, _product12(do, np.swapaxes(v, -1, -2)), c.ZERO)
    along = lane_sum(a * da)
    ds = np.where(seen, a * (da - along[..., None]) * score_factor(q.shape[-1]), c.ZERO)
    dq = _product12(ds, k)
    dk = _product12(np.swapaxes(ds, -1, -2), q)
    dv = _product12(np.swapaxes(a, -1, -2), do)
    return _tokens(dq), _tokens(dk), _tokens(dv)


def _product12(left: F32, right: F32) -> F32:
    """(..., M, K) @ (..., K, N) with both sides quantised to 12 bits."""
    lq, row_scale = quantise_along(np.ascontiguousarray(left), INT12_LIMIT, -1)
    rq, col_scale = quantise_along(np.ascontiguousarray(right), INT12_LIMIT, -2)
    return epilogue(integer_product(lq, rq), row_scale, col_scale)
