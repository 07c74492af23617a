"""What nodes say to each other about admission: bodies of envelopes, by kind.

May import: envelope (sizes), and `signaling.messages`. Kinds that are not listed here belong to
the mesh and pass through admission unread.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from p2pnode.protocol.envelope import BODY_BYTES
from signaling.messages import Bytes32

NODE_PROTOCOL = 3
"""Version of what nodes say to each other; nodes of different versions do not train together."""

KNOCK = "knock"
DECISION = "decision"
ROSTER = "roster"
"""Host to member, or member to a member that asked: an encoded roster (`Roster.encode`), sealed to
the recipient's relay key (see box): who was removed still has the secret of this envelope."""
ASK = "ask"
"""Member to member: give me the newest roster. No body."""


class Knock(msgspec.Struct, frozen=True):
    """Newcomer to host: let me in."""

    protocol: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    name: Annotated[str, Meta(max_length=256)]
    relay_key: Bytes32


class Decision(msgspec.Struct, frozen=True):
    """Host to newcomer, or to a member it removes. `roster`, sealed as above, comes with a yes."""

    verdict: Literal["yes", "no", "later"]
    reason: Annotated[str, Meta(max_length=32)] = ""
    """With a no: `version`, `removed` or empty; with a later: `full` or empty."""
    roster: Annotated[bytes, Meta(max_length=BODY_BYTES)] = b""
    secret: Annotated[bytes, Meta(max_length=32)] = b""
    """With a yes, for one who came without a code: the secret that the code would give."""


_knocks = msgspec.msgpack.Decoder(Knock)
_decisions = msgspec.msgpack.Decoder(Decision)


def encode(message: Knock | Decision) -> bytes:
    """The body of an envelope (msgpack)."""
    return msgspec.msgpack.encode(message)


def decode_knock(body: bytes) -> Knock:
    """Raises msgspec.MsgspecError."""
    return _knocks.decode(body)


def decode_decision(body: bytes) -> Decision:
    """Raises msgspec.MsgspecError."""
    return _decisions.decode(body)
