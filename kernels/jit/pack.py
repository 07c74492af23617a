"""Quantisation, and layouts of integer matrices as words of the inner dimension (see `tile`).

A left operand is read in place: words of a row lie side by side. A right operand lies in panels of
TILE_COLS columns, [panel][word][column]. Zeros fill the last word and the last panel.
May import: types, workspace, jit siblings.
"""

from __future__ import annotations

import numpy as np

from ..types import I32, Ints
from ..workspace import empty
from .compile import helper, kernel
from .scalar import FLUSH_BITS, INFINITY_BITS, ZERO, float_of, magnitude, round_small
from .tile import TILE_COLS

_LOW_HALF = np.int32(0xFFFF)
_HALF_SHIFT = np.int32(16)
_ROW_GAP = 16
"""Words between rows: without them, rows of a power of two would fall on the same cache lines."""


@helper
def scale_of(top, limit):
    """(scale, inverse) from the bits of the largest magnitude."""
    if top < FLUSH_BITS:
        return ZERO, ZERO
    absmax = float_of(top)
    return absmax / limit, limit / absmax


@helper
def pair_word(first, second):
    """Two int16 values (as int32) in one word."""
    return np.int32(np.int32(second << _HALF_SHIFT) | np.int32(first & _LOW_HALF))


@helper
def row_top(x, i):
    """Bits of the largest magnitude in row i."""
    top = np.int32(0)
    for k in range(x.shape[1]):
        bits = magnitude(x[i, k])
        top = bits if bits > top else top
    return top


@kernel
def quantise_rows_into(x, limit, q, scale):
    """q, scale of x[M, K] by rows; True if every value was finite."""
    for i in range(x.shape[0]):
        top = row_top(x, i)
        if top >= INFINITY_BITS:
            return False
        s, inverse = scale_of(top, limit)
        scale[i] = s
        for k in range(x.shape[1]):
            q[i, k] = round_small(x[i, k] * inverse)
    return True


@kernel
def quantise_cols_into(x, limit, top, inverse, q, scale):
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


@kernel
def _widen_rows(q, out):
    """out[R, 2 * words] int16 = q[R, K], zeros behind."""
    for i in range(q.shape[0]):
        for k in range(q.shape[1]):
            out[i, k] = q[i, k]
        for k in range(q.shape[1], out.shape[1]):
            out[i, k] = np.int16(0)


@kernel
def _offset_rows(q, flip, out):
    """out[R, 4 * words] int8 = q[R, K] with the bits `flip` flipped, zeros behind."""
    for i in range(q.shape[0]):
        for k in range(q.shape[1]):
            out[i, k] = np.int8(q[i, k] ^ flip)
        for k in range(q.shape[1], out.shape[1]):
            out[i, k] = np.int8(0)


@kernel
def _left_cols(q, out):
    """out[K / 2, M] words of pairs down the columns of q[K, M]."""
    inner, width = q.shape
    for t in range(inner // 2):
        for j in range(width):
            out[t, j] = pair_word(np.int32(q[2 * t, j]), np.int32(q[2 * t + 1, j]))
    if inner % 2:
        for j in range(width):
            out[inner // 2, j] = pair_word(np.int32(q[inner - 1, j]), np.int32(0))


@kernel
def _right_rows(words, out):
    """out[B * G][panel][word][TILE_COLS] from words[B, R, G, W], the words of each row."""
    batch, rows, groups, count = words.shape
    panels = (rows + TILE_COLS - 1) // TILE_COLS
    for group in range(batch * groups):
        b, g = group // groups, group % groups
        for p in range(panels):
            for j in range(TILE_COLS):
                base = (group * panels + p) * count * TILE_COLS + j
                n = p * TILE_COLS + j
                if n < rows:
                    for k in range(count):
                        out[base + k * TILE_COLS] = words[b, n, g, k]
                else:
                    for k in range(count):
                        out[base + k * TILE_COLS] = np.int32(0)


@kernel
def _right_cols(q, out):
    """out[B * G][panel][word][TILE_COLS] of pairs down the columns of q[B, K, G, N]."""
    batch, inner, groups, cols = q.shape
    count = (inner + 1) // 2
    panels = (cols + TILE_COLS - 1) // TILE_COLS
    for group in range(batch * groups):
        b, g = group // groups, group % groups
        for t in range(count):
            paired = 2 * t + 1 < inner
            for p in range(panels):
                base = ((group * panels + p) * count + t) * TILE_COLS
                target = out[base : base + TILE_COLS]
                n0 = p * TILE_COLS
                if paired and n0 + TILE_COLS <= cols:
                    first, second = q[b, 2 * t, g, n0:], q[b, 2 * t + 1, g, n0:]
                    for j in range(TILE_COLS):
                        target[j] = pair_word(np.int32(first[j]), np.int32(second[j]))
                else:
                    for j in range(TILE_COLS):
                        inside = n0 + j < cols
                        one = np.int32(q[b, 2 * t, g, n0 + j]) if inside else np.int32(0)
                        two = (
                            np.int32(q[b, 2 * t + 1, g, n0 + j])
                            if inside and paired
                            else np.int32(0)
                        )
                        target[j] = pair_word(one, two)


def row_words(rows: int, inner: int, per_word: int, gap: int = _ROW_GAP) -> I32:
    """Room for the rows of an operand, [rows, words + gap]: the words of a row side by side."""
    words: I32 = empty((rows, -(-inner // per_word) + gap), np.int32)
    return words


def widened(q: Ints, gap: int = _ROW_GAP) -> I32:
    """q[R, K] as rows of words of pairs."""
    words = row_words(q.shape[0], q.shape[1], 2, gap)
    _widen_rows(q, words.view(np.int16))
    return words


def bytes_of(q: Ints, offset: bool, gap: int = _ROW_GAP) -> I32:
    """q[R, K] int8 as rows of words of quads; `offset`: 128 is added, the result unsigned."""
    words = row_words(q.shape[0], q.shape[1], 4, gap)
    _offset_rows(q, np.int8(-128 if offset else 0), words.view(np.int8))
    return words


def left_cols(q: Ints) -> I32:
    """q[K, M] as words of pairs [K / 2, M]."""
    words: I32 = empty((-(-q.shape[0] // 2), q.shape[1]), np.int32)
    _left_cols(q, words)
    return words


def panels_size(cols: int, words: int) -> int:
    """Words of a right operand of `cols` columns."""
    return -(-cols // TILE_COLS) * TILE_COLS * words


def right_rows(words: I32) -> I32:
    """Rows of words [B, R, G, W] as the panels of B * G right operands (transposed)."""
    batch, rows, groups, count = words.shape
    out: I32 = empty(batch * groups * panels_size(rows, count), np.int32)
    _right_rows(words, out)
    return out


def right_cols(q: Ints) -> I32:
    """q[B, K, G, N] as the panels of B * G right operands, in words of pairs."""
    batch, inner, groups, cols = q.shape
    out: I32 = empty(batch * groups * panels_size(cols, -(-inner // 2)), np.int32)
    _right_cols(q, out)
    return out
