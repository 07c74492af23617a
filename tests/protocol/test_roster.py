"""Rosters: what the host's signature covers and what is refused."""

import hashlib

import msgspec
import pytest

from p2pnode.errors import PeerError
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.roster import Member, open_roster, sign_roster
from signaling.messages import MAX_MEMBERS, RosterClaim, SignedRoster, encode

ROOM = b"r" * 32
HOST, GUEST = Identity.ephemeral(), Identity.ephemeral()


def member(identity, name="x"):
    return Member(identity.key, identity.relay_key, name)


MEMBERS = (member(HOST, "host"), member(GUEST, "guest"))


def forged(signer=HOST, members=MEMBERS, removed=(), boxes=(), **change):
    """An encoded roster, made by hand from a changed claim."""
    details = msgspec.msgpack.encode([members, removed, boxes])
    claim = RosterClaim(
        room=ROOM,
        epoch=1,
        host_key=HOST.key,
        members=tuple(one.id for one in members),
        successors=(),
        detail=hashlib.sha256(details).digest(),
    )
    raw = encode(msgspec.structs.replace(claim, **change))
    signed = encode(SignedRoster(raw, signer.sign(b"roster", raw)))
    return msgspec.msgpack.encode([signed, details])


def test_round_trip():
    roster = sign_roster(HOST, ROOM, 7, MEMBERS)
    assert open_roster(roster.encode(), ROOM) == roster
    assert (roster.host, roster.epoch, roster.members) == (HOST.peer_id, 7, MEMBERS)
    assert roster.member(GUEST.peer_id) == MEMBERS[1]
    assert roster.member(b"?" * 32) is None
    assert open_roster(forged(), ROOM).ids == roster.ids


def test_largest_roster_fits_where_it_must_go():
    members = tuple(
        member(identity, "\u00e9" * 32) for identity in (Identity.ephemeral() for _ in range(64))
    )
    host = Identity.ephemeral()
    gone = tuple(bytes([number]) * 32 for number in range(64))
    roster = sign_roster(host, ROOM, 2**53, (member(host), *members[1:]), gone, (bytes(80),) * 64)
    assert len(roster.signed) <= 8 * 1024
    assert len(roster.encode()) <= 24 * 1024
    assert len(roster.members) == MAX_MEMBERS


@pytest.mark.parametrize(
    ("roster", "what"),
    [
        (forged(room=b"q" * 32), "another room"),
        (forged(signer=GUEST), "not signed"),
        (forged(detail=b"d" * 32), "details not its own"),
        (forged(members=(*MEMBERS, MEMBERS[1])), "twice"),
        (forged(members=MEMBERS[1:]), "does not hold its host"),
        (forged(successors=(b"s" * 32,)), "successors"),
        (forged(removed=(GUEST.peer_id,)), "among those removed"),
        (forged(boxes=(bytes(80),)), "one box for each"),
        (forged(boxes=(bytes(79),) * 2), "malformed"),
        (b"\xc0", "malformed"),
        (msgspec.msgpack.encode([b"", b""]), "malformed"),
    ],
)
def test_wrong_rosters_are_refused(roster, what):
    with pytest.raises(PeerError, match=what):
        open_roster(roster, ROOM)


def test_details_and_ids_must_agree():
    details = msgspec.msgpack.encode([MEMBERS, [], []])
    claim = RosterClaim(ROOM, 1, HOST.key, (HOST.peer_id,), (), hashlib.sha256(details).digest())
    raw = encode(claim)
    signed = encode(SignedRoster(raw, HOST.sign(b"roster", raw)))
    with pytest.raises(PeerError, match="other than those signed"):
        open_roster(msgspec.msgpack.encode([signed, details]), ROOM)


def test_details_cannot_be_exchanged_under_a_signature():
    roster = sign_roster(HOST, ROOM, 1, MEMBERS)
    other = msgspec.msgpack.encode([(MEMBERS[0], member(Identity.ephemeral(), "mallory")), [], []])
    with pytest.raises(PeerError, match="details not its own"):
        open_roster(msgspec.msgpack.encode([roster.signed, other]), ROOM)


def test_names_are_cleaned_even_if_the_host_did_not():
    roster = sign_roster(HOST, ROOM, 1, (member(HOST, "\x1b[31mred\n" + "y" * 60),))
    assert roster.members[0].name == "[31mred " + "y" * 24
