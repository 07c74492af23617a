"""Who comes back to a room, and as what: after a pause, after a restart of the server, as host."""

import pytest

from p2pnode.protocol.identity import Identity
from signaling.limits import LIMITS
from signaling.messages import Dismiss, Publish, Relay, RosterClaim, SignedRoster, View, encode
from tests.signaling.peers import ROOM, identities, roster
from tests.signaling.rooms_server import Server


def test_same_identity_again_replaces_the_older_connection(server):
    host, one = identities(2)
    h, a = server.join(host), server.join(one)
    again = server.join(one, want="guest")
    assert server.refusal(a) == "replaced"
    assert server.view(again).role == "waiting"
    assert server.view(h).waiting == (one.peer_id,)
    server.leave(a)
    server.say(again, Relay(host.peer_id, b"still here"))
    assert len(server.mail(h)) == 1


def test_host_keeps_its_role_while_away(server):
    host, one = identities(2)
    h = server.join(host)
    server.leave(h)
    a = server.join(one)
    assert server.view(a) == View("waiting", None)
    h = server.join(host)
    assert server.view(h).role == "host"


@pytest.mark.parametrize("first", ["host", "member"])
def test_restarted_server_learns_the_room_from_either_side(first):
    host, one, late = identities(3)
    blob = roster(host, one, epoch=4)
    server = Server()
    order = (host, one) if first == "host" else (one, host)
    numbers = {who: server.join(who, want="guest", blob=blob) for who in order}
    assert server.view(numbers[host]).role == "host"
    assert server.view(numbers[one]).role == "member"
    assert server.view(server.join(late)).role == "waiting"


def test_newest_roster_wins_after_a_restart(server):
    host, one, two = identities(3)
    a = server.join(one, want="guest", blob=roster(host, one, two, epoch=4))
    b = server.join(two, want="guest", blob=roster(host, one, two, epoch=4))
    server.join(host, want="guest", blob=roster(host, one, epoch=5))
    assert server.view(a).role == "member"
    assert server.view(b).role == "waiting", "removed in epoch 5"


def test_roster_that_does_not_name_its_bringer_gives_nothing(server):
    host, one, stranger = identities(3)
    number = server.join(stranger, want="guest", blob=roster(host, one))
    assert server.refusal(number) == "unavailable"


def test_newcomer_gives_way_to_returning_members_soon_after_the_start(server):
    host, one, early = identities(3)
    e = server.join(early)
    server.say(e, Publish(roster(early)))
    a = server.join(one, want="guest", blob=roster(host, one))
    assert server.view(a).role == "member"
    assert server.view(e) == View("waiting", None)


@pytest.mark.parametrize("founded", [0.0, LIMITS.settle_seconds])
def test_a_settled_room_is_not_taken_over(server, founded):
    host, mallory = identities(2)
    server.now += founded
    h = server.join(host)
    server.now += LIMITS.settle_seconds
    number = server.join(mallory, blob=roster(mallory, epoch=1000))
    assert server.refusal(number) == "contested"
    assert server.view(h).role == "host"


def test_room_with_members_is_not_taken_over_even_soon_after_the_start(server):
    host, one, mallory = identities(3)
    server.join(host)
    server.join(one, blob=roster(host, one))
    number = server.join(mallory, blob=roster(mallory, epoch=1000))
    assert server.refusal(number) == "contested"


def test_dismissed_peer_stays_out_until_approved(server):
    host, one = identities(2)
    h, a = server.join(host), server.join(one)
    server.say(h, Dismiss(one.peer_id))
    assert server.refusal(a) == "dismissed"
    assert server.view(h).waiting == ()
    assert server.refusal(server.join(one)) == "dismissed"
    server.say(h, Publish(roster(host, one)))
    assert server.view(server.join(one)).role == "member"
    server.say(h, Dismiss(one.peer_id))
    assert server.view(h).members == tuple(sorted((host.peer_id, one.peer_id)))


def test_guests_get_one_answer_for_every_kind_of_no():
    host = Identity.ephemeral()
    server = Server(waiting=1)
    absent = server.join(Identity.ephemeral(), want="guest")
    server.join(host)
    server.join(Identity.ephemeral())
    full = server.join(Identity.ephemeral(), want="guest")
    assert server.got[absent][-1] == server.got[full][-1]
    assert server.refusal(full) == "unavailable"


def lost(server):
    """A room of three whose host has gone, and time enough to call it lost."""
    host, one, two = identities(3)
    blob = roster(host, one, two, epoch=3)
    h, a, b = (server.join(who, blob=blob) for who in (host, one, two))
    server.leave(h)
    server.now += LIMITS.takeover_seconds + 1
    server.do(server.rooms.on_tick(server.now))
    return (host, one, two), (a, b)


def takes_over(by, *members, epoch):
    """A roster signed by a member that stands in: join order stays."""
    claim = encode(
        RosterClaim(ROOM, epoch, by.key, tuple(m.peer_id for m in members), (), bytes(32))
    )
    return Publish(encode(SignedRoster(claim, by.sign(b"roster", claim))))


def test_the_first_in_join_order_stands_in_for_a_host_that_is_lost(server):
    (host, one, two), (a, b) = lost(server)
    assert (server.view(a).role, server.view(b).role) == ("acting", "member")
    stranger = Identity.ephemeral()
    number = server.join(stranger)
    assert server.view(number) == View("waiting", one.peer_id)
    assert server.view(a).waiting == (stranger.peer_id,)
    assert server.view(b).waiting == ()
    server.say(number, Relay(one.peer_id, b"knock"))
    server.say(a, Relay(stranger.peer_id, b"yes"))
    assert len(server.mail(a)) == len(server.mail(number)) == 1
    server.say(number, Relay(two.peer_id, b"knock"))
    assert server.mail(b) == []
    server.say(a, takes_over(one, host, one, two, stranger, epoch=4))
    assert server.view(a).role == "host"
    assert server.view(number).role == "member"
    server.leave(a)
    server.now += LIMITS.takeover_seconds + 1
    server.do(server.rooms.on_tick(server.now))
    assert server.view(b).role == "acting"


def test_a_host_that_comes_back_in_time_is_host(server):
    host, one = identities(2)
    blob = roster(host, one, epoch=3)
    h, a = server.join(host, blob=blob), server.join(one, blob=blob)
    server.leave(h)
    server.now += LIMITS.takeover_seconds - 1
    server.do(server.rooms.on_tick(server.now))
    assert server.view(a).role == "member"
    h = server.join(host, blob=blob)
    server.now += LIMITS.takeover_seconds
    server.do(server.rooms.on_tick(server.now))
    assert (server.view(h).role, server.view(a).role) == ("host", "member")


def test_a_member_publishes_nothing_while_it_is_not_its_turn(server):
    (host, one, two), (a, b) = lost(server)
    server.say(b, takes_over(two, host, one, two, epoch=9))
    assert (server.view(a).role, server.view(a).epoch) == ("acting", 3)
    assert b not in server.closed
    h = server.join(host, blob=roster(host, one, two, epoch=3))
    server.say(a, takes_over(one, host, one, two, epoch=9))
    assert (server.view(h).role, server.view(a).role) == ("host", "member")
    server.say(a, Dismiss(two.peer_id))
    assert b not in server.closed


def test_nobody_publishes_in_the_name_of_another(server):
    (host, one, two), (a, b) = lost(server)
    server.say(a, takes_over(two, host, one, two, epoch=9))
    assert server.refusal(a) == "broken"
    del host, b


def test_a_host_that_was_stood_in_for_becomes_host_again(server):
    (host, one, two), (a, b) = lost(server)
    server.say(a, takes_over(one, host, one, two, epoch=4))
    h = server.join(host, want="guest", blob=roster(host, one, two, epoch=3))
    assert server.view(h).role == "member"
    server.say(h, takes_over(host, host, one, two, epoch=5))
    assert (server.view(h).role, server.view(a).role) == ("host", "member")
    del b
