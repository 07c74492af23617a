"""Digests of the pieces of a vector (pure functions; they take long and belong in the computing
thread).

May import: messages.
"""

from __future__ import annotations

import hashlib
import itertools

from p2pnode.protocol.messages import Buffer, Shard, piece_start


def digest_pieces(payload: Buffer, shard: Shard, parameters: int) -> tuple[bytes, ...]:
    """SHA-256 of each piece in a shard's bytes (int32, of a vector of `parameters` elements)."""
    view = memoryview(payload)
    first, last = shard.pieces
    starts = [piece_start(piece, parameters) for piece in range(first, last + 1)]
    return tuple(
        hashlib.sha256(view[4 * (low - starts[0]) : 4 * (high - starts[0])]).digest()
        for low, high in itertools.pairwise(starts)
    )
