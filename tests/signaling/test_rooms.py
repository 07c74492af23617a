"""The server's decisions, without sockets: roles, relaying, proofs, and what it lends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pnode.protocol.identity import Identity
from signaling.limits import LIMITS
from signaling.messages import (
    PROTOCOL,
    Challenge,
    Dismiss,
    IceServer,
    Publish,
    Relay,
    Relayed,
    View,
    Welcome,
    encode,
)
from signaling.rooms import Rooms
from tests.signaling.peers import ROOM, identities, register, roster, signed
from tests.signaling.rooms_server import Server


def test_first_message_is_a_challenge_then_a_welcome_then_a_view():
    server = Server()
    server.rooms = Rooms(0.0, ice=(IceServer(("stun:example.org",)),), stun_port=99)
    number = server.join(Identity.ephemeral())
    kinds = [type(message) for message in server.got[number]]
    assert kinds == [Challenge, Welcome, View]
    assert server.got[number][0].protocol == PROTOCOL
    assert server.got[number][1] == Welcome((IceServer(("stun:example.org",)),), 99)


def test_roles_and_what_each_may_see(server):
    host, one, two = identities(3)
    h, a, b = server.join(host), server.join(one), server.join(two)
    assert server.view(h) == View(
        "host", host.peer_id, 0, (host.peer_id,), (one.peer_id, two.peer_id)
    )
    assert server.view(a) == View("waiting", host.peer_id)
    server.say(h, Publish(roster(host, one)))
    members = tuple(sorted((host.peer_id, one.peer_id)))
    assert server.view(h) == View("host", host.peer_id, 1, members, (two.peer_id,))
    assert server.view(a) == View("member", host.peer_id, 1, members)
    assert server.view(b) == View("waiting", host.peer_id)
    server.leave(h)
    assert server.view(a) == View("member", None, 1, (one.peer_id,))
    assert server.view(b) == View("waiting", None)


def test_views_are_sent_only_when_they_change(server):
    host, one = identities(2)
    h, a = server.join(host), server.join(one)
    count = len(server.got[a])
    server.join(Identity.ephemeral())
    server.say(h, Publish(roster(host)))
    assert len(server.got[a]) == count


def test_relaying_follows_the_roles(server):
    host, one, two, three = identities(4)
    h, a, b, c = (server.join(identity) for identity in (host, one, two, three))
    server.say(h, Publish(roster(host, one, two)))
    for sender, to, arrives in (
        (a, two, True),
        (b, one, True),
        (a, host, True),
        (h, one, True),
        (c, host, True),
        (h, three, True),
        (a, three, False),
        (c, one, False),
        (c, three, False),
    ):
        number = {host: h, one: a, two: b, three: c}[to]
        before = len(server.mail(number))
        server.say(sender, Relay(to.peer_id, b"sealed"))
        assert len(server.mail(number)) == before + arrives
        assert sender not in server.closed


def test_nothing_passes_between_rooms(server):
    one, two = identities(2)
    a, b = server.join(one), server.join(two, room=b"q" * 32)
    server.say(a, Relay(two.peer_id, b"sealed"))
    assert not server.mail(b)
    assert server.view(a).role == server.view(b).role == "host"


def test_sender_is_named_by_its_proven_key(server):
    host, one = identities(2)
    h, a = server.join(host), server.join(one)
    server.say(a, Relay(host.peer_id, b"sealed"))
    assert server.mail(h) == [Relayed(one.peer_id, b"sealed")]


# Proof and protocol


def test_wrong_proofs_are_refused(server):
    host, other = identities(2)
    number, nonce = server.open()
    server.say(number, register(host, nonce, signer=other))
    assert server.refusal(number) == "proof"
    number, _ = server.open()
    server.say(number, register(host, b"n" * 32))
    assert server.refusal(number) == "proof", "a signature for another connection"
    number, nonce = server.open()
    message = register(host, nonce)
    server.say(number, encode(message).replace(ROOM, b"q" * 32))
    assert server.refusal(number) == "proof", "a signature for another room"
    assert server.rooms.rooms == 0


def test_other_version_is_refused(server):
    number = server.join(Identity.ephemeral(), protocol=PROTOCOL + 1)
    assert server.refusal(number) == "version"


@pytest.mark.parametrize(
    "raw", [b"", b"\xc0", b"\xff" * 100, b"{}", encode(Challenge(1, b"n" * 32))]
)
def test_malformed_frames_end_the_connection(server, raw):
    number, _ = server.open()
    server.say(number, raw)
    assert server.refusal(number) == "broken"


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_no_frame_is_an_exception(raw):
    server = Server()
    number = server.join(Identity.ephemeral())
    server.say(number, raw)


def test_messages_out_of_turn_end_the_connection(server):
    host, one = identities(2)
    number, _ = server.open()
    server.say(number, Relay(b"x" * 32, b""))
    assert server.refusal(number) == "broken", "relay before registration"
    h, a = server.join(host), server.join(one)
    server.say(a, Publish(roster(host, one)))
    assert server.refusal(a) == "broken", "only the host publishes"
    a = server.join(one)
    server.say(a, Dismiss(host.peer_id))
    assert server.refusal(a) == "broken", "only the host dismisses"
    server.say(h, register(host, b"n" * 32))
    assert server.refusal(h) == "broken", "a second registration"


@pytest.mark.parametrize(
    "make",
    [
        lambda host, one: roster(one, host),
        lambda host, one: signed(host, members=(host.peer_id, one.peer_id, one.peer_id)),
        lambda host, one: signed(host, members=(one.peer_id,)),
        lambda host, one: roster(host, one, room=b"q" * 32),
        lambda host, one: roster(host, one)[:-1] + b"\xff",
        lambda host, one: b"",
    ],
    ids=["other signer", "member twice", "host missing", "other room", "damaged", "empty"],
)
def test_wrong_rosters_are_refused(server, make):
    host, one = identities(2)
    number = server.join(host)
    server.say(number, Publish(make(host, one)))
    assert server.refusal(number) == "broken"


def test_old_roster_changes_nothing(server):
    host, one = identities(2)
    h, a = server.join(host), server.join(one)
    server.say(h, Publish(roster(host, one, epoch=5)))
    server.say(h, Publish(roster(host, epoch=4)))
    assert server.view(a).role == "member"
    assert h not in server.closed


# TURN credentials


def test_turn_is_lent_to_approved_members_only(server):
    host, one, two = identities(3)
    h = server.join(host)
    assert server.lent == []  # a founder alone is any stranger
    a, b = server.join(one), server.join(two)
    assert server.lent == [(h, host.peer_id)]
    server.say(h, Publish(roster(host, one)))
    assert server.lent[1:] == [(a, one.peer_id)]
    server.tick(LIMITS.turn_seconds / 4)
    assert b not in [number for number, _ in server.lent]
    assert len(server.lent) == 2


def test_turn_is_lent_again_in_time_and_not_to_those_removed(server):
    host, one, two = identities(3)
    h, a, b = (server.join(identity) for identity in (host, one, two))
    server.say(h, Publish(roster(host, one, two)))
    server.say(h, Publish(roster(host, one, epoch=2)))
    server.lent.clear()
    server.tick(LIMITS.turn_seconds / 2)
    assert server.lent == [(h, host.peer_id), (a, one.peer_id)]
    server.lent.clear()
    server.leave(a)
    again = server.join(one, blob=roster(host, one, epoch=2))
    assert server.lent == [(again, one.peer_id)]
    assert b not in [number for number, _ in server.lent]


def test_turn_is_lent_only_by_a_server_that_has_some():
    server = Server()
    server.rooms = Rooms(server.now)
    host, one = identities(2)
    h, _ = server.join(host), server.join(one)
    server.say(h, Publish(roster(host, one)))
    server.tick(LIMITS.turn_seconds)
    assert server.lent == []
