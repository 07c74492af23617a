"""A toy model in small integers whose state depends on everything the protocol must get right.

A slot's gradient depends on the weights, so a wrong state shows in the next gradient; the update
depends on the step number, the learning rate, both moments and a grid that follows the largest
magnitudes. A state names the settings that made it, as a real one does.

May import: config, protocol.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from dataclasses import dataclass

from msgspec import structs

from p2pnode.config import ModelConfig, RunConfig
from p2pnode.protocol.evidence import CHECKSUM_MODULUS, summarise
from p2pnode.protocol.messages import PeerId, SlotEvidence, Summary, as_weight

PARAMETERS = 13
TENSORS = 2
SPLIT = 5
"""Tensor 0 is the parameters before this one."""
PROBE = hashlib.sha256(b"probe").digest()


def sign(peer: PeerId, digest: bytes) -> bytes:
    """Stands for a signature: nothing in a simulated world makes one for somebody else."""
    return hashlib.sha256(peer + digest).digest()


def pack(values: list[int] | tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def unpack(raw: bytes | bytearray | memoryview) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // 4}i", raw)


def checksum(values: tuple[int, ...] | list[int]) -> int:
    return sum((i + 1) * value for i, value in enumerate(values)) % CHECKSUM_MODULUS


def weigh(values: tuple[int, ...] | list[int], nonce: bytes) -> int:
    """The checksum under a nonce."""
    coefficients = (
        int.from_bytes(hashlib.sha256(nonce + bytes([i])).digest()[:8], "little")
        for i in range(len(values))
    )
    return as_weight(sum(c * value for c, value in zip(coefficients, values, strict=True)))


def magnitudes(values: tuple[int, ...]) -> tuple[int, ...]:
    return (
        max(abs(value) for value in values[:SPLIT]),
        max(abs(value) for value in values[SPLIT:]),
    )


@dataclass(frozen=True)
class State:
    """All that a checkpoint holds."""

    run: bytes
    """First 8 bytes of the id of the configuration that made it."""
    step: int
    weights: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]
    grid: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return (
            self.run
            + struct.pack("<i", self.step)
            + pack(self.weights + self.first + self.second + self.grid)
        )

    @functools.cached_property
    def hash(self) -> bytes:
        return hashlib.sha256(self.to_bytes()).digest()


def from_bytes(raw: bytes | bytearray | memoryview) -> State:
    """Raises ValueError if the bytes are no state."""
    if len(raw) != 8 + 4 * (1 + 3 * PARAMETERS + TENSORS):
        raise ValueError(f"a state has not {len(raw)} bytes")
    step, *values = unpack(raw[8:])
    p = PARAMETERS
    return State(
        bytes(raw[:8]),
        step,
        tuple(values[:p]),
        tuple(values[p : 2 * p]),
        tuple(values[2 * p : 3 * p]),
        tuple(values[3 * p :]),
    )


@functools.lru_cache(maxsize=1024)
def run_config(slots: int, steps: int) -> RunConfig:
    """A run as far as a toy has one: steps, learning rate, and their past."""
    return RunConfig(
        arithmetic_version=1,
        gates_digest="0" * 64,
        data="0" * 64,
        tokenizer="toy",
        model=ModelConfig(vocab=2, width=8, layers=1, heads=1, ffn=8, seq_len=2),
        seed=0,
        steps=steps,
        slots=slots,
        micro_batch=1,
        lr=0.003,
        warmup=0,
        lr_floor=0.0,
        beta1=0.0,
        beta2=0.0,
        eps=1e-8,
        weight_decay=0.0,
        clip=1.0,
        init_std=1.0,
        eval_every=0,
        eval_slots=1,
    )


@functools.lru_cache(maxsize=100_000)
def made_by(config: RunConfig, step: int) -> tuple[bytes, int]:
    """Name and rate of the settings that make state `step`; the first state is made by none."""
    at = config.at(step)
    return at.run_id()[:8] if step else bytes(8), round(at.lr * 1000)


def initial() -> State:
    weights = tuple(1000 + 37 * i for i in range(PARAMETERS))
    return State(bytes(8), 0, weights, (0,) * PARAMETERS, (0,) * PARAMETERS, (10,) * TENSORS)


def token_hash(step: int, slot: int) -> bytes:
    """Stands for a slot's text."""
    return hashlib.sha256(struct.pack("<ii", step, slot)).digest()


@functools.lru_cache(maxsize=100_000)
def gradient(state: State, step: int, slot: int) -> tuple[SlotEvidence, tuple[int, ...]]:
    """Evidence and gradient of a slot of `step` at the state before it."""
    text = token_hash(step, slot)
    raw = hashlib.sha512(text + state.hash).digest()
    values = tuple(
        (raw[2 * i] * 256 + raw[2 * i + 1] - 32_768) % (1 << state.grid[i >= SPLIT]) - 100
        for i in range(PARAMETERS)
    )
    evidence = SlotEvidence(
        slot=slot,
        token_hash=text,
        digest=hashlib.sha256(pack(values)).digest(),
        checksum=checksum(values),
        clamps=raw[60] & 1,
        max_abs=magnitudes(values),
        loss=raw[61] * 1000 + raw[62],
        tokens=32,
    )
    return evidence, values


def wrong_gradient(step: int, slot: int) -> tuple[SlotEvidence, tuple[int, ...]]:
    """What another state and other text would give, said to be of this text."""
    evidence, values = gradient(initial(), 999, slot)
    return structs.replace(evidence, token_hash=token_hash(step, slot)), values


def add(parts: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*parts, strict=True)))


@functools.lru_cache(maxsize=100_000)
def apply(config: RunConfig, state: State, total: tuple[int, ...], summary: Summary) -> State:
    """The optimizer step, in integers."""
    step = state.step + 1
    run, rate = made_by(config, step)
    first = tuple((9 * m + 10 * g) // 10 for m, g in zip(state.first, total, strict=True))
    second = tuple((19 * v + g * g // 64) // 20 for v, g in zip(state.second, total, strict=True))
    weights = tuple(
        (w - (m * (step + rate)) // (1 + math.isqrt(v)) - w // 97) % 1_000_003
        for w, m, v in zip(state.weights, first, second, strict=True)
    )
    grid = tuple(
        8 + (bits + largest.bit_length()) % 5
        for bits, largest in zip(state.grid, summary.max_abs, strict=True)
    )
    return State(run, step, weights, first, second, grid)


def undisturbed(slots: int, steps: int) -> tuple[bytes, ...]:
    """Hashes of states 0 to `steps` of a run whose settings are never changed; see `line`."""
    return line(run_config(slots, steps))


@functools.lru_cache(maxsize=256)
def line(config: RunConfig) -> tuple[bytes, ...]:
    """Hashes of all states of one node that nothing happens to, without the protocol."""
    state = initial()
    hashes = [state.hash]
    for step in range(1, config.steps + 1):
        results = [gradient(state, step, slot) for slot in range(config.slots)]
        total = add([values for _, values in results])
        state = apply(config, state, total, summarise([evidence for evidence, _ in results]))
        hashes.append(state.hash)
    return tuple(hashes)
