"""Causal attention and its step form, equal to `reference.attention`.

A strip is the rows of queries of one tile: scores, softmax and the product with the values are
done strip by strip, so no T x T memory is needed.
May import: errors, reference.attention (the score factor), types, workspace, jit siblings.
"""

from __future__ import annotations

import numpy as np

from ..constants import ROW_LANES
from ..errors import NonFiniteInputError
from ..reference.attention import score_factor
from ..types import F32, F64, I8, INT8_LIMIT, AttentionSaved
from ..workspace import empty
from .compile import helper, inlined, kernel
from .lanes import PAD, fill, lane_sum, whole_lanes
from .pack import right_cols, right_rows, row_words, scale_of, widened
from .products import quantise_rows
from .scalar import (
    INFINITY_BITS,
    LEAST_KEY,
    ONE,
    ZERO,
    exp32,
    from_key,
    magnitude,
    order_key,
    round_small,
)
from .sums import INT8_FLUSH
from .threads import LEAST_VALUES, spread
from .tile import NONE, STEP, TILE_COLS, TILE_ROWS, TILE_SIZE, WHOLE, scaled_block

_LIMIT8 = np.float32(INT8_LIMIT)


@helper
def exponentials(row, n, peak):
    """row[:n] = exp(row[:n] - peak)."""
    for j in range(n):
        row[j] = exp32(row[j] - peak)


@inlined
def _softmax_row(row, n):
    """row[:n] scores -> probabilities, zeros up to whole_lanes(n); (finite?, peak, 1 / sum)."""
    whole = whole_lanes(n)
    fill(row, n, whole, row[0])
    top, key = np.int32(0), LEAST_KEY
    for j in range(whole):
        bits, k = magnitude(row[j]), order_key(row[j])
        top = bits if bits > top else top
        key = k if k > key else key
    peak = from_key(key)
    if top >= INFINITY_BITS:
        return False, peak, ZERO
    exponentials(row, whole, peak)
    fill(row, n, whole, ZERO)
    inverse = ONE / lane_sum(row, 0, whole // ROW_LANES)
    for j in range(whole):
        row[j] = row[j] * inverse
    return True, peak, inverse


@inlined
def _fold_scale(row, n, sv):
    """row[:n] *= sv[:n], n a multiple of `PAD`; (scale, inverse) of its int8 form."""
    top = np.int32(0)
    for j in range(n):
        x = row[j] * sv[j]
        row[j] = x
        bits = magnitude(x)
        top = bits if bits > top else top
    return scale_of(top, _LIMIT8)


@kernel
def _attention(
    begin, end, queries, sq, keys, sk, values, sv, factor, mixed, halves, strip, query_scale,
    key_scale, value_scale, mix_scale, ones, wide, edge, out, flat, peaks, inverses,
):  # fmt: skip
    """Heads begin..end-1 of all sequences; False if a score is not finite.

    queries: rows of words; keys, values: panels for every (b, h); sq, sk, sv (B, T, H);
    out (B, T, H, D), also as flat; peaks, inverses (B, H, T). strip [TILE_ROWS, T rounded up to
    lanes], mixed [TILE_ROWS, words], seen as int16 in halves: scratch.
    """
    _, seq_len, heads, dim = out.shape
    dim_words, seq_words = (dim + 1) // 2, (seq_len + 1) // 2
    key_size = (seq_len + TILE_COLS - 1) // TILE_COLS * TILE_COLS * dim_words
    value_size = (dim + TILE_COLS - 1) // TILE_COLS * TILE_COLS * seq_words
    length = strip.shape[1]
    scores, mixed_words = strip.reshape(-1), mixed.reshape(-1)
    fill(key_scale, seq_len, length, ZERO)
    fill(value_scale, seq_len, length, ZERO)
    for group in range(begin, end):
        b, h = group // heads, group % heads
        for i in range(seq_len):
            query_scale[i] = sq[b, i, h] * factor
            key_scale[i] = sk[b, i, h]
            value_scale[i] = sv[b, i, h]
        for i0 in range(0, seq_len, TILE_ROWS):
            height = min(seq_len - i0, TILE_ROWS)
            seen = i0 + height
            for j0 in range(0, seen, TILE_COLS):
                scaled_block(
                    queries, ((b * seq_len + i0) * heads + h) * dim_words, heads * dim_words, STEP,
                    height - 1, keys, group * key_size + j0 * dim_words, dim_words, INT8_FLUSH,
                    query_scale, i0, key_scale, j0, WHOLE, wide, edge, scores, j0, length,
                )  # fmt: skip
            words = (seen + 1) // 2
            for r in range(height):
                n = whole_lanes(i0 + r + 1)
                row = strip[r]
                finite, peak, inverse = _softmax_row(row, i0 + r + 1)
                if not finite:
                    return False
                peaks[b, h, i0 + r], inverses[b, h, i0 + r] = peak, inverse
                mix_scale[r], to_grid = _fold_scale(row, n, value_scale)
                integers = halves[r]
                for j in range(n):
                    integers[j] = np.int16(round_small(row[j] * to_grid))
                fill(integers, n, 2 * words, np.int16(0))
            for d0 in range(0, dim, TILE_COLS):
                scaled_block(
                    mixed_words, NONE, mixed.shape[1], STEP, height - 1, values,
                    group * value_size + d0 * seq_words, words, INT8_FLUSH, mix_scale, NONE, ones,
                    NONE, min(dim - d0, WHOLE), wide, edge, flat,
                    ((b * seq_len + i0) * heads + h) * dim + d0, heads * dim,
                )  # fmt: skip
    return True


def lanes_of(seq_len: int) -> int:
    """seq_len rounded up to a multiple of `PAD`, and so to whole lanes and tiles."""
    return -(-seq_len // int(PAD)) * int(PAD)


def attention(q: F32, k: F32, v: F32, batch: int, heads: int) -> tuple[F32, AttentionSaved]:
    """-> o (B*T, H*D) and what the backward form needs."""
    seq_len, dim = q.shape[0] // batch, q.shape[1] // heads
    parts = (batch, seq_len, heads, dim)
    q8, k8, v8 = (quantise_rows(x.reshape(-1, dim), INT8_LIMIT) for x in (q, k, v))
    queries, keys = (widened(x.q, 0).reshape(*parts[:3], -1) for x in (q8, k8))
    out = empty(parts, np.float32)
    peak, inverse_sum = (empty((batch, heads, seq_len), np.float32) for _ in range(2))
    operands = (
        queries.reshape(-1),
        q8.scale.reshape(parts[:3]),
        right_rows(keys),
        k8.scale.reshape(parts[:3]),
        right_cols(v8.q.reshape(parts)),
        v8.scale.reshape(parts[:3]),
        score_factor(dim),
    )

    def part(begin: int, end: int) -> bool:
        mixed = row_words(TILE_ROWS, seq_len, 2)
        finite = _attention(
            begin,
            end,
            *operands,
            mixed,
            mixed.view(np.int16),
            empty((TILE_ROWS, lanes_of(seq_len)), np.float32),
            *(empty(lanes_of(seq_len), np.float32) for _ in range(3)),
            empty(TILE_ROWS, np.float32),
            np.ones(TILE_COLS, np.float32),
            *block_scratch(),
            out,
            out.reshape(-1),
            peak,
            inverse_sum,
        )
        return bool(finite)

    if not spread(batch * heads, 1, part, least=least_heads(seq_len)):
        raise NonFiniteInputError("an attention score is NaN or infinite; q or k is too large.")
    saved = AttentionSaved(q, k, v, q8, k8, v8, peak, inverse_sum, batch, heads)
    return out.reshape(q.shape), saved


def least_heads(seq_len: int) -> int:
    """How many heads of a sequence are worth handing to another thread."""
    return max(1, LEAST_VALUES // seq_len**2)


def block_scratch() -> tuple[F64, F32]:
    """The scratch arrays of `scaled_block`."""
    return empty(TILE_SIZE, np.float64), empty(TILE_SIZE, np.float32)


@kernel
def _attention_step(q8, sq, k8, sk, v8, sv, factor, row, value_scale, out):
    """False if a score is not finite. q8, out (H, D); k8, v8 (n, H, D); sq (H); sk, sv (n, H)."""
    n, heads, dim = k8.shape
    for h in range(heads):
        scale = sq[h] * factor
        for j in range(n):
            total = np.int32(0)
            for d in range(dim):
                total += np.int32(q8[h, d]) * np.int32(k8[j, h, d])
            row[j] = np.float32(np.int32(total)) * scale * sk[j, h]
            value_scale[j] = sv[j, h]
        fill(value_scale, n, whole_lanes(n), ZERO)
        finite, _, _ = _softmax_row(row, n)
        if not finite:
            return False
        scale, to_grid = _fold_scale(row, whole_lanes(n), value_scale)
        for d in range(dim):
            total = np.int32(0)
            for j in range(n):
                total += round_small(row[j] * to_grid) * np.int32(v8[j, h, d])
            out[h, d] = np.float32(np.int32(total)) * scale
    return True


def attention_step(q: F32, k8: I8, sk: F32, v8: I8, sv: F32) -> F32:
    """One query over n cached positions -> o(1, H*D)."""
    n, heads, dim = k8.shape
    row = quantise_rows(q.reshape(heads, dim), INT8_LIMIT)
    out: F32 = empty((heads, dim), np.float32)
    scratch = (empty(lanes_of(n), np.float32) for _ in range(2))
    if not _attention_step(row.q, row.scale, k8, sk, v8, sv, score_factor(dim), *scratch, out):
        raise NonFiniteInputError("an attention score is NaN or infinite; q or k is too large.")
    return out.reshape(1, -1)
