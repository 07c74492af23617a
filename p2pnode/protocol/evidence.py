"""What the slots of a step say together (pure functions).

May import: messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from p2pnode.protocol.messages import SlotEvidence, Summary

CHECKSUM_MODULUS = 2**63

_encode = msgspec.msgpack.Encoder().encode


def summarise(evidence: Sequence[SlotEvidence]) -> Summary:
    """The summary of a step from the evidence of all its slots, in any order."""
    ordered = sorted(evidence, key=lambda item: item.slot)
    return Summary(
        loss=sum(item.loss for item in ordered),
        tokens=sum(item.tokens for item in ordered),
        clamps=sum(item.clamps for item in ordered),
        max_abs=tuple(map(max, zip(*(item.max_abs for item in ordered), strict=True))),
        checksum=sum(item.checksum for item in ordered) % CHECKSUM_MODULUS,
        evidence=hashlib.sha256(_encode(ordered)).digest(),
    )
