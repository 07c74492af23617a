"""Quantisation and tiled integer products, equal to `reference.products`.

May import: constants, errors, types, workspace, jit siblings.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import constants as c
from ..errors import NonFiniteInputError
from ..types import F32, INT8_LIMIT, Ints, Quantised
from ..workspace import empty
from .compile import helper, kernel
from .scalar import FLUSH_BITS, INFINITY_BITS, ZERO, float_of, magnitude, round_small
from .tile import TILE_COLS, TILE_ROWS, TILE_SIZE, tile_sums

INT8_FLUSH_PAIRS = (c.INT8_MAX_INNER + 1) // 2
INT12_FLUSH_PAIRS = c.INT12_FLUSH // 2


@helper
def scale_of(top, limit):
    """(scale, inverse) from the bits of the largest magnitude."""
    if top < FLUSH_BITS:
        return ZERO, ZERO
    absmax = float_of(top)
    return absmax / limit, limit / absmax


@kernel
def _quantise_rows(x, limit, q, scale):
    """True if every value was finite."""
    for i in range(x.shape[0]):
        top = np.int32(0)
        for k in range(x.shape[1]):
            bits = magnitude(x[i, k])
            top = bits if bits > top else top
        if top >= INFINITY_BITS:
            return False
        s, inverse = scale_of(top, limit)
        scale[i] = s
        for k in range(x.shape[1]):
            q[i, k] = round_small(x[i, k] * inverse)
    return True


@kernel
def _quantise_cols(x, limit, top, inverse, q, scale):
    """q, scale[B, H, N] of x[B, K, H, N], one scale per column of each (b, h); all finite?

    top int32 [N], inverse float32 [N]: scratch.
    """
    batch, inner, heads, width = x.shape
    for b in range(batch):
        for h in range(heads):
            for n in range(width):
                top[n] = np.int32(0)
            for k in range(inner):
                for n in range(width):
                    bits = magnitude(x[b, k, h, n])
                    top[n] = bits if bits > top[n] else top[n]
            for n in range(width):
                if top[n] >= INFINITY_BITS:
                    return False
                scale[b, h, n], inverse[n] = scale_of(top[n], limit)
            for k in range(inner):
                for n in range(width):
                    q[b, k, h, n] = round_small(x[b, k, h, n] * inverse[n])
    return True


def _integers(x: F32, limit: int) -> Ints:
    return empty(x.shape, np.int8 if limit == INT8_LIMIT else np.int16)


def _refuse() -> NonFiniteInputError:
    return NonFiniteInputError(
        "a value to be quantised is NaN or infinite; the operand was refused."
    )


def quantise_rows(x: F32, limit: int) -> Quantised:
    """x[M, K] -> integers with one scale per row."""
    q, scale = _integers(x, limit), empty(x.shape[0], np.float32)
    if not _quantise_rows(x, np.float32(limit), q, scale):
        raise _refuse()
    return Quantised(q, scale, limit, by_rows=True)


def quantise_head_cols(x: F32, limit: int) -> tuple[Ints, F32]:
    """x[B, K, H, N] -> integers, and scales [B, H, N] per column of each (b, h)."""
    batch, _, heads, n = x.shape
    q, scale = _integers(x, limit), empty((batch, heads, n), np.float32)
    top, inverse = empty(n, np.int32), empty(n, np.float32)
    if not _quantise_cols(x, np.float32(limit), top, inverse, q, scale):
        raise _refuse()
    return q, scale


def quantise_cols(x: F32, limit: int) -> Quantised:
    """x[K, N] -> integers with one scale per column."""
    q, scale = quantise_head_cols(x.reshape(1, x.shape[0], 1, x.shape[1]), limit)
    return Quantised(q.reshape(x.shape), scale.reshape(-1), limit, by_rows=False)


@kernel
def _pack_rows(q, width, out):
    """q[B, R, H, K] -> out[B * H][R / width][K / 2][width][2] int16, zero-padded, flat.

    The layout of a left operand given by rows, and of a right operand given transposed.
    """
    batch, rows, heads, inner = q.shape
    pairs = (inner + 1) // 2
    tiles = (rows + width - 1) // width
    for group in range(batch * heads):
        b, h = group // heads, group % heads
        for t in range(tiles):
            for r in range(width):
                i = t * width + r
                base = (((group * tiles + t) * pairs) * width + r) * 2
                if i < rows:
                    for kk in range(inner // 2):
                        out[base + kk * width * 2] = q[b, i, h, 2 * kk]
                        out[base + kk * width * 2 + 1] = q[b, i, h, 2 * kk + 1]
                    if inner % 2:
                        out[base + (pairs - 1) * width * 2] = q[b, i, h, inner - 1]
                        out[base + (pairs - 1) * width * 2 + 1] = np.int16(0)
                else:
                    for kk in range(pairs):
                        out[base + kk * width * 2] = np.int16(0)
                        out[base + kk * width * 2 + 1] = np.int16(0)


@kernel
def _pack_cols(q, width, out):
    """q[B, K, H, C] -> out[B * H][C / width][K / 2][width][2] int16, zero-padded, flat.

    The layout of a right operand, and of a left operand given transposed.
    """
    batch, inner, heads, cols = q.shape
    pairs = (inner + 1) // 2
    panels = (cols + width - 1) // width
    for group in range(batch * heads):
        b, h = group // heads, group % heads
        for p in range(panels):
            first = p * width
            count = width if cols - first > width else cols - first
            for kk in range(pairs):
                base = ((group * panels + p) * pairs + kk) * width * 2
                if count == width and 2 * kk + 1 < inner:
                    for j in range(width):
                        out[base + 2 * j] = q[b, 2 * kk, h, first + j]
                        out[base + 2 * j + 1] = q[b, 2 * kk + 1, h, first + j]
                else:
                    for j in range(width):
                        inside = j < count
                        odd = inside and 2 * kk + 1 < inner
                        out[base + 2 * j] = q[b, 2 * kk, h, first + j] if inside else np.int16(0)
                        out[base + 2 * j + 1] = (
                            q[b, 2 * kk + 1, h, first + j] if odd else np.int16(0)
                        )


def packed_size(length: int, width: int, inner: int) -> int:
    """Elements of a packed operand: `length` rounded up to `width`, `inner` to a pair."""
    return -(-length // width) * width * 2 * ((inner + 1) // 2)


def pack_rows(q: Ints, width: int) -> Ints:
    """q[B, R, H, K] packed for every (b, h) by rows."""
    batch, rows, heads, inner = q.shape
    out: Ints = empty(batch * heads * packed_size(rows, width, inner), np.int16)
    _pack_rows(q, width, out)
    return out


def pack_cols(q: Ints, width: int) -> Ints:
    """q[B, K, H, C] packed for every (b, h) by columns."""
    batch, inner, heads, cols = q.shape
    out: Ints = empty(batch * heads * packed_size(cols, width, inner), np.int16)
    _pack_cols(q, width, out)
    return out


LAYOUTS: dict[str, tuple[Callable[[Ints, int], Ints], int]] = {
    "left rows": (pack_rows, TILE_ROWS),
    "left cols": (pack_cols, TILE_ROWS),
    "right rows": (pack_rows, TILE_COLS),
    "right cols": (pack_cols, TILE_COLS),
}


def packed(operand: Quantised, layout: str) -> Ints:
    """The operand in a layout, made once and kept on it."""
    tiles = operand.tiles.get(layout)
    if tiles is None:
        pack, width = LAYOUTS[layout]
        rows, cols = operand.q.shape
        tiles = pack(operand.q.reshape(1, rows, 1, cols), width)
        operand.tiles[layout] = tiles
    return tiles


@kernel
def _product(left, right, pairs, flush, row_scale, col_scale, block, wide, sums, out):
    """out[M, N] = f32(f32(f32(left x right) * row_scale) * col_scale), panel by panel."""
    rows, cols = out.shape
    for p in range((cols + TILE_COLS - 1) // TILE_COLS):
        n0 = p * TILE_COLS
        width = TILE_COLS if cols - n0 > TILE_COLS else cols - n0
        for t in range((rows + TILE_ROWS - 1) // TILE_ROWS):
            i0 = t * TILE_ROWS
            height = TILE_ROWS if rows - i0 > TILE_ROWS else rows - i0
            tile_sums(
                left,
                t * pairs * TILE_ROWS * 2,
                right,
                p * pairs * TILE_COLS * 2,
                pairs,
                flush,
                block,
                wide,
                sums,
            )
            for r in range(height):
                s = row_scale[i0 + r]
                if width == TILE_COLS:
                    for j in range(TILE_COLS):
                        out[i0 + r, n0 + j] = sums[r * TILE_COLS + j] * s * col_scale[n0 + j]
                else:
                    for j in range(width):
                        out[i0 + r, n0 + j] = sums[r * TILE_COLS + j] * s * col_scale[n0 + j]


def _multiply(a: Quantised, a_layout: str, b: Quantised, b_layout: str, inner: int) -> F32:
    out: F32 = empty((a.scale.size, b.scale.size), np.float32)
    _product(
        packed(a, a_layout),
        packed(b, b_layout),
        (inner + 1) // 2,
        INT8_FLUSH_PAIRS if a.limit == INT8_LIMIT else INT12_FLUSH_PAIRS,
        a.scale,
        b.scale,
        empty(TILE_SIZE, np.int32),
        empty(TILE_SIZE, np.float64),
        empty(TILE_SIZE, np.float32),
        out,
    )
    return out


def linear(x: Quantised, w: Quantised) -> F32:
    """x[M, K] @ w[N, K].T -> [M, N]."""
    return _multiply(x, "left rows", w, "right rows", x.q.shape[1])


def linear_dx(dy: Quantised, w: Quantised) -> F32:
    """dy[M, N] @ w[N, K] -> [M, K]."""
    return _multiply(dy, "left rows", w, "right cols", dy.q.shape[1])


def linear_dw(dy: Quantised, x: Quantised) -> F32:
    """dy[M, N].T @ x[M, K] -> [N, K]."""
    return _multiply(dy, "left cols", x, "right cols", dy.q.shape[0])
