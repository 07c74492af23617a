"""Reads and repairs the floating-point control word of the calling thread.

x86: MXCSR; aarch64: FPCR. Elsewhere the mode is only checked, by results.
May import: floatmode, jit.compile, jit.target (which machine this is), numba.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .. import floatmode
from .compile import kernel
from .target import IS_AARCH64, IS_X86

_word, _wide, _byte = ir.IntType(32), ir.IntType(64), ir.IntType(8)

if IS_X86:
    # Flush-to-zero 15, rounding 14-13, exception masks 12-7 (all on), denormals-are-zero 6.
    MODE_MASK, MODE_VALUE = 0xFFC0, 0x1F80
else:
    # Default NaN 25, flush 24, rounding 23-22, traps 15 and 12-8, alternate handling 2-0.
    MODE_MASK, MODE_VALUE = 0x03C09F07, 0


def _call(builder: Any, name: str, result: Any, arguments: list[tuple[Any, Any]]) -> Any:
    kind = ir.FunctionType(result, [t for t, _ in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [value for _, value in arguments])


@intrinsic
def _read(typing_context: Any) -> Any:
    """-> the control word, int64."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not IS_X86:
            return _call(builder, "llvm.aarch64.get.fpcr", _wide, [])
        slot = cgutils.alloca_once(builder, _word)
        pointer = builder.bitcast(slot, _byte.as_pointer())
        _call(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), [(_byte.as_pointer(), pointer)])
        return builder.zext(builder.load(slot), _wide)

    return types.int64(), build


@intrinsic
def _write(typing_context: Any, word: Any) -> Any:
    """Set the control word."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if IS_X86:
            slot = cgutils.alloca_once_value(builder, builder.trunc(args[0], _word))
            pointer = builder.bitcast(slot, _byte.as_pointer())
            _call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [(_byte.as_pointer(), pointer)])
        else:
            _call(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), [(_wide, args[0])])
        return context.get_dummy_value()

    return types.void(types.int64), build


@kernel
def _repair(mask, value):
    """Put the masked bits right; (was a repair needed?, is it right now?)."""
    word = _read()
    if word & mask == value:
        return False, True
    _write((word & ~mask) | value)
    return True, _read() & mask == value


@kernel
def read_word():
    """The control word of this thread."""
    return _read()


@kernel
def write_word(word):
    """Replace the control word of this thread (tests break the mode with it)."""
    _write(word)


def pin() -> bool:
    """Make this thread's mode right; True if it had to be repaired. FloatModeError if it stays."""
    if not (IS_X86 or IS_AARCH64):
        return floatmode.require()
    repaired, right = _repair(MODE_MASK, MODE_VALUE)
    if not right:
        raise floatmode.refuse()
    return bool(repaired)
