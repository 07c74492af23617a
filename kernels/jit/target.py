"""What the processor that code is compiled for can do, asked from LLVM and not from the machine.

An instruction that LLVM does not know for its target would abort the process, so every choice
follows numba's own target: its name and features, which NUMBA_CPU_NAME and NUMBA_CPU_FEATURES may
have changed, and for the vector length and arm64's dot product the code LLVM makes of a probe.
May import: numba, llvmlite.
"""

from __future__ import annotations

import dataclasses
import platform
from typing import Any

import llvmlite.binding as llvm
from numba.core.registry import cpu_target

MACHINE = platform.machine().lower()
IS_X86 = MACHINE in ("x86_64", "amd64")
IS_AARCH64 = MACHINE in ("aarch64", "arm64")


@dataclasses.dataclass(frozen=True)
class Quads:
    """An instruction that adds four products of int8 to every int32 lane."""

    instruction: str
    bytes: bool
    """Its operands are vectors of int8 (else of int32)."""
    unsigned_left: bool
    """The left operand is unsigned: 128 is added to it, and taken off again in the sums."""


def _target() -> tuple[str, str, str]:
    """Triple, processor and features that numba compiles for."""
    codegen: Any = cpu_target.target_context.codegen()
    triple, name, features = codegen.magic_tuple()
    return str(triple), str(name), str(features)


_ADD = """
define <8 x i32> @add(<8 x i32> %a, <8 x i32> %b) {
  %c = add <8 x i32> %a, %b
  ret <8 x i32> %c
}
"""
_DOT = """
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
define i32 @dot(<16 x i8> %a, <16 x i8> %b) {
  %l = sext <16 x i8> %a to <16 x i32>
  %r = sext <16 x i8> %b to <16 x i32>
  %p = mul <16 x i32> %l, %r
  %s = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %p)
  ret i32 %s
}
"""


def _assembly(probe: str, triple: str, name: str, features: str) -> str:
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=name, features=features)
    return str(machine.emit_assembly(llvm.parse_assembly(probe)))


def _lanes(triple: str, name: str, features: str) -> int:
    """int32 lanes of a vector register: 8 with AVX2, else 4. Affects speed only."""
    if not IS_X86:
        return 4
    return 8 if "ymm" in _assembly(_ADD, triple, name, features) else 4


def has_sdot(triple: str, name: str, features: str) -> bool:
    """Does LLVM use arm64's dot product of int8 by itself for this target?

    The features alone do not tell: on Linux LLVM reads them from /proc/cpuinfo and knows no name
    for this one, though it knows that a processor of that name has it.
    """
    return "sdot" in _assembly(_DOT, triple, name, features)


def _quads(triple: str, name: str, features: str, lanes: int) -> Quads | None:
    """The int8 instruction, if LLVM has it for this target."""
    have = set(features.split(","))
    if IS_X86 and lanes == 8 and (have >= {"+avx512vnni", "+avx512vl"} or "+avxvnni" in have):
        return Quads("llvm.x86.avx512.vpdpbusd.256", bytes=False, unsigned_left=True)
    if IS_AARCH64 and has_sdot(triple, name, features):
        return Quads("llvm.aarch64.neon.sdot.v4i32.v16i8", bytes=True, unsigned_left=False)
    return None


TRIPLE, CPU, FEATURES = _target()
LANES = _lanes(TRIPLE, CPU, FEATURES)
WORDS = "outer" if IS_AARCH64 else "pairs"
"""How words of int16 are multiplied."""
QUADS = _quads(TRIPLE, CPU, FEATURES, LANES)
"""How words of int8 are multiplied; None: as int16."""
