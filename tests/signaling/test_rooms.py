"""The server's decisions, without sockets: roles, relaying, returning, and every cap."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pnode.protocol.identity import Identity
from signaling.grouping import Origin
from signaling.limits import LIMITS
from signaling.messages import (
    PROTOCOL,
    Challenge,
    Dismiss,
    IceServer,
    Publish,
    Refused,
    Relay,
    Relayed,
    RosterClaim,
    SignedRoster,
    View,
    Welcome,
    encode,
)
from signaling.rooms import Close, Lend, Rooms, Send
from tests.signaling.peers import ROOM, identities, register, roster, signed


class Server:
    """The core with its connections; what was sent to each is kept."""

    def __init__(self, **limits):
        self.now = 100.0
        self.limits = dataclasses.replace(LIMITS, **limits)
        self.rooms = Rooms(self.now, limits=self.limits, lends=True)
        self.got = {}
        self.lent = []
        self.closed = set()
        self.count = 0

    def do(self, effects):
        for effect in effects:
            if isinstance(effect, Send):
                self.got.setdefault(effect.connection, []).append(effect.message)
            elif isinstance(effect, Lend):
                self.lent.append((effect.connection, effect.peer))
            else:
                assert isinstance(effect, Close)
                self.closed.add(effect.connection)
                self.do(self.rooms.on_disconnect(effect.connection, self.now))

    def open(self, address="192.0.2.1", group=None):
        self.count += 1
        nonce = bytes([self.count % 256]) * 32
        self.do(self.rooms.on_connect(self.count, Origin(address, group), nonce, self.now))
        return self.count, nonce

    def say(self, number, message):
        raw = message if isinstance(message, bytes) else encode(message)
        self.do(self.rooms.on_frame(number, raw, self.now))

    def join(self, identity, address="192.0.2.1", **options):
        number, nonce = self.open(address)
        self.say(number, register(identity, nonce, **options))
        return number

    def leave(self, number):
        self.do(self.rooms.on_disconnect(number, self.now))

    def tick(self, seconds):
        self.now += seconds
        self.do(self.rooms.on_tick(self.now))

    def view(self, number):
        return [m for m in self.got[number] if isinstance(m, View)][-1]

    def refusal(self, number):
        last = self.got[number][-1]
        assert (number in self.closed) == isinstance(last, Refused)
        return last.reason if isinstance(last, Refused) else None

    def mail(self, number):
        return [m for m in self.got[number] if isinstance(m, Relayed)]


@pytest.fixture
def server():
    return Server()


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


# Coming back


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


# Caps


def test_connections_are_capped():
    server = Server(connections=3)
    numbers = [server.open(f"192.0.2.{n}")[0] for n in range(4)]
    assert [server.refusal(n) for n in numbers] == [None, None, None, "busy"]
    server.leave(numbers[0])
    assert server.refusal(server.open()[0]) is None


def test_connections_of_one_address_are_capped():
    server = Server(connections_per_address=2)
    assert [server.refusal(server.open()[0]) for _ in range(3)] == [None, None, "busy"]
    assert server.refusal(server.open("192.0.2.2")[0]) is None
    server.leave(1)
    assert server.refusal(server.open()[0]) is None


def test_rooms_are_capped():
    server = Server(rooms=2)
    numbers = [server.join(Identity.ephemeral(), room=bytes([n]) * 32) for n in range(3)]
    assert [server.refusal(n) for n in numbers] == [None, None, "busy"]


def test_waiting_peers_are_capped_and_may_reconnect():
    server = Server(waiting=2)
    server.join(Identity.ephemeral())
    one = Identity.ephemeral()
    server.join(one)
    server.join(Identity.ephemeral())
    assert server.refusal(server.join(Identity.ephemeral())) == "unavailable"
    assert server.refusal(server.join(one)) is None


def test_members_are_capped():
    server = Server(members=2)
    host, one, two = identities(3)
    h = server.join(host)
    server.say(h, Publish(roster(host, one)))
    assert server.view(h).epoch == 1
    server.say(h, Publish(roster(host, one, two, epoch=2)))
    assert server.refusal(h) == "broken"


def test_dismissals_are_capped():
    server = Server(dismissed=3)
    h = server.join(Identity.ephemeral())
    others = identities(4)
    for other in others:
        server.say(h, Dismiss(other.peer_id))
    assert len(server.rooms._rooms[ROOM].dismissed) == 3
    assert server.refusal(server.join(others[-1])) == "dismissed"


def test_silent_strangers_are_sent_away(server):
    number, _ = server.open()
    server.tick(LIMITS.register_seconds - 0.1)
    assert number not in server.closed
    server.tick(0.2)
    assert server.refusal(number) == "broken"
    assert server.rooms.connections == 0


def test_messages_per_second_are_capped():
    server = Server(messages_burst=10.0, messages_rate=1.0)
    h = server.join(Identity.ephemeral())
    for _ in range(9):
        server.say(h, Relay(b"x" * 32, b""))
    assert h not in server.closed
    server.now += 2
    server.say(h, Relay(b"x" * 32, b""))
    server.say(h, Relay(b"x" * 32, b""))
    assert h not in server.closed
    server.say(h, Relay(b"x" * 32, b""))
    assert server.refusal(h) == "broken"


def test_bytes_per_second_are_capped():
    server = Server(bytes_burst=100_000.0, bytes_rate=1.0)
    h = server.join(Identity.ephemeral())
    server.say(h, Relay(b"x" * 32, bytes(60_000)))
    assert h not in server.closed
    server.say(h, Relay(b"x" * 32, bytes(60_000)))
    assert server.refusal(h) == "broken"


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        ({"address_messages_burst": 10.0, "address_messages_rate": 1.0}, 0),
        ({"address_bytes_burst": 100_000.0, "address_bytes_rate": 1.0}, 30_000),
    ],
)
def test_connections_of_one_address_share_a_bound(limits, size):
    server = Server(**limits)
    numbers = [server.join(Identity.ephemeral(), room=bytes([n]) * 32) for n in range(4)]
    elsewhere = server.join(Identity.ephemeral(), "192.0.2.9", room=b"e" * 32)
    for number in numbers * 2:
        server.say(number, Relay(b"x" * 32, bytes(size)))
    assert server.refusal(numbers[3]) == "busy", "its own bounds were not reached"
    server.say(elsewhere, Relay(b"x" * 32, bytes(size)))
    assert server.refusal(elsewhere) is None


def test_ten_thousand_guesses_get_one_kind_of_answer_and_soon_none():
    """From one address and from fifty: what is bound is the number of tries, and a full room, a
    room that exists and one that does not look the same to a guest."""
    server = Server(waiting=0, messages_burst=1e9, address_messages_burst=1e9)
    server.join(Identity.ephemeral(), "192.0.2.1", room=b"full" * 8)
    answers = {}
    guesser = Identity.ephemeral()
    for n in range(10_000):
        room = b"full" * 8 if n % 100 == 0 else n.to_bytes(32, "big")
        address = "198.51.100.1" if n < 5_000 else f"203.0.113.{n % 50}"
        reason = server.refusal(server.join(guesser, address, room=room, want="guest"))
        answers[reason] = answers.get(reason, 0) + 1
    assert set(answers) == {"unavailable", "busy"}
    assert answers["unavailable"] <= LIMITS.all_joins_burst


def test_those_who_wait_may_say_less():
    server = Server(messages_burst=20.0, messages_rate=1.0)
    host, one = identities(2)
    server.join(host)
    a = server.join(one)
    server.say(a, Relay(host.peer_id, b""))
    assert a not in server.closed
    server.say(a, Relay(host.peer_id, b""))
    assert server.refusal(a) == "broken"


def test_a_room_of_64_can_all_offer_to_each_other_at_once(server):
    host, *others = identities(64)
    h = server.join(host)
    server.say(h, Publish(roster(host, *others)))
    numbers = [server.join(other, blob=None) for other in others]
    for other in others[1:]:
        for size in (200, 200, 6000):  # nonces asked for and told, then an offer
            server.say(numbers[0], Relay(other.peer_id, bytes(size)))
    assert numbers[0] not in server.closed
    assert all(len(server.mail(number)) == 3 for number in numbers[1:])


def test_join_attempts_of_one_address_are_capped():
    server = Server(joins_burst=3.0, joins_rate=1.0)
    for _ in range(3):
        assert server.refusal(server.join(Identity.ephemeral(), want="guest")) == "unavailable"
    assert server.refusal(server.join(Identity.ephemeral(), want="guest")) == "busy"
    assert server.refusal(server.join(Identity.ephemeral(), "192.0.2.9")) is None
    server.now += 1
    assert server.refusal(server.join(Identity.ephemeral(), want="guest")) is None


def test_join_attempts_of_all_addresses_are_capped():
    server = Server(all_joins_burst=3.0, all_joins_rate=1.0)
    answers = [
        server.refusal(server.join(Identity.ephemeral(), f"192.0.2.{n}", want="guest"))
        for n in range(4)
    ]
    assert answers == ["unavailable"] * 3 + ["busy"]


def test_addresses_remembered_are_capped():
    server = Server(addresses=10)
    for n in range(50):
        server.leave(server.join(Identity.ephemeral(), f"192.0.2.{n}"))
    assert len(server.rooms._joins) == 10
    assert not server.rooms._per_address


def test_empty_rooms_vanish(server):
    host, one = identities(2)
    h, a = server.join(host), server.join(one)
    server.leave(h)
    server.tick(LIMITS.empty_room_seconds - 1)
    assert server.rooms.rooms == 1
    server.tick(2)
    assert server.rooms.rooms == 0
    assert server.refusal(a) == "unavailable", "those who wait do not keep a room"
    assert server.rooms.connections == 0


def test_room_that_is_used_again_does_not_vanish(server):
    host = Identity.ephemeral()
    server.leave(server.join(host))
    server.tick(LIMITS.empty_room_seconds - 1)
    server.join(host)
    server.tick(10)
    assert server.rooms.rooms == 1


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


def test_joins_of_one_room_are_capped_wherever_they_come_from():
    server = Server(room_joins_burst=6.0, room_joins_rate=1.0)
    host, *others = identities(9)
    first = server.join(host)
    numbers = [server.join(one, address=f"198.51.100.{i}") for i, one in enumerate(others)]
    assert [server.refusal(number) for number in numbers] == [None] * 5 + ["busy"] * 3
    assert server.refusal(first) is None
    server.now += 1.0
    assert server.refusal(server.join(others[-1], address="198.51.100.99")) is None


@pytest.mark.parametrize(
    "limits", [{"room_messages_burst": 10.0}, {"room_bytes_burst": 1_000.0}], ids=["count", "bytes"]
)
def test_what_is_relayed_in_one_room_is_capped_and_nobody_is_cut_off(limits):
    server = Server(room_messages_rate=1.0, room_bytes_rate=100.0, **limits)
    host, member = identities(2)
    blob = roster(host, member)
    first, second = (server.join(one, blob=blob) for one in (host, member))
    for _ in range(50):
        server.say(first, Relay(member.peer_id, b"x" * 100))
    assert len(server.mail(second)) == 10
    server.now += 1.0
    server.say(first, Relay(member.peer_id, b"y" * 100))
    assert server.mail(second)[-1] == Relayed(host.peer_id, b"y" * 100)
    assert not server.closed


def test_who_waits_too_long_makes_room_and_comes_back_at_the_end():
    server = Server(waiting_seconds=100.0, waiting=2)
    host, early, late = identities(3)
    first, old = server.join(host), server.join(early)
    server.tick(60.0)
    new = server.join(late)
    server.tick(50.0)
    assert server.refusal(old) == "busy"
    assert server.closed == {old}, "members stay, and who came later"
    server.join(early)
    assert server.view(first).waiting == (late.peer_id, early.peer_id)
    assert server.refusal(new) is None


# A host that is lost


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
