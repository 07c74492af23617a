"""The ceiling of the tile: its arithmetic on registers alone, for the benchmark.

May import: jit.compile, jit.target, jit.tile, numba.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .compile import kernel
from .target import LANES, WORDS
from .tile import MODES, TILE_ROWS

_VECTORS = 12
OPERATIONS = _VECTORS * LANES * 2 * 2
"""Multiplications and additions of one round: every lane of a vector adds a pair of products."""

_i64 = ir.IntType(64)
_SUMS = ir.VectorType(ir.IntType(32), LANES)


@intrinsic
def _rounds(typing_context: Any, seed: Any, count: Any) -> Any:
    """`count` rounds of independent multiply-adds of int16 pairs; some lane of the sums."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mode = MODES[WORDS]
        before = builder.block
        loop = builder.append_basic_block("peak.loop")
        done = builder.append_basic_block("peak.done")
        row = mode.left(builder, args[0])
        starts = [
            ir.Constant(_SUMS, [ir.Constant(ir.IntType(32), i)] * LANES) for i in range(_VECTORS)
        ]
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_i64)
        k.add_incoming(ir.Constant(_i64, 0), before)
        sums = [builder.phi(_SUMS) for _ in range(_VECTORS)]
        # Multiplying by a sum of the last round keeps the loop from being computed beforehand.
        column = mode.right(builder, sums[0])
        added = [mode.add(builder, total, row, column) for total in sums]
        for start, old, new in zip(starts, sums, added, strict=True):
            old.add_incoming(start, before)
            old.add_incoming(new, loop)
        following = builder.add(k, ir.Constant(_i64, 1))
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, args[1]), loop, done)
        builder.position_at_end(done)
        total = added[0]
        for other in added[1:]:
            total = builder.xor(total, other)
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return types.int32(types.int32, types.int64), build


assert TILE_ROWS * 2 == _VECTORS


@kernel
def spin(seed, count):
    """Do `count` rounds of `OPERATIONS`."""
    return _rounds(seed, count)
