"""What the mesh tells its owner, and what it takes for granted about a message's urgency.

May import: nothing of ours.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeAlias

PeerId: TypeAlias = bytes
"""32 bytes, the hash of the peer's public key."""

NO_RUN = bytes(8)
"""Run tag of messages that belong to no run (lobby: roster, run configuration, kick)."""


class Priority(enum.IntEnum):
    """Smaller goes first. CONTROL has a channel of its own, the other two share one."""

    CONTROL = 0
    """Small and urgent: statuses, plans, hashes, requests."""
    SHARD = 1
    """Gradient shards and their sums: the step waits for them."""
    STATE = 2
    """State and data for late joiners: takes what is left."""


@dataclasses.dataclass(frozen=True, slots=True)
class LinkUp:
    """A direct link to `peer` is open in both directions."""

    peer: PeerId


@dataclasses.dataclass(frozen=True, slots=True)
class LinkDown:
    """The direct link to `peer` is gone; what was queued or in flight on it is lost.

    `fault` says that the peer broke a rule of the wire (the reason is the PeerError's sentence).
    """

    peer: PeerId
    reason: str
    fault: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Unlinked:
    """Attempts at a direct link to `peer` have failed, not for want of its answer; they go on. Said
    once until there is a link."""

    peer: PeerId
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """A whole message from `peer`. The receiver owns `message`; nobody else keeps it."""

    peer: PeerId
    run: bytes
    """Run tag of the sender's frames: the tag of our run, or NO_RUN."""
    message: bytearray


@dataclasses.dataclass(frozen=True, slots=True)
class Heard:
    """A frame came from `peer`, directly or relayed: it is alive.

    `nbytes` is its length on the bulk channel and 0 on the control channel, so that the progress
    of a long message is visible before its end, and a heartbeat is not taken for progress.
    """

    peer: PeerId
    nbytes: int


MeshEvent: TypeAlias = LinkUp | LinkDown | Unlinked | Received | Heard


@dataclasses.dataclass(frozen=True, slots=True)
class LinkStats:
    """One link, direct or relayed. Bytes and seconds."""

    relayed: bool
    rtt: float | None
    """Smoothed round trip; None until measured."""
    bytes_up: int
    bytes_down: int
    queued: int
    """Waiting here."""
    in_flight: int
    """Handed to the connection and not yet acknowledged by the peer."""
