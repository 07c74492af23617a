"""Short checks of a step's results, tensor by tensor: which of them is it that differs?

The state's hash says that something differs; these say where. They are kept with every step for as
long as the ledger is, so they are short: 16 bits of a CRC-32 for each of four vectors of a tensor,
and for the position. Whether two states are equal is never decided by them.

May import: finder, state.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import numpy as np
from numpy.typing import NDArray

from p2pnode.train.finder import WHOLE, Difference
from p2pnode.train.state import State, canonical_position, little_endian

_VECTORS = 4
_BYTES = 2


def parts_of(state: State, total: NDArray[np.int32]) -> str:
    """Checks of a state and of the sum of gradients, int32 [P], that it was made from; base64 of
    2 bytes each: for every tensor its sum, moments and weights, and at last the position."""
    out = bytearray()
    for t in state.layout.tensors:
        for flat in (total, state.m, state.v, state.weights):
            out += _check(little_endian(flat[t.start : t.stop]))
    out += _check(canonical_position(state.position))
    return base64.b64encode(out).decode("ascii")


def first_difference(state: State, ours: str, theirs: str) -> Difference | None:
    """The first thing that differs in the order in which a step makes them: gradients, Adam's
    moments, weights, position. None if the checks agree."""
    a, b = _decoded(state, ours), _decoded(state, theirs)
    if a is None or b is None:
        return Difference(WHOLE, "the checks of its tensors have another length")
    names = state.layout.names
    differing = [
        {i for i in range(_VECTORS) if a[_VECTORS * t + i] != b[_VECTORS * t + i]}
        for t in range(len(names))
    ]
    for vector, operation in (
        (0, "sum of the slots' gradients"),
        (1, "Adam, first moment"),
        (2, "Adam, second moment"),
        (3, "Adam, weights"),
    ):
        found = [name for name, parts in zip(names, differing, strict=True) if vector in parts]
        if len(found) == len(names) and vector in (1, 2):
            return Difference(WHOLE, "norm of the whole gradient, for clipping")
        if found:
            return Difference(found[0], operation)
    if a[-1] != b[-1]:
        return Difference("schedule", "gradient grid or position")
    return None


def _check(raw: bytes | memoryview) -> bytes:
    return (zlib.crc32(raw) & 0xFFFF).to_bytes(_BYTES, "little")


def _decoded(state: State, text: str) -> list[bytes] | None:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) != _BYTES * (_VECTORS * len(state.layout.names) + 1):
        return None
    return [raw[i : i + _BYTES] for i in range(0, len(raw), _BYTES)]
