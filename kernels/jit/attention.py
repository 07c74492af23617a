"""Causal attention and its step form, equal to `reference.attention`.

A strip is the 6 queries of one tile row: scores, softmax and the product with the values are
done strip by strip, so no T x T memory is needed.
May import: errors, reference.attention (the score factor), types, workspace, jit siblings.
"""

from __future__ import annotations

import numpy as np

from ..errors import NonFiniteInputError
from ..reference.attention import score_factor
from ..types import F32, F64, I8, INT8_LIMIT, AttentionSaved, Ints
from ..workspace import empty
from .compile import helper, kernel, routine
from .products import (
    INT8_FLUSH_PAIRS,
    pack_cols,
    pack_rows,
    packed_size,
    quantise_rows,
    scale_of,
)
from .scalar import (
    INFINITY_BITS,
    LEAST_KEY,
    ONE,
    ZERO,
    clear_lanes,
    exp32,
    fold_lanes,
    from_key,
    magnitude,
    order_key,
    round_small,
)
from .tile import TILE_COLS, TILE_ROWS, TILE_SIZE, tile_sums

_LIMIT8 = np.float32(INT8_LIMIT)


@helper
def sum_row(row, n, lanes):
    """16-lane sum of row[:n]."""
    clear_lanes(lanes)
    whole = n // 16 * 16
    for j in range(0, whole, 16):
        for lane in range(16):
            lanes[lane] = lanes[lane] + row[j + lane]
    for lane in range(n - whole):
        lanes[lane] = lanes[lane] + row[whole + lane]
    return fold_lanes(lanes)


@helper
def exponentials(row, n, peak):
    """row[:n] = exp(row[:n] - peak)."""
    for j in range(n):
        row[j] = exp32(row[j] - peak)


@helper
def _softmax_row(row, n, lanes):
    """row[:n] scores -> probabilities; (finite?, peak, 1 / sum)."""
    top, key = np.int32(0), LEAST_KEY
    for j in range(n):
        bits, k = magnitude(row[j]), order_key(row[j])
        top = bits if bits > top else top
        key = k if k > key else key
    peak = from_key(key)
    if top >= INFINITY_BITS:
        return False, peak, ZERO
    exponentials(row, n, peak)
    inverse = ONE / sum_row(row, n, lanes)
    for j in range(n):
        row[j] = row[j] * inverse
    return True, peak, inverse


@helper
def _fold_scale(row, n, sv, folded):
    """folded[:n] = row[:n] * sv[:n]; (scale, inverse) of its int8 form."""
    top = np.int32(0)
    for j in range(n):
        x = row[j] * sv[j]
        folded[j] = x
        bits = magnitude(x)
        top = bits if bits > top else top
    return scale_of(top, _LIMIT8)


@routine
def score_strip(
    queries, query_from, keys, key_from, pairs, i0, seq_len, flush,
    row_scale, col_scale, factor, block, wide, sums, strip,
):  # fmt: skip
    """strip[r, j] = scores of queries i0..i0+5 over all panels that hold a key they see.

    queries from query_from: the packed strip; keys from key_from: all packed panels of the head.
    row_scale, col_scale [T]; factor multiplies the row scale.
    """
    height = TILE_ROWS if seq_len - i0 > TILE_ROWS else seq_len - i0
    for j0 in range(0, i0 + height, TILE_COLS):
        panel = key_from + j0 * pairs * 2
        tile_sums(queries, query_from, keys, panel, pairs, flush, block, wide, sums)
        width = TILE_COLS if seq_len - j0 > TILE_COLS else seq_len - j0
        for r in range(height):
            s = row_scale[i0 + r] * factor
            for j in range(width):
                strip[r, j0 + j] = sums[r * TILE_COLS + j] * s * col_scale[j0 + j]


@kernel
def _attention(
    queries, sq, keys, sk, values, sv, factor, mixed, strip, folded, query_scale, key_scale,
    value_scale, lanes, block, wide, sums, out, peaks, inverses,
):  # fmt: skip
    """False if a score is not finite.

    queries, keys, values: packed for every (b, h); sq, sk, sv (B, T, H); out (B, T, H, D);
    peaks, inverses (B, H, T).
    """
    batch, seq_len, heads, dim = out.shape
    dim_pairs, seq_pairs = (dim + 1) // 2, (seq_len + 1) // 2
    query_size = (seq_len + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS * 2 * dim_pairs
    key_size = (seq_len + TILE_COLS - 1) // TILE_COLS * TILE_COLS * 2 * dim_pairs
    value_size = (dim + TILE_COLS - 1) // TILE_COLS * TILE_COLS * 2 * seq_pairs
    for group in range(batch * heads):
        b, h = group // heads, group % heads
        for i in range(seq_len):
            query_scale[i] = sq[b, i, h]
            key_scale[i] = sk[b, i, h]
            value_scale[i] = sv[b, i, h]
        for i0 in range(0, seq_len, TILE_ROWS):
            height = TILE_ROWS if seq_len - i0 > TILE_ROWS else seq_len - i0
            score_strip(
                queries, group * query_size + i0 * dim_pairs * 2, keys, group * key_size,
                dim_pairs, i0, seq_len, INT8_FLUSH_PAIRS, query_scale, key_scale, factor,
                block, wide, sums, strip,
            )  # fmt: skip
            pairs = (i0 + height + 1) // 2
            for index in range(pairs * TILE_ROWS * 2):
                mixed[index] = np.int16(0)
            for r in range(height):
                n = i0 + r + 1
                finite, peak, inverse = _softmax_row(strip[r], n, lanes)
                if not finite:
                    return False
                peaks[b, h, i0 + r], inverses[b, h, i0 + r] = peak, inverse
                scale, to_grid = _fold_scale(strip[r], n, value_scale, folded)
                query_scale[i0 + r] = scale  # of the query no more: it was used above
                for j in range(n):
                    place = (j // 2 * TILE_ROWS + r) * 2 + j % 2
                    mixed[place] = round_small(folded[j] * to_grid)
            for d0 in range(0, dim, TILE_COLS):
                panel = group * value_size + d0 * seq_pairs * 2
                tile_sums(mixed, 0, values, panel, pairs, INT8_FLUSH_PAIRS, block, wide, sums)
                width = TILE_COLS if dim - d0 > TILE_COLS else dim - d0
                for r in range(height):
                    for d in range(width):
                        total = sums[r * TILE_COLS + d]
                        out[b, i0 + r, h, d0 + d] = total * query_scale[i0 + r]
    return True


def attention(q: F32, k: F32, v: F32, batch: int, heads: int) -> tuple[F32, AttentionSaved]:
    """-> o (B*T, H*D) and what the backward form needs."""
    seq_len, dim = q.shape[0] // batch, q.shape[1] // heads
    parts = (batch, seq_len, heads, dim)
    q8, k8, v8 = (quantise_rows(x.reshape(-1, dim), INT8_LIMIT) for x in (q, k, v))
    out = empty(parts, np.float32)
    peak, inverse_sum = (empty((batch, heads, seq_len), np.float32) for _ in range(2))
    finite = _attention(
        pack_rows(q8.q.reshape(parts), TILE_ROWS),
        q8.scale.reshape(parts[:3]),
        pack_rows(k8.q.reshape(parts), TILE_COLS),
        k8.scale.reshape(parts[:3]),
        pack_cols(v8.q.reshape(parts), TILE_COLS),
        v8.scale.reshape(parts[:3]),
        score_factor(dim),
        empty(packed_size(TILE_ROWS, TILE_ROWS, seq_len), np.int16),
        empty((TILE_ROWS, seq_len), np.float32),
        *(empty(seq_len, np.float32) for _ in range(4)),
        empty(16, np.float32),
        *sums_scratch(),
        out,
        peak,
        inverse_sum,
    )
    if not finite:
        raise NonFiniteInputError("an attention score is NaN or infinite; q or k is too large.")
    saved = AttentionSaved(q, k, v, q8, k8, v8, peak, inverse_sum, batch, heads)
    return out.reshape(q.shape), saved


def sums_scratch() -> tuple[Ints, F64, F32]:
    """The scratch arrays of `tile_sums`."""
    return empty(TILE_SIZE, np.int32), empty(TILE_SIZE, np.float64), empty(TILE_SIZE, np.float32)


@kernel
def _attention_step(q8, sq, k8, sk, v8, sv, factor, row, folded, value_scale, lanes, out):
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
        finite, _, _ = _softmax_row(row, n, lanes)
        if not finite:
            return False
        scale, to_grid = _fold_scale(row, n, value_scale, folded)
        for d in range(dim):
            total = np.int32(0)
            for j in range(n):
                total += round_small(folded[j] * to_grid) * np.int32(v8[j, h, d])
            out[h, d] = np.float32(np.int32(total)) * scale
    return True


def attention_step(q: F32, k8: I8, sk: F32, v8: I8, sv: F32) -> F32:
    """One query over n cached positions -> o(1, H*D)."""
    n, heads, dim = k8.shape
    row = quantise_rows(q.reshape(heads, dim), INT8_LIMIT)
    out: F32 = empty((heads, dim), np.float32)
    scratch = (empty(n, np.float32) for _ in range(3))
    lanes = empty(16, np.float32)
    factor = score_factor(dim)
    if not _attention_step(row.q, row.scale, k8, sk, v8, sv, factor, *scratch, lanes, out):
        raise NonFiniteInputError("an attention score is NaN or infinite; q or k is too large.")
    return out.reshape(1, -1)
