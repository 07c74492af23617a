"""Plain-data results of the trainer: what a node claims about the work it did.

May import: nothing of ours. Field names equal those of the wire messages, which are defined apart.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

GradientSum = NDArray[np.int32]
"""Flat vector of all parameters' gridded gradients, summed exactly over some slots."""


class SlotEvidence(msgspec.Struct, frozen=True):
    """Facts about one slot's gradient that any other node can recompute."""

    slot: int
    token_hash: bytes
    """SHA-256 (32 bytes) of the slot's input and target ids as little-endian int32."""
    digest: bytes
    """SHA-256 (32 bytes) of the gridded gradient as little-endian int32."""
    checksum: int
    """Linear checksum in [0, 2**63): checksums of slots add up (mod 2**63) to that of the sum."""
    clamps: int
    """Gradient values that hit the grid's limit."""
    max_abs: tuple[int, ...]
    """Largest |q| per tensor, in the order of `Trainer.tensors`."""
    loss: int
    """Summed token losses in units of 2**-24 nats."""
    tokens: int


class AppliedInfo(msgspec.Struct, frozen=True):
    """What applying one step gave. `step` counts applied steps, this one included."""

    step: int
    state_hash: bytes
    grad_norm: float
    """Global norm of the averaged gradient before clipping."""
    lr: float


class VerifyResult(msgspec.Struct, frozen=True):
    """The pending step applied again with the reference kernels, compared tensor by tensor."""

    step: int
    state_hash: bytes
    """Hash of the state as recomputed: the right one if the old state was sound."""
    sound: bool
    """True if this node's own pending state is the recomputed one."""
    differing: tuple[str, ...]
    """Names of the tensors whose weights, moments or grid differ, and `schedule`; empty if sound.
    Alone stand `committed state`, for one that changed in memory after its hash was taken, and
    `non-finite value`, for a step that the reference kernels refuse; there is no hash then."""


class HeldOut(msgspec.Struct, frozen=True):
    """Held-out loss of the committed state; exact, so every node reports the same integers."""

    step: int
    loss: int
    """Summed token losses in units of 2**-24 nats."""
    tokens: int

    @property
    def nats_per_token(self) -> float:
        return self.loss / self.tokens / (1 << 24)
