"""The micro-kernel: a 6 x TILE_COLS block of an integer product in registers.

Operands are int16, laid out by `jit.pack`: for every pair of inner positions (k, k+1) the left
strip holds 6 x 2 values and the right panel TILE_COLS x 2. On x86 the block is emitted as
portable LLVM vector code whose widen-multiply-add-pairs pattern LLVM turns into pmaddwd (or its
VNNI form) at the width the CPU has; elsewhere a plain loop is compiled.
May import: jit.compile, numba.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .compile import config, helper, routine

IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


def _vector_length() -> int:
    """int32 lanes of one vector register: 8 with AVX2, else 4. Affects speed only."""
    if config.CPU_FEATURES is not None:
        return 8 if "+avx2" in config.CPU_FEATURES else 4
    if config.CPU_NAME not in (None, "", "host"):
        return 4
    return 8 if llvmlite.binding.get_host_cpu_features().get("avx2") else 4


TILE_ROWS = 6
_VECTORS = 2
_LANES = _vector_length() if IS_X86 else 8
TILE_COLS = _VECTORS * _LANES
TILE_SIZE = TILE_ROWS * TILE_COLS

_i16, _i32, _i64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_i32, _LANES)
_PAIRS = ir.VectorType(_i16, 2 * _LANES)
_WIDE = ir.VectorType(_i32, 2 * _LANES)


def _constant(value: int) -> Any:
    return ir.Constant(_i64, value)


def _mask(values: range) -> Any:
    kind = ir.VectorType(_i32, len(values))
    return ir.Constant(kind, [ir.Constant(_i32, v) for v in values])


def _pair_products(builder: Any, a: Any, b: Any) -> Any:
    """<2n x i16>, <2n x i16> -> <n x i32> of a[2i] * b[2i] + a[2i+1] * b[2i+1]."""
    product = builder.mul(builder.sext(a, _WIDE), builder.sext(b, _WIDE))
    even = builder.shuffle_vector(product, product, _mask(range(0, 2 * _LANES, 2)))
    odd = builder.shuffle_vector(product, product, _mask(range(1, 2 * _LANES, 2)))
    return builder.add(even, odd)


@intrinsic
def vector_tile(typing_context: Any, a: Any, ao: Any, b: Any, bo: Any, c: Any, pairs: Any) -> Any:
    """c[6 * TILE_COLS] int32 = strip a from offset ao times panel b from bo, over pairs >= 1.

    a, b: int16, 1-d, contiguous; offsets in elements. Taking the arrays and not their addresses
    keeps them alive during the call. No bound is checked here.
    """
    signature = types.void(a, types.intp, b, types.intp, c, types.intp)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def data(index: int) -> Any:
            return context.make_array(signature.args[index])(context, builder, args[index]).data

        def vector_at(base: Any, offset: Any, kind: Any) -> Any:
            return builder.bitcast(builder.gep(base, [offset]), kind.as_pointer())

        left = builder.gep(data(0), [args[1]])
        right = builder.gep(data(2), [args[3]])
        out, count = data(4), args[5]
        before = builder.block
        loop = builder.append_basic_block("tile.loop")
        done = builder.append_basic_block("tile.done")
        builder.branch(loop)

        builder.position_at_end(loop)
        k = builder.phi(_i64)
        k.add_incoming(_constant(0), before)
        sums = [builder.phi(_WORDS) for _ in range(TILE_ROWS * _VECTORS)]
        panel = builder.gep(right, [builder.mul(k, _constant(2 * TILE_COLS))])
        strip = builder.gep(left, [builder.mul(k, _constant(2 * TILE_ROWS))])
        columns = []
        for v in range(_VECTORS):
            load = builder.load(vector_at(panel, _constant(2 * v * _LANES), _PAIRS))
            load.align = 2
            columns.append(load)
        updated = []
        for r in range(TILE_ROWS):
            pair = builder.load(vector_at(strip, _constant(2 * r), _i32))
            pair.align = 2
            one = builder.insert_element(
                ir.Constant(_WORDS, ir.Undefined), pair, ir.Constant(_i32, 0)
            )
            row = builder.bitcast(
                builder.shuffle_vector(one, one, ir.Constant(_WORDS, [0] * _LANES)), _PAIRS
            )
            for v in range(_VECTORS):
                products = _pair_products(builder, row, columns[v])
                updated.append(builder.add(sums[r * _VECTORS + v], products))
        zero = ir.Constant(_WORDS, [0] * _LANES)
        for old, new in zip(sums, updated, strict=True):
            old.add_incoming(zero, before)
            old.add_incoming(new, loop)
        following = builder.add(k, _constant(1))
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, done)

        builder.position_at_end(done)
        for i, total in enumerate(updated):
            store = builder.store(total, vector_at(out, _constant(i * _LANES), _WORDS))
            store.align = 4
        return context.get_dummy_value()

    return signature, build


@helper
def plain_tile(a, ao, b, bo, c, pairs):
    """The same block as a plain loop."""
    for i in range(TILE_SIZE):
        c[i] = np.int32(0)
    for k in range(pairs):
        for r in range(TILE_ROWS):
            a0 = np.int32(a[ao + (k * TILE_ROWS + r) * 2])
            a1 = np.int32(a[ao + (k * TILE_ROWS + r) * 2 + 1])
            for j in range(TILE_COLS):
                p = bo + (k * TILE_COLS + j) * 2
                c[r * TILE_COLS + j] += np.int32(a0 * b[p]) + np.int32(a1 * b[p + 1])


tile = vector_tile if IS_X86 else plain_tile


@routine
def tile_sums(a, ao, b, bo, pairs, flush, block, wide, sums):
    """sums[TILE_SIZE] = f32 of the exact products over pairs >= 0, rounded once.

    flush: pairs after which int32 could overflow; beyond it blocks are added in binary64.
    block int32, wide float64, both [TILE_SIZE]: scratch.
    """
    if pairs <= 0:
        for i in range(TILE_SIZE):
            sums[i] = np.float32(0.0)
    elif pairs <= flush:
        tile(a, ao, b, bo, block, pairs)
        for i in range(TILE_SIZE):
            sums[i] = np.float32(block[i])
    else:
        for i in range(TILE_SIZE):
            wide[i] = 0.0
        for start in range(0, pairs, flush):
            count = flush if pairs - start > flush else pairs - start
            tile(a, ao + start * 2 * TILE_ROWS, b, bo + start * 2 * TILE_COLS, block, count)
            for i in range(TILE_SIZE):
                wide[i] += np.float64(block[i])
        for i in range(TILE_SIZE):
            sums[i] = np.float32(wide[i])
