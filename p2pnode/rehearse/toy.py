"""A toy model in small integers whose state depends on everything the protocol must get right.

A slot's gradient depends on the weights, so a wrong state shows in the next gradient; the update
depends on the step number, both moments and a grid that follows the largest magnitudes.

May import: protocol.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from dataclasses import dataclass

from p2pnode.protocol.evidence import CHECKSUM_MODULUS, summarise
from p2pnode.protocol.messages import SlotEvidence, Summary

PARAMETERS = 13
TENSORS = 2
SPLIT = 5
"""Tensor 0 is the parameters before this one."""
PROBE = hashlib.sha256(b"probe").digest()
_FORMAT = f"<{PARAMETERS}i"


def pack(values: list[int] | tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def unpack(raw: bytes | bytearray | memoryview) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // 4}i", raw)


def checksum(values: tuple[int, ...] | list[int]) -> int:
    return sum((i + 1) * value for i, value in enumerate(values)) % CHECKSUM_MODULUS


def magnitudes(values: tuple[int, ...]) -> tuple[int, ...]:
    return (
        max(abs(value) for value in values[:SPLIT]),
        max(abs(value) for value in values[SPLIT:]),
    )


@dataclass(frozen=True)
class State:
    """All that a checkpoint holds."""

    step: int
    weights: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]
    grid: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return struct.pack("<i", self.step) + pack(
            self.weights + self.first + self.second + self.grid
        )

    @functools.cached_property
    def hash(self) -> bytes:
        return hashlib.sha256(self.to_bytes()).digest()


def from_bytes(raw: bytes | bytearray | memoryview) -> State:
    """Raises ValueError if the bytes are no state."""
    if len(raw) != 4 * (1 + 3 * PARAMETERS + TENSORS):
        raise ValueError(f"a state has not {len(raw)} bytes")
    step, *values = unpack(raw)
    p = PARAMETERS
    return State(
        step,
        tuple(values[:p]),
        tuple(values[p : 2 * p]),
        tuple(values[2 * p : 3 * p]),
        tuple(values[3 * p :]),
    )


def initial() -> State:
    weights = tuple(1000 + 37 * i for i in range(PARAMETERS))
    return State(0, weights, (0,) * PARAMETERS, (0,) * PARAMETERS, (10,) * TENSORS)


@functools.lru_cache(maxsize=100_000)
def gradient(state: State, step: int, slot: int) -> tuple[SlotEvidence, tuple[int, ...]]:
    """Evidence and gradient of a slot of `step` at the state before it."""
    token_hash = hashlib.sha256(struct.pack("<ii", step, slot)).digest()
    raw = hashlib.sha512(token_hash + state.hash).digest()
    values = tuple(
        (raw[2 * i] * 256 + raw[2 * i + 1] - 32_768) % (1 << state.grid[i >= SPLIT]) - 100
        for i in range(PARAMETERS)
    )
    evidence = SlotEvidence(
        slot=slot,
        token_hash=token_hash,
        digest=hashlib.sha256(pack(values)).digest(),
        checksum=checksum(values),
        clamps=raw[60] & 1,
        max_abs=magnitudes(values),
        loss=raw[61] * 1000 + raw[62],
        tokens=32,
    )
    return evidence, values


def add(parts: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*parts, strict=True)))


@functools.lru_cache(maxsize=100_000)
def apply(state: State, total: tuple[int, ...], summary: Summary) -> State:
    """The optimizer step, in integers."""
    step = state.step + 1
    first = tuple((9 * m + 10 * g) // 10 for m, g in zip(state.first, total, strict=True))
    second = tuple((19 * v + g * g // 64) // 20 for v, g in zip(state.second, total, strict=True))
    weights = tuple(
        (w - (m * (step + 3)) // (1 + math.isqrt(v)) - w // 97) % 1_000_003
        for w, m, v in zip(state.weights, first, second, strict=True)
    )
    grid = tuple(
        8 + (bits + largest.bit_length()) % 5
        for bits, largest in zip(state.grid, summary.max_abs, strict=True)
    )
    return State(step, weights, first, second, grid)


@functools.lru_cache(maxsize=64)
def undisturbed(slots: int, steps: int) -> tuple[bytes, ...]:
    """Hashes of states 0 to `steps` of one node that nothing happens to, without the protocol."""
    state = initial()
    hashes = [state.hash]
    for step in range(1, steps + 1):
        results = [gradient(state, step, slot) for slot in range(slots)]
        total = add([values for _, values in results])
        state = apply(state, total, summarise([evidence for evidence, _ in results]))
        hashes.append(state.hash)
    return tuple(hashes)
