"""Messages between a node and the signaling server; the one module both sides share.

May import: nothing of ours. Every message is a msgpack map in one binary WebSocket frame, tagged
with its type, and every field is bounded, so decoding is also validation.

The order of things: the server sends `Challenge`; a node without a room code may ask for the room
of its address by `Nearby`, which `Group` answers; the node proves its key with `Register`; the
server answers `Welcome`, then a `View` whenever what this node may see of its room changes, or
`Refused` and a close; members may be sent a `Loan`. A view is the whole picture, not a
difference: a lost or late one is repaired by the next. Whatever nodes say to each other is sealed
and travels in `Relay`.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PROTOCOL = 2
"""Raised with every change that an older node or server would misunderstand."""

MESSAGE_BYTES = 64 * 1024
"""Largest frame either side accepts: a sealed roster of 64 members or an SDP fits three times."""

MAX_MEMBERS = 64
MAX_WAITING = 32
MAX_SOURCES = 16
"""Sources of text that a server may serve: a node without its own may look into each."""

Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
PeerId = Bytes32
"""SHA-256 of a node's Ed25519 public key."""
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Version = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Epoch = Annotated[int, Meta(ge=0, le=2**53)]
RosterBlob = Annotated[bytes, Meta(max_length=8 * 1024)]
Sealed = Annotated[bytes, Meta(max_length=MESSAGE_BYTES - 256)]
Url = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=512)]

Role = Literal["host", "acting", "member", "waiting"]
"""`acting`: the member that newcomers are shown while the host has been away for long."""
Reason = Annotated[str, Meta(max_length=32)]
"""One of `version`, `proof`, `unavailable`, `contested`, `dismissed`, `replaced`, `busy`,
`broken`; a node that meets another one falls back to the sentence beside it."""


class SignedRoster(msgspec.Struct, frozen=True, array_like=True):
    """A roster as the server may see it: exact bytes of a `RosterClaim`, signed by the host."""

    claim: Annotated[bytes, Meta(max_length=8 * 1024)]
    signature: Signature


class RosterClaim(msgspec.Struct, frozen=True, array_like=True):
    """Who belongs to a room, in join order. Names and relay keys stay behind their hash."""

    room: Bytes32
    epoch: Annotated[int, Meta(ge=1, le=2**53)]
    host_key: Bytes32
    members: Annotated[tuple[PeerId, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    successors: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_MEMBERS)]
    """Members that may become host, in order, should the host be lost for good."""
    detail: Bytes32
    """SHA-256 of the encoded member details, which only members see."""


class IceServer(msgspec.Struct, frozen=True):
    """A STUN or TURN server that the operator of the signaling server recommends."""

    urls: Annotated[tuple[Url, ...], Meta(min_length=1, max_length=8)]
    username: Text = ""
    credential: Text = ""


# From the server


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """First frame of every connection; `nonce` is fresh and must be signed."""

    protocol: Version
    nonce: Bytes32


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The key is proven and the node is in the room."""

    ice: Annotated[tuple[IceServer, ...], Meta(max_length=16)] = ()
    stun_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """UDP port of this server's own STUN responder; 0 if it has none."""


class View(msgspec.Struct, frozen=True, tag=True):
    """All that this node may see of its room at the moment."""

    role: Role
    host: PeerId | None
    """The host, while it is connected; to those who wait, else who stands in for it."""
    epoch: Epoch = 0
    """Newest roster epoch the server knows; 0 for those who wait."""
    members: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_MEMBERS)] = ()
    """Connected members, sorted; empty for those who wait."""
    waiting: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_WAITING)] = ()
    """Connected peers that wait for a decision, in order of arrival; only the host, or who
    stands in for it, sees them."""


class DataOffer(msgspec.Struct, frozen=True):
    """The server serves text: `GET data/SOURCE/NAME` beside `ws`, with a range of bytes and
    `Authorization: Bearer TOKEN`. It is no more to be trusted with it than with anything else."""

    sources: Annotated[int, Meta(ge=1, le=MAX_SOURCES)]
    """They are numbered from 0."""
    token: Bytes32
    """In hexadecimal digits; it holds while this connection does, or until a later loan."""


class Loan(msgspec.Struct, frozen=True, tag=True):
    """What this node, as an approved member, may use for so many seconds: TURN servers, and text.
    A later loan replaces it."""

    ice: Annotated[tuple[IceServer, ...], Meta(max_length=8)]
    seconds: Annotated[int, Meta(ge=1, le=31 * 86_400)]
    data: DataOffer | None = None


class Group(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Nearby`: the room that this address's group meets in."""

    room: Bytes32 | None
    """None: nodes behind this address are not introduced without a code."""
    reason: Annotated[str, Meta(max_length=32)] = ""
    """Why not: `private` (not a public address), `proxy`, or `none` (and none was proposed)."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The connection ends; `text` is a sentence for the user."""

    reason: Reason
    text: Text


class Relayed(msgspec.Struct, frozen=True, tag=True):
    """A sealed envelope from another node of the room."""

    sender: PeerId
    sealed: Sealed


# From a node


class Nearby(msgspec.Struct, frozen=True, tag=True):
    """Before registering: which room do nodes behind my public address meet in? If they have
    none, let it be this one, which I am about to enter as host."""

    room: Bytes32 | None


class Register(msgspec.Struct, frozen=True, tag=True):
    """Enter a room. `signature` covers `registration_parts` under the label `register`."""

    protocol: Version
    room: Bytes32
    key: Bytes32
    """Ed25519 public key."""
    signature: Signature
    want: Literal["any", "guest"]
    """`any` makes the node host of a room that does not exist; `guest` never does."""
    roster: RosterBlob | None = None
    """Newest roster this node holds: with it a restarted server learns who is who."""


class Publish(msgspec.Struct, frozen=True, tag=True):
    """The host's new roster (an encoded `SignedRoster`)."""

    roster: RosterBlob


class Dismiss(msgspec.Struct, frozen=True, tag=True):
    """The host wants this peer out of the room; it cannot register here again until approved."""

    peer: PeerId


class Relay(msgspec.Struct, frozen=True, tag=True):
    """A sealed envelope for one node of the room. Undeliverable ones are dropped silently."""

    to: PeerId
    sealed: Sealed


FromServer = Challenge | Welcome | View | Loan | Group | Refused | Relayed
FromNode = Nearby | Register | Publish | Dismiss | Relay

_encoder = msgspec.msgpack.Encoder()
_from_server: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)
_from_node: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
_signed_roster = msgspec.msgpack.Decoder(SignedRoster)
_roster_claim = msgspec.msgpack.Decoder(RosterClaim)


def encode(message: FromServer | FromNode | SignedRoster | RosterClaim) -> bytes:
    """One frame (msgpack)."""
    return _encoder.encode(message)


def decode_from_server(raw: bytes) -> FromServer:
    """Raises msgspec.MsgspecError if the frame is not one of the server's messages."""
    return _from_server.decode(raw)


def decode_from_node(raw: bytes) -> FromNode:
    """Raises msgspec.MsgspecError if the frame is not one of a node's messages."""
    return _from_node.decode(raw)


def decode_signed_roster(raw: bytes) -> tuple[SignedRoster, RosterClaim]:
    """Both layers, without checking the signature. Raises msgspec.MsgspecError."""
    signed = _signed_roster.decode(raw)
    return signed, _roster_claim.decode(signed.claim)


def peer_id(key: bytes) -> bytes:
    """Peer id of an Ed25519 public key, 32 bytes."""
    return hashlib.sha256(key).digest()


def signing_text(label: bytes, *parts: bytes) -> bytes:
    """What an Ed25519 signature covers: label and parts, each with its length, so that no text
    signed for one purpose can be read as another."""
    text = b"p2pnode/1"
    for part in (label, *parts):
        text += len(part).to_bytes(4, "big") + part
    return text


def registration_parts(nonce: bytes, room: bytes) -> tuple[bytes, bytes]:
    """Parts that a `Register` signs. The server's name is not among them: behind a proxy a node
    and its server may know different names, and the fresh nonce already prevents replay."""
    return nonce, room
