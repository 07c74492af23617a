"""What one stranger, one address or one room can take of a server."""

import pytest

from p2pnode.protocol.identity import Identity
from signaling.limits import LIMITS
from signaling.messages import Dismiss, Publish, Relay, Relayed
from tests.signaling.peers import ROOM, identities, roster
from tests.signaling.rooms_server import Server


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
