"""What admission asks the node to do; see `admit.Admission`.

May import: errors, identity, roster, and `signaling.messages`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from p2pnode.errors import P2PNodeError
from p2pnode.protocol.identity import PeerId
from p2pnode.protocol.roster import Roster
from signaling.messages import Role


class Send(msgspec.Struct, frozen=True):
    """Hand `sealed` to the server for `to`; if the server is away, drop it."""

    to: PeerId
    sealed: bytes


class Publish(msgspec.Struct, frozen=True):
    """Give the server this host's new signed roster."""

    signed: bytes


class DismissPeer(msgspec.Struct, frozen=True):
    """Tell the server to put this peer out of the room."""

    peer: PeerId


class Knocked(msgspec.Struct, frozen=True):
    """A peer waits for this host's decision. `name` is clean; show `short_id(peer)` beside it."""

    peer: PeerId
    name: str
    words: str = ""
    """It came without the room's code: its terminal must show these words too."""


class Paired(msgspec.Struct, frozen=True):
    """This node, without a code, has a secret with the host, whose terminal must show these words
    beside this node's name."""

    peer: PeerId
    words: str


class Decided(msgspec.Struct, frozen=True):
    """The owner has decided about a device, to be remembered beyond this process."""

    peer: PeerId
    name: str
    verdict: Literal["known", "blocked", "forgotten", "host"]
    """`host`: this node may enter its rooms without a code."""


class RosterChanged(msgspec.Struct, frozen=True):
    """A new epoch holds. Registrations bring `roster.signed` from now on."""

    roster: Roster
    removed: tuple[PeerId, ...]
    """Members of the previous roster that are in this one no longer."""


class Standing(msgspec.Struct, frozen=True):
    """This node's role as far as it knows, and the host's id (None while not known)."""

    role: Role
    host: PeerId | None


class Signal(msgspec.Struct, frozen=True):
    """A genuine, fresh message for the mesh from a roster member (kinds such as `offer`)."""

    peer: PeerId
    kind: str
    body: bytes


class Refused(msgspec.Struct, frozen=True):
    """This node is not wanted: RefusedError, or VersionMismatchError. It should leave."""

    error: P2PNodeError


class Note(msgspec.Struct, frozen=True):
    """A sentence for the log, safe to print."""

    text: str


Effect = (
    Send
    | Publish
    | DismissPeer
    | Knocked
    | Decided
    | Paired
    | RosterChanged
    | Standing
    | Signal
    | Refused
    | Note
)
