"""The micro-kernel: a TILE_ROWS x TILE_COLS block of an integer product in registers.

Operands are arrays of int32 words. A word holds neighbours along the inner dimension: a pair of
int16, or a quad of int8. The left operand is read one word at a time through a row step and an
inner step, so rows of a matrix need no packing; the right operand lies in panels, TILE_COLS words
for every step. The block is emitted as LLVM vector code in one of three modes, chosen by
`target`: int16 pairs, whose widen-multiply-add-pairs pattern LLVM turns into pmaddwd or vpdpwssd;
int16 outer products (smlal by element) over the same words; int8 quads (vpdpbusd, sdot) for int8
operands where the processor has them.
May import: jit.compile, jit.target, numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import helper, routine
from .target import LANES, QUADS, WORDS

TILE_ROWS = 6
_VECTORS = 2
TILE_COLS = _VECTORS * LANES
TILE_SIZE = TILE_ROWS * TILE_COLS
NONE, STEP, WHOLE = np.int64(0), np.int64(1), np.int64(TILE_COLS)
"""Typed, for numba compiles a function anew for every literal argument."""

_i8, _i16, _i32, _i64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_f32, _f64 = ir.FloatType(), ir.DoubleType()
_SUMS = ir.VectorType(_i32, LANES)
_PAIRS = ir.VectorType(_i16, 2 * LANES)
_BYTES = ir.VectorType(_i8, 4 * LANES)


def _constant(value: int) -> Any:
    return ir.Constant(_i64, value)


def _mask(values: range) -> Any:
    return ir.Constant(ir.VectorType(_i32, len(values)), [ir.Constant(_i32, v) for v in values])


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    """A vector of `lanes` copies of a scalar."""
    one = builder.insert_element(
        ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, ir.Constant(_i32, 0)
    )
    return builder.shuffle_vector(
        one, one, ir.Constant(ir.VectorType(_i32, lanes), [ir.Constant(_i32, 0)] * lanes)
    )


def _at(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    """Pointer to `kind` at an element offset from base."""
    return builder.bitcast(builder.gep(base, [offset]), kind.as_pointer())


def _load(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    """Load with no more alignment than a scalar has."""
    load = builder.load(_at(builder, base, offset, kind))
    load.align = 4
    return load


def _store(builder: Any, value: Any, base: Any, offset: Any) -> None:
    store = builder.store(value, _at(builder, base, offset, value.type))
    store.align = 4


def _halves(builder: Any, pairs: Any) -> tuple[Any, Any]:
    """<2n x i16> -> its even and its odd elements, widened to <n x i32>."""
    lanes = pairs.type.count // 2
    return tuple(
        builder.sext(
            builder.shuffle_vector(pairs, pairs, _mask(range(first, 2 * lanes, 2))),
            ir.VectorType(_i32, lanes),
        )
        for first in (0, 1)
    )


class _Pairs:
    """Words of two int16; the products of a pair are added to each other first."""

    @staticmethod
    def left(builder: Any, word: Any) -> Any:
        return builder.bitcast(_splat(builder, word, LANES), _PAIRS)

    @staticmethod
    def right(builder: Any, words: Any) -> Any:
        return builder.bitcast(words, _PAIRS)

    @staticmethod
    def add(builder: Any, total: Any, a: Any, b: Any) -> Any:
        wide = ir.VectorType(_i32, 2 * LANES)
        product = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
        even, odd = (
            builder.shuffle_vector(product, product, _mask(range(first, 2 * LANES, 2)))
            for first in (0, 1)
        )
        return builder.add(total, builder.add(even, odd))


class _Outer:
    """Words of two int16 as two steps of a widening multiply-add (arm64: smlal by element)."""

    @staticmethod
    def left(builder: Any, word: Any) -> Any:
        pair = builder.bitcast(word, ir.VectorType(_i16, 2))
        scalars = (builder.extract_element(pair, ir.Constant(_i32, i)) for i in (0, 1))
        return tuple(
            builder.sext(_splat(builder, s, LANES), ir.VectorType(_i32, LANES)) for s in scalars
        )

    @staticmethod
    def right(builder: Any, words: Any) -> Any:
        return _halves(builder, builder.bitcast(words, _PAIRS))

    @staticmethod
    def add(builder: Any, total: Any, a: Any, b: Any) -> Any:
        for x, y in zip(a, b, strict=True):
            total = builder.add(total, builder.mul(x, y))
        return total


class _Quads:
    """Words of four int8, by the instruction that `target` found."""

    @staticmethod
    def left(builder: Any, word: Any) -> Any:
        return _splat(builder, word, LANES)

    @staticmethod
    def right(builder: Any, words: Any) -> Any:
        return words

    @staticmethod
    def add(builder: Any, total: Any, a: Any, b: Any) -> Any:
        assert QUADS is not None
        kind = _BYTES if QUADS.bytes else _SUMS
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_SUMS, [_SUMS, kind, kind]), QUADS.instruction
        )
        return builder.call(function, [total, builder.bitcast(a, kind), builder.bitcast(b, kind)])


MODES: dict[str, Any] = {"pairs": _Pairs, "outer": _Outer, "quads": _Quads}


def _sums(builder: Any, mode: Any, left: Any, steps: tuple[Any, Any, Any], right: Any, count: Any,
          start: list[Any]) -> list[Any]:  # fmt: skip
    """Emit the loop over `count` >= 1 words; the block's sums, row by row of vectors.

    left, right: pointers to the first word. steps: words from row to row, words from step to
    step, and the last row that exists (rows behind it repeat it). start: the first value of each
    vector of a row.
    """
    row_step, step, last = steps
    rows = []
    for r in range(TILE_ROWS):
        index = builder.select(builder.icmp_signed("<", last, _constant(r)), last, _constant(r))
        rows.append(builder.gep(left, [builder.mul(index, row_step)]))
    before = builder.block
    loop = builder.append_basic_block("tile.loop")
    done = builder.append_basic_block("tile.done")
    builder.branch(loop)

    builder.position_at_end(loop)
    k, at = builder.phi(_i64), builder.phi(_i64)
    k.add_incoming(_constant(0), before)
    at.add_incoming(_constant(0), before)
    totals = [builder.phi(_SUMS) for _ in range(TILE_ROWS * _VECTORS)]
    panel = builder.gep(right, [builder.mul(k, _constant(TILE_COLS))])
    columns = [
        mode.right(builder, _load(builder, panel, _constant(v * LANES), _SUMS))
        for v in range(_VECTORS)
    ]
    updated = []
    for r in range(TILE_ROWS):
        row = mode.left(builder, _load(builder, rows[r], at, _i32))
        for v in range(_VECTORS):
            updated.append(mode.add(builder, totals[r * _VECTORS + v], row, columns[v]))
    for i, (old, new) in enumerate(zip(totals, updated, strict=True)):
        old.add_incoming(start[i % _VECTORS], before)
        old.add_incoming(new, loop)
    following = builder.add(k, _constant(1))
    k.add_incoming(following, loop)
    at.add_incoming(builder.add(at, step), loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    builder.position_at_end(done)
    return updated


def _pointers(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """A function from the position of (array, offset) among the arguments to a pointer."""

    def at(index: int) -> Any:
        array = context.make_array(signature.args[index])(context, builder, args[index])
        return builder.gep(array.data, [args[index + 1]])

    return at


_LEFT = (types.intp, types.intp, types.intp)
"""Row step, inner step, last row that exists."""
_ZERO = ir.Constant(_SUMS, [ir.Constant(_i32, 0)] * LANES)


@intrinsic
def tile_add(
    typing_context: Any, left: Any, lo: Any, row_step: Any, step: Any, last: Any, right: Any,
    ro: Any, count: Any, wide: Any, wo: Any,
) -> Any:  # fmt: skip
    """wide[TILE_SIZE] float64 from offset wo += the exact sums over `count` >= 1 words of int16.

    left, right, wide: 1-d contiguous arrays and offsets in elements. Taking the arrays and not
    their addresses keeps them alive during the call. No bound is checked here.
    """
    signature = types.void(left, types.intp, *_LEFT, right, types.intp, types.intp, wide,
                           types.intp)  # fmt: skip

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _pointers(context, builder, signature, args)
        sums = _sums(builder, MODES[WORDS], at(0), args[2:5], at(5), args[7], [_ZERO] * _VECTORS)
        out, kind = at(8), ir.VectorType(_f64, LANES)
        for i, total in enumerate(sums):
            place = _constant(i * LANES)
            sum_ = builder.fadd(_load(builder, out, place, kind), builder.sitofp(total, kind))
            _store(builder, sum_, out, place)
        return context.get_dummy_value()

    return signature, build


def scaled(mode: str) -> Any:
    """The tile with its epilogue: out[r * row_length + j] from offset oo =
    f32(f32(f32(sum) * row_scale[r]) * col_scale[j]) for a whole block.

    mode: "pairs" or "outer" over words of int16, or "quads" over words of int8, where sums begin
    with start[j] (int32, from offset so). col_scale from offset cs holds TILE_COLS values,
    row_scale those of the rows that exist.
    """

    @intrinsic
    def tile(
        typing_context: Any, left: Any, lo: Any, row_step: Any, step: Any, last: Any, right: Any,
        ro: Any, count: Any, start: Any, so: Any, row_scale: Any, rs: Any, col_scale: Any, cs: Any,
        out: Any, oo: Any, row_length: Any,
    ) -> Any:  # fmt: skip
        signature = types.void(
            left, types.intp, *_LEFT, right, types.intp, types.intp, start, types.intp, row_scale,
            types.intp, col_scale, types.intp, out, types.intp, types.intp,
        )  # fmt: skip

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = _pointers(context, builder, signature, args)
            first = [_ZERO] * _VECTORS
            if mode == "quads":
                base = at(8)
                first = [_load(builder, base, _constant(v * LANES), _SUMS) for v in range(_VECTORS)]
            sums = _sums(builder, MODES[mode], at(0), args[2:5], at(5), args[7], first)
            floats = ir.VectorType(_f32, LANES)
            scales, columns, result = at(10), at(12), at(14)
            factors = [
                _load(builder, columns, _constant(v * LANES), floats) for v in range(_VECTORS)
            ]
            for r in range(TILE_ROWS):
                row = builder.select(
                    builder.icmp_signed("<", args[4], _constant(r)), args[4], _constant(r)
                )
                factor = _splat(builder, _load(builder, scales, row, _f32), LANES)
                begin = builder.mul(_constant(r), args[16])
                for v in range(_VECTORS):
                    value = builder.sitofp(sums[r * _VECTORS + v], floats)
                    value = builder.fmul(builder.fmul(value, factor), factors[v])
                    place = builder.add(begin, _constant(v * LANES))
                    _store(builder, value, result, place)
            return context.get_dummy_value()

        return signature, build

    return tile


tile_scaled = scaled(WORDS)
tile_quads = scaled("quads") if QUADS is not None else tile_scaled


@routine
def _ragged_block(
    left, lo, row_step, step, last, right, ro, count, flush, row_scale, rs, col_scale, cs, width,
    wide, edge, out, oo, row_length,
):  # fmt: skip
    """`scaled_block` where the block is not whole or int32 cannot hold the sums."""
    if count <= flush:
        tile_scaled(
            left, lo, row_step, step, last, right, ro, count, right, 0, row_scale, rs, col_scale,
            cs, edge, 0, TILE_COLS,
        )  # fmt: skip
    else:
        for i in range(TILE_SIZE):
            wide[i] = 0.0
        for k in range(0, count, flush):
            tile_add(
                left, lo + k * step, row_step, step, last, right, ro + k * TILE_COLS,
                min(flush, count - k), wide, 0,
            )  # fmt: skip
        for r in range(last + 1):
            for j in range(TILE_COLS):
                total = np.float32(wide[r * TILE_COLS + j])
                edge[r * TILE_COLS + j] = total * row_scale[rs + r] * col_scale[cs + j]
    for r in range(last + 1):
        for j in range(width):
            out[oo + r * row_length + j] = edge[r * TILE_COLS + j]


@helper
def scaled_block(
    left, lo, row_step, step, last, right, ro, count, flush, row_scale, rs, col_scale, cs, width,
    wide, edge, out, oo, row_length,
):  # fmt: skip
    """out[r * row_length + j] from oo, for rows 0..last and `width` columns, as `tile_scaled`.

    flush: words that int32 can sum; beyond it blocks are added in binary64. wide float64 and edge
    float32, both [TILE_SIZE]: scratch.
    """
    if last == TILE_ROWS - 1 and width == TILE_COLS and count <= flush:
        tile_scaled(
            left, lo, row_step, step, last, right, ro, count, right, 0, row_scale, rs, col_scale,
            cs, out, oo, row_length,
        )  # fmt: skip
    else:
        _ragged_block(
            left, lo, row_step, step, last, right, ro, count, flush, row_scale, rs, col_scale, cs,
            width, wide, edge, out, oo, row_length,
        )  # fmt: skip
