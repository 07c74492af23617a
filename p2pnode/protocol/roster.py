"""The roster: who belongs to a room, in join order, signed by the host.

May import: errors, box, identity, text, and `signaling.messages` for the public half's wire form.

It has two halves. The public half (`RosterClaim`) holds ids only and is what the server checks.
The details go to members alone: keys, names, who was removed, and the room's present secret, sealed
to each member's relay key, so that whoever was away finds it in any copy. The claim holds their
hash, so the host's one signature covers both.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pnode.errors import PeerError, told
from p2pnode.protocol.box import OVERHEAD
from p2pnode.protocol.identity import Identity, PeerId, verify
from p2pnode.protocol.text import clean
from signaling.messages import (
    MAX_MEMBERS,
    Bytes32,
    RosterBlob,
    RosterClaim,
    SignedRoster,
    decode_signed_roster,
    encode,
    peer_id,
)

Box = Annotated[bytes, Meta(min_length=32 + OVERHEAD, max_length=32 + OVERHEAD)]
"""A sealed secret of 32 bytes."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One member: Ed25519 key, X25519 relay key (32 bytes each) and a shown name."""

    key: Bytes32
    relay_key: Bytes32
    name: Annotated[str, Meta(max_length=128)]

    @property
    def id(self) -> PeerId:
        return peer_id(self.key)


class Roster(msgspec.Struct, frozen=True):
    """A verified roster. `signed` is the public half, as servers take it."""

    room: bytes
    epoch: int
    host: PeerId
    members: tuple[Member, ...]
    successors: tuple[PeerId, ...]
    signed: bytes
    details: bytes
    removed: tuple[PeerId, ...] = ()
    """Who was put out, newest last: a roster made elsewhere does not bring it back."""
    boxes: tuple[bytes, ...] = ()
    """The room's secret, sealed to each member; empty: it is still the one from the code."""

    @property
    def ids(self) -> tuple[PeerId, ...]:
        """Member ids in join order."""
        return tuple(member.id for member in self.members)

    def member(self, peer: PeerId) -> Member | None:
        """The member with this id; None if there is none."""
        return next((member for member in self.members if member.id == peer), None)

    def encode(self) -> bytes:
        """The form that members hand to each other; see `open_roster`."""
        return msgspec.msgpack.encode(_Both(self.signed, self.details))


class _Details(msgspec.Struct, frozen=True, array_like=True):
    """What members see."""

    members: Annotated[tuple[Member, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    removed: Annotated[tuple[Bytes32, ...], Meta(max_length=MAX_MEMBERS)]
    boxes: Annotated[tuple[Box, ...], Meta(max_length=MAX_MEMBERS)]


class _Both(msgspec.Struct, frozen=True, array_like=True):
    signed: RosterBlob
    details: Annotated[bytes, Meta(max_length=24 * 1024)]


_both = msgspec.msgpack.Decoder(_Both)
_details = msgspec.msgpack.Decoder(_Details)


def sign_roster(
    host: Identity,
    room: bytes,
    epoch: int,
    members: tuple[Member, ...],
    removed: tuple[PeerId, ...] = (),
    boxes: tuple[bytes, ...] = (),
) -> Roster:
    """A new epoch, signed by `host`, who must be among the members (at most 64). `boxes`: one for
    each member, or none (see Roster)."""
    details = msgspec.msgpack.encode(_Details(members, removed[-MAX_MEMBERS:], boxes))
    ids = tuple(member.id for member in members)
    claim = RosterClaim(
        room=room,
        epoch=epoch,
        host_key=host.key,
        members=ids,
        successors=tuple(peer for peer in ids if peer != host.peer_id),
        detail=hashlib.sha256(details).digest(),
    )
    raw = encode(claim)
    signed = encode(SignedRoster(raw, host.sign(b"roster", raw)))
    return open_roster(msgspec.msgpack.encode(_Both(signed, details)), room)


def open_roster(encoded: bytes, room: bytes) -> Roster:
    """Decode and verify. Raises PeerError for one that is damaged, forged or of another room.

    Whether its host is the right one, and its epoch newer, is for the caller to judge.
    """
    try:
        both = _both.decode(encoded)
        signed, claim = decode_signed_roster(both.signed)
        details = _details.decode(both.details)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerError(f"A roster is malformed ({told(error)}); it was ignored.") from None
    members = details.members
    ids = tuple(member.id for member in members)
    host = peer_id(claim.host_key)
    for wrong, what in (
        (claim.room != room, "is of another room"),
        (not verify(claim.host_key, signed.signature, b"roster", signed.claim), "is not signed"),
        (hashlib.sha256(both.details).digest() != claim.detail, "has details not its own"),
        (ids != claim.members, "names members other than those signed"),
        (len(set(ids)) != len(ids), "names a member twice"),
        (bool(set(details.removed) & set(ids)), "names a member among those removed"),
        (len(details.boxes) not in (0, len(ids)), "has not one box for each member"),
        (host not in ids, "does not hold its host"),
        (not set(claim.successors) <= set(ids), "has successors who are no members"),
    ):
        if wrong:
            raise PeerError(f"A roster {what}; it was ignored.")
    return Roster(
        room=room,
        epoch=claim.epoch,
        host=host,
        members=tuple(
            Member(member.key, member.relay_key, clean(member.name)) for member in members
        ),
        successors=claim.successors,
        signed=both.signed,
        details=both.details,
        removed=details.removed,
        boxes=details.boxes,
    )
