"""Checks of signatures that reach the server: registrations and rosters.

May import: messages.
"""

from __future__ import annotations

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from signaling.messages import (
    Register,
    RosterClaim,
    decode_signed_roster,
    peer_id,
    registration_parts,
    signing_text,
)


def _verify(key: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def proves_key(register: Register, nonce: bytes) -> bool:
    """Whether the registration was signed, for this connection's nonce, by the key it states."""
    parts = registration_parts(nonce, register.room)
    return _verify(register.key, register.signature, signing_text(b"register", *parts))


def checked_claim(blob: bytes, room: bytes, max_members: int) -> RosterClaim | None:
    """The claim inside a signed roster of this room, or None if anything is wrong with it."""
    try:
        signed, claim = decode_signed_roster(blob)
    except (msgspec.MsgspecError, RecursionError):
        return None
    members = set(claim.members)
    if (
        claim.room != room
        or len(members) != len(claim.members)
        or len(members) > max_members
        or peer_id(claim.host_key) not in members
        or not _verify(claim.host_key, signed.signature, signing_text(b"roster", signed.claim))
    ):
        return None
    return claim
