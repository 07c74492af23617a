"""The backward form of causal attention, equal to `reference.attention.attention_backward`.

Probabilities are computed again, strip by strip; two T x T matrices are kept, of one head at a
time (and thread). Of a triangle only the part at or below the diagonal is ever written or read.
May import: errors, reference.attention (the score factor), types, workspace, jit siblings.
"""

from __future__ import annotations

import numpy as np

from ..constants import ROW_LANES
from ..errors import NonFiniteInputError
from ..reference.attention import score_factor
from ..types import F32, I32, INT12_LIMIT, AttentionSaved, Ints
from ..workspace import empty
from .attention import block_scratch, exponentials, lanes_of, least_heads
from .compile import kernel, routine
from .lanes import fill, lane_sum, whole_lanes
from .pack import pair_word, right_cols, right_rows, row_words, scale_of, widened
from .products import quantise_each, quantise_rows
from .scalar import INFINITY_BITS, ZERO, magnitude, round_small
from .sums import INT8_FLUSH, INT12_FLUSH
from .threads import spread
from .tile import NONE, STEP, TILE_COLS, TILE_ROWS, WHOLE, scaled_block

_LIMIT12 = np.float32(INT12_LIMIT)


@kernel
def _score_gradient(
    b, h, queries, sq, keys, sk, gradients, sdo, values, sv, peaks, inverses, factor,
    columns, column_scale, a, ds, top_a, top_ds, left, halves, row_scale, scales_i, scales_j, da,
    products, wide, edge, dq, flat,
):  # fmt: skip
    """Of head (b, h): probabilities a, gradient of the scores ds [T, lanes], and dq; all finite?

    queries (int8), gradients (do in 12 bits): rows of words; keys (int8), values (12 bits),
    columns (k in 12 bits by columns): panels for every (b, h). sq, sk, sdo, sv (B, T, H).
    top_a, top_ds int32 [lanes]: bits of the largest magnitude of each column of a and ds. dq
    (B, T, H, D), also as flat; left [TILE_ROWS, words], seen as int16 in halves: scratch.
    """
    _, seq_len, heads, dim = dq.shape
    dim_words, seq_words = (dim + 1) // 2, (seq_len + 1) // 2
    group = b * heads + h
    panel_from = group * ((seq_len + TILE_COLS - 1) // TILE_COLS * TILE_COLS * dim_words)
    column_from = group * ((dim + TILE_COLS - 1) // TILE_COLS * TILE_COLS * seq_words)
    length = da.shape[1]
    scores, score_gradients, left_words = a.reshape(-1), da.reshape(-1), left.reshape(-1)
    query_scale, gradient_scale = scales_i[0], scales_i[1]
    key_scale, value_scale, padded = scales_j[0], scales_j[1], column_scale[group]
    fill(top_a, NONE, length, np.int32(0))
    fill(top_ds, NONE, length, np.int32(0))
    for j in range(seq_len):
        query_scale[j], key_scale[j] = sq[b, j, h] * factor, sk[b, j, h]
        gradient_scale[j], value_scale[j] = sdo[b, j, h], sv[b, j, h]
    for j in range(seq_len, length):
        key_scale[j] = value_scale[j] = ZERO
    for i0 in range(0, seq_len, TILE_ROWS):
        height = min(seq_len - i0, TILE_ROWS)
        strip = ((b * seq_len + i0) * heads + h) * dim_words
        for j0 in range(0, i0 + height, TILE_COLS):
            panel = panel_from + j0 * dim_words
            scaled_block(
                queries, strip, heads * dim_words, STEP, height - 1, keys, panel, dim_words,
                INT8_FLUSH, query_scale, i0, key_scale, j0, WHOLE, wide, edge, scores,
                i0 * length + j0, length,
            )  # fmt: skip
            scaled_block(
                gradients, strip, heads * dim_words, STEP, height - 1, values, panel, dim_words,
                INT12_FLUSH, gradient_scale, i0, value_scale, j0, WHOLE, wide, edge,
                score_gradients, j0, length,
            )  # fmt: skip
        words = (i0 + height + 1) // 2
        for r in range(height):
            i = i0 + r
            n = whole_lanes(i + 1)
            row, row_da, row_ds, integers = a[i], da[r], ds[i], halves[r]
            exponentials(row, n, peaks[b, h, i])
            # What was computed of keys behind the query must not be seen: it need not be finite.
            fill(row, i + 1, n, ZERO)
            fill(row_da, i + 1, n, ZERO)
            inverse = inverses[b, h, i]
            for j in range(n):
                x = row[j] * inverse
                row[j] = x
                products[j] = x * row_da[j]
                bits = magnitude(x)
                top_a[j] = bits if bits > top_a[j] else top_a[j]
            along = lane_sum(products, 0, n // ROW_LANES)
            top = np.int32(0)
            for j in range(n):
                x = row[j] * (row_da[j] - along) * factor
                row_ds[j] = x
                bits = magnitude(x)
                top = bits if bits > top else top
                top_ds[j] = bits if bits > top_ds[j] else top_ds[j]
            if top >= INFINITY_BITS:
                return False
            row_scale[r], to_grid = scale_of(top, _LIMIT12)
            for j in range(n):
                integers[j] = np.int16(round_small(row_ds[j] * to_grid))
            fill(integers, n, 2 * words, np.int16(0))
        for d0 in range(0, dim, TILE_COLS):
            scaled_block(
                left_words, NONE, left.shape[1], STEP, height - 1, columns,
                column_from + d0 * seq_words, words, INT12_FLUSH, row_scale, NONE, padded, d0,
                min(dim - d0, WHOLE), wide, edge, flat,
                ((b * seq_len + i0) * heads + h) * dim + d0, heads * dim,
            )  # fmt: skip
    return True


@routine
def _quantise_triangle(x, top, words, scale, inverse):
    """Words of pairs down the columns of a lower triangle x[T, lanes], one scale per column.

    Rows of x are zero up to `whole_lanes`.
    """
    seq_len = x.shape[0]
    for j in range(x.shape[1]):
        scale[j], inverse[j] = scale_of(top[j], _LIMIT12)
    for t in range((seq_len + 1) // 2):
        n = whole_lanes(2 * t + 1)  # whole_lanes(2 * t + 2) is the same
        target, first = words[t], x[2 * t]
        if 2 * t + 1 < seq_len:
            second = x[2 * t + 1]
            for j in range(n):
                target[j] = pair_word(
                    round_small(first[j] * inverse[j]), round_small(second[j] * inverse[j])
                )
        else:
            for j in range(n):
                target[j] = pair_word(round_small(first[j] * inverse[j]), np.int32(0))
        fill(target, n, target.size, np.int32(0))


@kernel
def _transposed_product(
    b, h, x, top, columns, column_scale, words, scale, inverse, wide, edge, out, flat
):
    """out[b, :, h, :] = x.T @ columns in 12 bits, x[T, lanes] a finite lower triangle.

    top[lanes]: bits of the largest magnitude of each column of x. columns: panels for every (b, h).
    words [T / 2, lanes]: scratch.
    """
    _, seq_len, heads, dim = out.shape
    seq_words, step = words.shape
    group = b * heads + h
    column_from = group * ((dim + TILE_COLS - 1) // TILE_COLS * TILE_COLS * seq_words)
    _quantise_triangle(x, top, words, scale, inverse)
    left, padded = words.reshape(-1), column_scale[group]
    for j0 in range(0, seq_len, TILE_ROWS):
        height = min(seq_len - j0, TILE_ROWS)
        first = j0 // 2
        for d0 in range(0, dim, TILE_COLS):
            scaled_block(
                left, first * step + j0, STEP, step, height - 1, columns,
                column_from + d0 * seq_words + first * TILE_COLS, seq_words - first, INT12_FLUSH,
                scale, j0, padded, d0, min(dim - d0, WHOLE), wide, edge, flat,
                ((b * seq_len + j0) * heads + h) * dim + d0, heads * dim,
            )  # fmt: skip


def _columns(x: F32, parts: tuple[int, int, int, int]) -> tuple[I32, F32]:
    """x (B*T, H*D) in 12 bits by columns of each (b, h): panels, and scales [B * H, >= D]."""
    batch, _, heads, dim = parts
    q, scale = quantise_each(x, batch, INT12_LIMIT)
    padded = np.zeros((batch * heads, -(-dim // TILE_COLS) * TILE_COLS), np.float32)
    padded[:, :dim] = scale.reshape(-1, dim)
    return right_cols(q.reshape(parts)), padded


def attention_backward(do: F32, saved: AttentionSaved) -> tuple[F32, F32, F32]:
    """do (B*T, H*D) -> dq, dk, dv."""
    batch, heads = saved.batch, saved.heads
    seq_len, dim = do.shape[0] // batch, do.shape[1] // heads
    parts = (batch, seq_len, heads, dim)
    v12, do12 = (quantise_rows(x.reshape(-1, dim), INT12_LIMIT) for x in (saved.v, do))
    rows: list[Ints] = []
    for operand, right in ((saved.q8, 0), (saved.k8, 1), (do12, 0), (v12, 1)):
        words = widened(operand.q, 0).reshape(*parts[:3], -1)
        rows.append(right_rows(words) if right else words.reshape(-1))
        rows.append(operand.scale.reshape(parts[:3]))
    k_columns, q_columns, do_columns = (_columns(x, parts) for x in (saved.k, saved.q, do))

    dq, dk, dv = (empty(parts, np.float32) for _ in range(3))

    def part(begin: int, end: int) -> bool:
        lanes = lanes_of(seq_len)
        a, ds = (empty((seq_len, lanes), np.float32) for _ in range(2))
        top_a, top_ds = (empty(lanes, np.int32) for _ in range(2))
        left = row_words(TILE_ROWS, seq_len, 2)
        scratch = (
            empty(TILE_ROWS, np.float32),
            *(empty((2, lanes), np.float32) for _ in range(2)),
            empty((TILE_ROWS, lanes), np.float32),
            empty(lanes, np.float32),
        )
        words = empty((-(-seq_len // 2), lanes), np.int32)
        scales = empty(lanes, np.float32), empty(lanes, np.float32)
        block = block_scratch()
        for group in range(begin, end):
            b, h = group // heads, group % heads
            if not _score_gradient(
                b, h, *rows, saved.peak, saved.inverse_sum, score_factor(dim), *k_columns,
                a, ds, top_a, top_ds, left, left.view(np.int16), *scratch, *block, dq,
                dq.reshape(-1),
            ):  # fmt: skip
                return False
            for x, top, columns, out in (
                (ds, top_ds, q_columns, dk),
                (a, top_a, do_columns, dv),
            ):
                _transposed_product(
                    b, h, x, top, *columns, words, *scales, *block, out, out.reshape(-1)
                )
        return True

    if not spread(batch * heads, 1, part, least=least_heads(seq_len)):
        raise NonFiniteInputError(
            "the gradient of an attention score is NaN or infinite; it was refused."
        )
    return dq.reshape(do.shape), dk.reshape(do.shape), dv.reshape(do.shape)
