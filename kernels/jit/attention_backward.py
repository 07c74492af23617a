"""The backward form of causal attention, equal to `reference.attention.attention_backward`.

Probabilities are computed again, strip by strip; two T x T matrices are kept, of one head at a
time. Of a triangle only the part at or below the diagonal is ever written or read.
May import: errors, reference.attention (the score factor), types, workspace, jit siblings.
"""

from __future__ import annotations

import numpy as np

from ..errors import NonFiniteInputError
from ..reference.attention import score_factor
from ..types import F32, INT12_LIMIT, AttentionSaved, Ints
from ..workspace import empty
from .attention import exponentials, score_strip, sum_row, sums_scratch
from .compile import kernel, routine
from .products import (
    INT8_FLUSH_PAIRS,
    INT12_FLUSH_PAIRS,
    pack_cols,
    pack_rows,
    packed_size,
    quantise_head_cols,
    quantise_rows,
    scale_of,
)
from .scalar import INFINITY_BITS, ONE, magnitude, round_small
from .tile import TILE_COLS, TILE_ROWS, tile_sums

_LIMIT12 = np.float32(INT12_LIMIT)


@routine
def _column_product(
    left, first_pair, last_pair, right, right_from, i0, row_scale, col_scale, block, wide, sums, out
):
    """out[i0 + r, d] = 12-bit product of a packed strip with the packed columns of one head.

    The strip and the panels span all T inner positions; outside the pairs first..last-1 the strip
    is zero. row_scale [6], col_scale [D], out [T, D].
    """
    seq_len, dim = out.shape
    seq_pairs = (seq_len + 1) // 2
    height = TILE_ROWS if seq_len - i0 > TILE_ROWS else seq_len - i0
    for d0 in range(0, dim, TILE_COLS):
        panel = right_from + (d0 * seq_pairs + first_pair * TILE_COLS) * 2
        tile_sums(
            left, first_pair * TILE_ROWS * 2, right, panel, last_pair - first_pair,
            INT12_FLUSH_PAIRS, block, wide, sums,
        )  # fmt: skip
        width = TILE_COLS if dim - d0 > TILE_COLS else dim - d0
        for r in range(height):
            for d in range(width):
                total = sums[r * TILE_COLS + d]
                out[i0 + r, d0 + d] = total * row_scale[r] * col_scale[d0 + d]


@kernel
def _score_gradient(
    b, h, queries, sq, keys, sk, gradients, sdo, values, sv, peaks, inverses, factor,
    columns, column_scale, a, ds, top_a, top_ds, left, row_scale, scales_i, scales_j, da,
    products, lanes, block, wide, sums, dq,
):  # fmt: skip
    """Of head (b, h): probabilities a, gradient of the scores ds [T, T], and dq; all finite?

    queries, keys (int8 values), gradients (do) and values (12-bit values): packed by rows;
    columns: k packed by columns. sq, sk, sdo, sv (B, T, H). top_a, top_ds int32 [T]: bits of the
    largest magnitude of each column of a and ds. dq (B, T, H, D).
    """
    _, seq_len, heads, dim = dq.shape
    dim_pairs, seq_pairs = (dim + 1) // 2, (seq_len + 1) // 2
    group = b * heads + h
    strip_from = group * ((seq_len + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS * 2 * dim_pairs)
    panel_from = group * ((seq_len + TILE_COLS - 1) // TILE_COLS * TILE_COLS * 2 * dim_pairs)
    column_from = group * ((dim + TILE_COLS - 1) // TILE_COLS * TILE_COLS * 2 * seq_pairs)
    for j in range(seq_len):
        top_a[j] = np.int32(0)
        top_ds[j] = np.int32(0)
        scales_i[0, j], scales_j[0, j] = sq[b, j, h], sk[b, j, h]
        scales_i[1, j], scales_j[1, j] = sdo[b, j, h], sv[b, j, h]
    for i0 in range(0, seq_len, TILE_ROWS):
        height = TILE_ROWS if seq_len - i0 > TILE_ROWS else seq_len - i0
        strip = strip_from + i0 * dim_pairs * 2
        score_strip(
            queries, strip, keys, panel_from, dim_pairs, i0, seq_len, INT8_FLUSH_PAIRS,
            scales_i[0], scales_j[0], factor, block, wide, sums, a[i0 : i0 + height],
        )  # fmt: skip
        score_strip(
            gradients, strip, values, panel_from, dim_pairs, i0, seq_len, INT12_FLUSH_PAIRS,
            scales_i[1], scales_j[1], ONE, block, wide, sums, da,
        )  # fmt: skip
        pairs = (i0 + height + 1) // 2
        for index in range(pairs * TILE_ROWS * 2):
            left[index] = np.int16(0)
        for r in range(height):
            i = i0 + r
            n = i + 1
            exponentials(a[i], n, peaks[b, h, i])
            inverse = inverses[b, h, i]
            for j in range(n):
                a[i, j] = a[i, j] * inverse
                products[j] = a[i, j] * da[r, j]
                bits = magnitude(a[i, j])
                top_a[j] = bits if bits > top_a[j] else top_a[j]
            along = sum_row(products, n, lanes)
            top = np.int32(0)
            for j in range(n):
                x = a[i, j] * (da[r, j] - along) * factor
                ds[i, j] = x
                bits = magnitude(x)
                top = bits if bits > top else top
                top_ds[j] = bits if bits > top_ds[j] else top_ds[j]
            if top >= INFINITY_BITS:
                return False
            row_scale[r], to_grid = scale_of(top, _LIMIT12)
            for j in range(n):
                left[(j // 2 * TILE_ROWS + r) * 2 + j % 2] = round_small(ds[i, j] * to_grid)
        _column_product(
            left, 0, pairs, columns, column_from, i0, row_scale, column_scale[b, h],
            block, wide, sums, dq[b, :, h, :],
        )  # fmt: skip
    return True


@kernel
def _transposed_product(
    b, h, x, top, columns, column_scale, left, row_scale, block, wide, sums, out
):
    """out[b, :, h, :] = x.T @ columns in 12 bits, x[T, T] a finite lower triangle.

    top[T]: bits of the largest magnitude of each column of x. columns: packed by columns.
    """
    _, seq_len, heads, dim = out.shape
    seq_pairs = (seq_len + 1) // 2
    group = b * heads + h
    column_from = group * ((dim + TILE_COLS - 1) // TILE_COLS * TILE_COLS * 2 * seq_pairs)
    for j0 in range(0, seq_len, TILE_ROWS):
        height = TILE_ROWS if seq_len - j0 > TILE_ROWS else seq_len - j0
        for index in range(j0 // 2 * TILE_ROWS * 2, seq_pairs * TILE_ROWS * 2):
            left[index] = np.int16(0)
        for r in range(height):
            j = j0 + r
            row_scale[r], to_grid = scale_of(top[j], _LIMIT12)
            for i in range(j, seq_len):
                left[(i // 2 * TILE_ROWS + r) * 2 + i % 2] = round_small(x[i, j] * to_grid)
        _column_product(
            left, j0 // 2, seq_pairs, columns, column_from, j0, row_scale, column_scale[b, h],
            block, wide, sums, out[b, :, h, :],
        )  # fmt: skip


def attention_backward(do: F32, saved: AttentionSaved) -> tuple[F32, F32, F32]:
    """do (B*T, H*D) -> dq, dk, dv."""
    batch, heads = saved.batch, saved.heads
    seq_len, dim = do.shape[0] // batch, do.shape[1] // heads
    parts = (batch, seq_len, heads, dim)
    v12, do12 = (quantise_rows(x.reshape(-1, dim), INT12_LIMIT) for x in (saved.v, do))
    rows: list[Ints] = []
    for operand, width in (
        (saved.q8, TILE_ROWS),
        (saved.k8, TILE_COLS),
        (do12, TILE_ROWS),
        (v12, TILE_COLS),
    ):
        rows.append(pack_rows(operand.q.reshape(parts), width))
        rows.append(operand.scale.reshape(parts[:3]))
    columns = []
    for x in (saved.k, saved.q, do):
        q, scale = quantise_head_cols(x.reshape(parts), INT12_LIMIT)
        columns.append((pack_cols(q, TILE_COLS), scale))

    a, ds = (empty((seq_len, seq_len), np.float32) for _ in range(2))
    top_a, top_ds = (empty(seq_len, np.int32) for _ in range(2))
    left = empty(packed_size(TILE_ROWS, TILE_ROWS, seq_len), np.int16)
    row_scale = empty(TILE_ROWS, np.float32)
    scratch = (
        *(empty((2, seq_len), np.float32) for _ in range(2)),
        empty((TILE_ROWS, seq_len), np.float32),
        empty(seq_len, np.float32),
        empty(16, np.float32),
    )
    sums = sums_scratch()
    dq, dk, dv = (empty(parts, np.float32) for _ in range(3))
    for b in range(batch):
        for h in range(heads):
            if not _score_gradient(
                b, h, *rows, saved.peak, saved.inverse_sum, score_factor(dim), *columns[0],
                a, ds, top_a, top_ds, left, row_scale, *scratch, *sums, dq,
            ):  # fmt: skip
                raise NonFiniteInputError(
                    "the gradient of an attention score is NaN or infinite; it was refused."
                )
            _transposed_product(b, h, ds, top_ds, *columns[1], left, row_scale, *sums, dk)
            _transposed_product(b, h, a, top_a, *columns[2], left, row_scale, *sums, dv)
    return dq.reshape(do.shape), dk.reshape(do.shape), dv.reshape(do.shape)
