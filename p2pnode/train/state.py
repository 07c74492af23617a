"""The training state: weights, Adam's moments, the gradient grid and the schedule's position.

May import: layout, config.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pnode.config import RunConfig
from p2pnode.train.layout import F32, Layout, layout_of


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything of a state but the three flat vectors. Floats are binary64, exact in JSON."""

    step: int
    """Applied steps."""
    next_window: int
    """Training windows read so far; where the data goes on."""
    exponents: tuple[int, ...]
    """Grid exponent of each tensor: a gradient value is q * 2**exponent."""
    quiet: tuple[int, ...]
    """Steps in a row for which each tensor's gradient was small on its grid."""
    beta1_power: float
    """beta1**step and beta2**step, kept by repeated multiplication."""
    beta2_power: float


@dataclasses.dataclass(frozen=True)
class State:
    """One state of a run. The arrays are float32 [parameters] and never change once hashed."""

    config: RunConfig
    position: Position
    weights: F32
    m: F32
    v: F32

    @property
    def step(self) -> int:
        return self.position.step

    @property
    def layout(self) -> Layout:
        return layout_of(self.config.model)

    def tensor_hashes(self) -> tuple[bytes, ...]:
        """SHA-256 of each tensor's weights and moments, little-endian, in layout order."""
        hashes = []
        for t in self.layout.tensors:
            digest = hashlib.sha256()
            for flat in (self.weights, self.m, self.v):
                digest.update(little_endian(flat[t.start : t.stop]))
            hashes.append(digest.digest())
        return tuple(hashes)

    def hash(self) -> bytes:
        """SHA-256 over the run, the position and all tensors: equal hashes are equal states."""
        digest = hashlib.sha256(b"p2pnode state 1\0")
        digest.update(self.config.run_id())
        digest.update(hashlib.sha256(canonical_position(self.position)).digest())
        for part in self.tensor_hashes():
            digest.update(part)
        return digest.digest()

    def differing(self, other: State) -> tuple[str, ...]:
        """Names of the tensors whose bits or grid differ, `schedule` if the position does."""
        names = []
        a, b = self.position, other.position
        for i, (t, ours, theirs) in enumerate(
            zip(self.layout.tensors, self.tensor_hashes(), other.tensor_hashes(), strict=True)
        ):
            grid = (a.exponents[i], a.quiet[i]) != (b.exponents[i], b.quiet[i])
            if ours != theirs or grid:
                names.append(t.name)
        ungridded = {"exponents": (), "quiet": ()}
        if msgspec.structs.replace(a, **ungridded) != msgspec.structs.replace(b, **ungridded):
            names.append("schedule")
        return tuple(names)

    def flaw(self) -> str | None:
        """What makes this state unusable for its run, as a phrase, or None."""
        p, config = self.position, self.config
        count = len(self.layout.tensors)
        if not 0 <= p.step <= config.steps:
            return f"step {p.step} of a run of {config.steps}"
        if p.next_window != p.step * config.slots * config.micro_batch:
            return f"data position {p.next_window} at step {p.step}"
        if len(p.exponents) != count or len(p.quiet) != count:
            return f"{len(p.exponents)} grid exponents for {count} tensors"
        if not all(-100 <= e <= 20 for e in p.exponents) or not all(0 <= n < 16 for n in p.quiet):
            return "a grid exponent or counter out of bounds"
        if not (0.0 <= p.beta1_power <= 1.0 and 0.0 <= p.beta2_power <= 1.0):
            return "a power of beta outside 0..1"
        for name, flat in (("weight", self.weights), ("moment", self.m), ("moment", self.v)):
            if flat.shape != (self.layout.size,):
                return f"{flat.size} values for {self.layout.size} parameters"
            if not np.isfinite(flat).all():
                return f"a {name} that is NaN or infinite"
        if (self.v < 0).any():
            return "a negative second moment"
        return None


def canonical_position(position: Position) -> bytes:
    """The one form of a position, as it stands in a checkpoint and under its hash (JSON)."""
    return msgspec.json.encode(position, order="sorted")


def little_endian(values: NDArray[Any]) -> memoryview:
    """The bytes of a vector of int32 or float32, least significant first on every machine."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data.cast("B")
