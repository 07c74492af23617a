"""What a node says to the server, made by hand, for tests of the server alone."""

from __future__ import annotations

from p2pnode.protocol.identity import Identity
from p2pnode.protocol.roster import Member, sign_roster
from signaling.messages import (
    PROTOCOL,
    Register,
    RosterClaim,
    SignedRoster,
    encode,
    registration_parts,
)

ROOM = b"r" * 32


def member(identity):
    return Member(identity.key, identity.relay_key, "name")


def roster(host, *others, epoch=1, room=ROOM):
    """Signed public half of a roster: `host` first, then `others` (identities)."""
    members = tuple(member(identity) for identity in (host, *others))
    return sign_roster(host, room, epoch, members).signed


def signed(host, *, members):
    """A signed claim that our own code would not make: any member ids."""
    claim = encode(RosterClaim(ROOM, 1, host.key, members, (), bytes(32)))
    return encode(SignedRoster(claim, host.sign(b"roster", claim)))


def register(identity, nonce, *, want="any", room=ROOM, blob=None, protocol=PROTOCOL, signer=None):
    signature = (signer or identity).sign(b"register", *registration_parts(nonce, room))
    return Register(protocol, room, identity.key, signature, want, blob)


def identities(count):
    return [Identity.ephemeral() for _ in range(count)]
