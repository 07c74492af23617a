"""The 16-lane sum of `reference.order` with its lanes in vector registers.

May import: constants, jit.compile, llvmlite, numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..constants import ROW_LANES
from .compile import helper, routine
from .scalar import ZERO

_i32, _i64, _f32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_ALL = ir.VectorType(_f32, ROW_LANES)


def _mask(values: range) -> Any:
    return ir.Constant(ir.VectorType(_i32, len(values)), [ir.Constant(_i32, v) for v in values])


@intrinsic
def lane_sum(typing_context: Any, x: Any, start: Any, blocks: Any) -> Any:
    """Sum of 16 * blocks float32 of a contiguous 1-d array from `start`: lanes, then a tree."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        data = builder.gep(array.data, [args[1]])
        before = builder.block
        head = builder.append_basic_block("lanes.head")
        body = builder.append_basic_block("lanes.body")
        done = builder.append_basic_block("lanes.done")
        builder.branch(head)

        builder.position_at_end(head)
        k, total = builder.phi(_i64), builder.phi(_ALL)
        k.add_incoming(ir.Constant(_i64, 0), before)
        total.add_incoming(ir.Constant(_ALL, [ir.Constant(_f32, 0.0)] * ROW_LANES), before)
        builder.cbranch(builder.icmp_signed("<", k, args[2]), body, done)

        builder.position_at_end(body)
        at = builder.gep(data, [builder.mul(k, ir.Constant(_i64, ROW_LANES))])
        block = builder.load(builder.bitcast(at, _ALL.as_pointer()))
        block.align = 4
        total.add_incoming(builder.fadd(total, block), body)
        k.add_incoming(builder.add(k, ir.Constant(_i64, 1)), body)
        builder.branch(head)

        builder.position_at_end(done)
        folded, width = total, ROW_LANES // 2
        while width:
            low, high = (
                builder.shuffle_vector(folded, folded, _mask(range(first, first + width)))
                for first in (0, width)
            )
            folded = builder.fadd(low, high)
            width //= 2
        return builder.extract_element(folded, ir.Constant(_i32, 0))

    return types.float32(x, types.intp, types.intp), build


@helper
def pad_lanes(row, n):
    """Zeros behind row[:n] up to whole lanes; the number of blocks of 16."""
    blocks = (n + ROW_LANES - 1) // ROW_LANES
    for j in range(n, blocks * ROW_LANES):
        row[j] = ZERO
    return blocks


PAD = np.int64(32)
"""Short rows are padded to a multiple of it: a loop over a whole number of vectors has no rest that
is done value by value, which takes longer than the vectors."""


@helper
def whole_lanes(n):
    """n rounded up to a multiple of `PAD`."""
    return (n + (PAD - 1)) & -PAD


@routine
def fill(row, begin, end, value):
    """row[begin:end] = value."""
    part = row[begin:end]
    for j in range(part.size):
        part[j] = value
