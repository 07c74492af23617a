"""Quantisation, and layouts of integer matrices as words of the inner dimension (see `tile`).

A left operand is read in place: words of a row lie side by side. A right operand lies in panels of
TILE_COLS columns, [panel][word][column]. Zeros fill the last word and the last panel.
May import: types, workspace, jit siblings, llvmlite, numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..types import I32, Ints
from ..workspace import empty
from .compile import helper, kernel, routine
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


@routine
def column_tops(x, first, last, begin, end, top, total):
    """Of columns begin..end-1 and rows first..last-1: bits of the largest magnitude and the sum of
    all magnitudes.

    x[., .]; top int32; total float32, rounded anyhow. Four rows at a time: what is known of a
    column is loaded and stored a quarter as often.
    """
    cols, whole = end - begin, first + (last - first) // 4 * 4
    for j in range(cols):
        top[j], total[j] = np.int32(0), ZERO
    for k in range(first, whole, 4):
        r0, r1 = x[k, begin:end], x[k + 1, begin:end]
        r2, r3 = x[k + 2, begin:end], x[k + 3, begin:end]
        for j in range(cols):
            a, b, c, d = magnitude(r0[j]), magnitude(r1[j]), magnitude(r2[j]), magnitude(r3[j])
            total[j] = total[j] + ((float_of(a) + float_of(b)) + (float_of(c) + float_of(d)))
            a = a if a > b else b
            c = c if c > d else d
            a = a if a > c else c
            top[j] = a if a > top[j] else top[j]
    for k in range(whole, last):
        row = x[k, begin:end]
        for j in range(cols):
            a = magnitude(row[j])
            total[j] = total[j] + float_of(a)
            top[j] = a if a > top[j] else top[j]


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
def quantise_cols_into(x, begin, end, inner, limit, top, total, inverse, q, scale):
    """q, scale[B, N] of columns begin..end-1 of x[B * K, N], one scale per column of each b.

    False if a value is not finite. inner: K. top int32, total and inverse float32 [columns]:
    scratch.
    """
    for b in range(scale.shape[0]):
        first, last = b * inner, (b + 1) * inner
        column_tops(x, first, last, begin, end, top, total)
        for n in range(end - begin):
            if top[n] >= INFINITY_BITS:
                return False
            scale[b, begin + n], inverse[n] = scale_of(top[n], limit)
        for k in range(first, last):
            row, target = x[k, begin:end], q[k, begin:end]
            for n in range(end - begin):
                target[n] = round_small(row[n] * inverse[n])
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


@intrinsic
def _pair_columns(
    typing_context: Any, q: Any, first: Any, second: Any, out: Any, place: Any
) -> Any:
    """out[place + j] = the pair of q[first + j] and q[second + j] in one word, j < TILE_COLS.

    q: int8 or int16, 1-d contiguous like out (int32). LLVM does not find the interleaving itself.
    """
    signature = types.void(q, types.intp, types.intp, out, types.intp)
    half, word = ir.IntType(16), ir.IntType(32)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, target = (
            context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 3)
        )

        def values(offset: Any) -> Any:
            kind = ir.VectorType(source.type.pointee, TILE_COLS)
            at = builder.bitcast(builder.gep(source, [offset]), kind.as_pointer())
            loaded = builder.load(at)
            loaded.align = 1
            wide = ir.VectorType(half, TILE_COLS)
            return loaded if kind == wide else builder.sext(loaded, wide)

        order = [i // 2 + i % 2 * TILE_COLS for i in range(2 * TILE_COLS)]
        mask = ir.Constant(ir.VectorType(word, len(order)), [ir.Constant(word, i) for i in order])
        pairs = builder.shuffle_vector(values(args[1]), values(args[2]), mask)
        place = builder.bitcast(builder.gep(target, [args[4]]), pairs.type.as_pointer())
        builder.store(pairs, place).align = 4
        return context.get_dummy_value()

    return signature, build


@kernel
def _right_cols(q, batch, inner, groups, cols, out):
    """out[B * G][panel][word][TILE_COLS] of pairs down the columns of q[B, K, G, N], flat."""
    count = (inner + 1) // 2
    panels = (cols + TILE_COLS - 1) // TILE_COLS
    for group in range(batch * groups):
        b, g = group // groups, group % groups
        for t in range(count):
            first = ((b * inner + 2 * t) * groups + g) * cols
            second, paired = first + groups * cols, 2 * t + 1 < inner
            for p in range(panels):
                base = ((group * panels + p) * count + t) * TILE_COLS
                n0 = p * TILE_COLS
                if paired and n0 + TILE_COLS <= cols:
                    _pair_columns(q, first + n0, second + n0, out, base)
                else:
                    for j in range(TILE_COLS):
                        inside = n0 + j < cols
                        one = np.int32(q[first + n0 + j]) if inside else np.int32(0)
                        two = np.int32(q[second + n0 + j]) if inside and paired else np.int32(0)
                        out[base + j] = pair_word(one, two)


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
    _right_cols(q.reshape(-1), batch, inner, groups, cols, out)
    return out
