"""Rooms that nodes without a code are told of."""

import pytest

from p2pnode.protocol.identity import Identity
from signaling.groups import Groups
from signaling.limits import LIMITS
from signaling.messages import Group, Nearby, Register, encode
from tests.signaling.peers import register
from tests.signaling.rooms_server import Server

HOME, ELSEWHERE = "5.6.7.8", "5.6.7.9"
ROOM_A, ROOM_B = b"a" * 32, b"b" * 32


@pytest.fixture
def server():
    return Server()


def found(server, address, proposed, group="same"):
    """The room that a node behind `address` is told of."""
    number, _ = server.open(address, address if group == "same" else group)
    server.say(number, Nearby(proposed))
    answer = server.got[number][-1]
    server.leave(number)
    return answer


def test_second_behind_an_address_is_told_the_room_of_the_first(server):
    assert found(server, HOME, ROOM_A) == Group(ROOM_A)
    assert found(server, HOME, ROOM_B) == Group(ROOM_A)
    assert found(server, ELSEWHERE, ROOM_B) == Group(ROOM_B)


def test_group_is_kept_by_members_not_by_those_who_ask(server):
    host = Identity.ephemeral()
    found(server, HOME, ROOM_A)
    h = server.join(host, room=ROOM_A)
    server.tick(LIMITS.group_seconds + 1)
    assert found(server, HOME, ROOM_B) == Group(ROOM_A)
    server.leave(h)
    server.tick(LIMITS.group_seconds - 1)
    assert found(server, HOME, ROOM_B) == Group(ROOM_A), "the host may come back"
    server.tick(2)
    assert found(server, HOME, ROOM_B) == Group(ROOM_B), "no asking has kept it"
    server.tick(LIMITS.group_seconds + 1)
    assert len(server.rooms._groups) == 0


def test_who_only_asks_founds_nothing(server):
    assert found(server, HOME, None) == Group(None, "none")
    assert found(server, HOME, ROOM_A) == Group(ROOM_A)
    assert found(server, HOME, None) == Group(ROOM_A)


def test_room_with_a_code_is_in_no_group(server):
    server.join(Identity.ephemeral(), HOME, room=ROOM_A)
    assert found(server, HOME, ROOM_B) == Group(ROOM_B)


def test_asking_and_registering_on_one_connection(server):
    host = Identity.ephemeral()
    number, nonce = server.open(HOME, HOME)
    server.say(number, Nearby(ROOM_A))
    assert server.got[number][-1] == Group(ROOM_A)
    server.say(number, register(host, nonce, room=ROOM_A))
    assert server.view(number).role == "host"
    server.say(number, Nearby(ROOM_A))
    assert server.refusal(number) == "broken", "only before registering"


def test_address_without_a_group_learns_why_and_may_still_use_a_code(server):
    number, nonce = server.open("192.168.1.5")
    server.say(number, Nearby(ROOM_A))
    assert server.got[number][-1].room is None
    server.say(number, register(Identity.ephemeral(), nonce))
    assert server.view(number).role == "host"


def test_asking_counts_as_a_join_attempt():
    server = Server(joins_burst=3.0, joins_rate=1.0)
    number, _ = server.open(HOME, HOME)
    for _ in range(3):
        server.say(number, Nearby(ROOM_A))
    assert number not in server.closed
    server.say(number, Nearby(ROOM_A))
    assert server.refusal(number) == "busy"


def test_groups_are_capped():
    server = Server(groups=2)
    assert found(server, "5.0.0.1", ROOM_A) == Group(ROOM_A)
    assert found(server, "5.0.0.2", ROOM_A) == Group(ROOM_A)
    assert found(server, "5.0.0.3", ROOM_A).reason == "busy"
    assert found(server, "5.0.0.1", ROOM_B) == Group(ROOM_A), "those there are go on"


def test_an_expired_group_is_replaced_even_before_it_is_forgotten():
    groups = Groups(1, 30.0)
    assert groups.room_of(HOME, ROOM_A, lambda _: False, 0.0) == ROOM_A
    assert groups.room_of(HOME, ROOM_B, lambda _: False, 31.0) == ROOM_B


def test_asking_tells_nothing_about_the_address():
    assert HOME.encode() not in encode(Group(ROOM_A))
    assert "address" not in Register.__struct_fields__
