"""One slot's gradient on the integer grid, with the evidence for it, and exact sums of them.

May import: arithmetic, data, evidence, model, state, weights, windows.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2pnode.train import model
from p2pnode.train.arithmetic import kernels
from p2pnode.train.evidence import GradientSum, SlotEvidence
from p2pnode.train.state import State, little_endian
from p2pnode.train.weights import Weights
from p2pnode.train.windows import Tokens, token_hash

CHECKSUM_MODULUS = 1 << 63
_BLOCK = 1 << 16


def slot_gradient(
    w: Weights, state: State, slot: int, inputs: Tokens, targets: Tokens
) -> tuple[SlotEvidence, GradientSum]:
    """Gradient of the slot's mean loss on each tensor's grid: evidence and int32 [P].

    w: the state's weights. inputs, targets: int32 [B, T]. Raises kernels.NonFiniteInputError.
    """
    loss, flat = model.loss_and_gradient(w, inputs, targets)
    limit = kernels.grid_limit(state.config.slots)
    total: GradientSum = kernels.empty(flat.size, np.int32)
    clamps = 0
    max_abs = []
    for t, exponent in zip(state.layout.tensors, state.position.exponents, strict=True):
        part = slice(t.start, t.stop)
        total[part], clamped, largest = w.ops.grid(flat[part], exponent, limit)
        clamps += clamped
        max_abs.append(largest)
    evidence = SlotEvidence(
        slot=slot,
        token_hash=token_hash(inputs, targets),
        digest=hashlib.sha256(little_endian(total)).digest(),
        checksum=checksum(total),
        clamps=clamps,
        max_abs=tuple(max_abs),
        loss=loss,
        tokens=inputs.size,
    )
    return evidence, total


def checksum(values: NDArray[np.int32]) -> int:
    """A linear function of int32 [P] into [0, 2**63): sums of vectors have sums of checksums.

    Value i has the fixed coefficient a[i % 65536] * b[i // 65536] of odd 64-bit numbers; all
    arithmetic is modulo 2**64 and the top bit is dropped at the end.
    """
    a = _coefficients("checksum a", _BLOCK)
    b = _coefficients("checksum b", -(-values.size // _BLOCK))
    total = 0
    for i, factor in enumerate(b.tolist()):
        block = values[i * _BLOCK : (i + 1) * _BLOCK]
        # int64 products and sums wrap, which is arithmetic modulo 2**64
        total += int(np.dot(block.astype(np.int64), a[: block.size])) * factor
    return total % CHECKSUM_MODULUS


@functools.lru_cache(maxsize=4)
def _coefficients(purpose: str, count: int) -> NDArray[np.int64]:
    bits = kernels.random_u64(0, purpose, np.arange(count)) | np.uint64(1)
    return bits.view(np.int64)


def exact_sum(ops: kernels.Kernels, parts: Sequence[NDArray[np.int32]]) -> GradientSum:
    """Sum of int32 vectors of one length; any order gives the same. At least one is needed.

    Raises kernels.AccumulatorBoundError if a value would leave int32 on the way.
    """
    total = parts[0].copy()
    for part in parts[1:]:
        ops.grid_add(total, part)
    return total
