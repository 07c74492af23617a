"""Addresses of STUN and TURN servers, and the memory of silent ones."""

from __future__ import annotations

import pytest

from p2pnode.errors import UsageError
from p2pnode.net.ice_servers import MAX_OFFERED, SILENT_SECONDS, IceServer, SilentServers, chosen


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("stun:stun.example.org", IceServer("stun", "stun.example.org", 3478)),
        ("stun:[2001:db8::5]:99", IceServer("stun", "2001:db8::5", 99)),
        ("turn:u:p@h", IceServer("turn", "h", 3478, "udp", "u", "p")),
        ("turn:u:p@h:5?transport=udp", IceServer("turn", "h", 5, "udp", "u", "p")),
        ("turn:u:p:q@h:5?transport=tcp", IceServer("turn", "h", 5, "tcp", "u", "p:q")),
        ("turns:u:p@h", IceServer("turn", "h", 5349, "tls", "u", "p")),
        ("turn:u:p@[::1]:7", IceServer("turn", "::1", 7, "udp", "u", "p")),
    ],
)
def test_addresses_are_read(url: str, server: IceServer):
    assert IceServer.parse(url) == server


def test_name_and_password_may_come_separately():
    server = IceServer.parse("turn:h?transport=tcp", "17:ab", "s/c=")
    assert server == IceServer("turn", "h", 3478, "tcp", "17:ab", "s/c=")


@pytest.mark.parametrize(
    "url",
    [
        *("", "stun", "http://x", "stun:", "stun:h:99?transport=tcp", "turn:u:p@h?transport=sctp"),
        *("turn:h", "turn:user@h", "turns:u:p@h?transport=udp", "stun:u:p@h", "stun:h:0"),
        *("stun:h:65536", "stun:[1.2.3.4]:5", "stun:[::1", "turn:u:p@h h", "stuns:h"),
    ],
)
def test_an_address_that_cannot_be_used_is_a_sentence(url: str):
    with pytest.raises(UsageError, match=r"\w+ \w+ \w+"):
        IceServer.parse(url)


def test_no_sentence_and_no_repr_tells_the_password():
    with pytest.raises(UsageError) as raised:
        IceServer.parse("turn:user:hunter2@host:port")
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(IceServer.parse("turn:user:hunter2@host"))


STUN, TURN = IceServer.parse("stun:a"), IceServer.parse("turn:u:p@a")
THEIR_STUN, THEIR_TURN = IceServer.parse("stun:b"), IceServer.parse("turn:u:p@b")


def test_own_servers_stand_in_for_those_of_their_kind():
    theirs = (THEIR_STUN, THEIR_TURN)
    assert chosen((), theirs) == theirs
    assert chosen((TURN,), theirs) == (TURN, THEIR_STUN)
    assert chosen((STUN,), theirs) == (STUN, THEIR_TURN)
    assert chosen((STUN, TURN), theirs) == (STUN, TURN)


def test_few_servers_are_taken_from_strangers():
    many = [IceServer.parse(f"turn:u:p@h{i}") for i in range(100)]
    assert chosen((STUN,), many) == (STUN, *many[:MAX_OFFERED])


def test_a_silent_server_is_remembered_for_a_while_or_until_it_answers():
    silent = SilentServers()
    assert not silent.is_silent(TURN, 0.0)
    silent.note(TURN, 0.0, answered=False)
    assert silent.is_silent(TURN, SILENT_SECONDS - 1)
    assert not silent.is_silent(STUN, 1.0)
    with_other_credentials = IceServer.parse("turn:x:y@a")
    assert silent.is_silent(with_other_credentials, 1.0)
    silent.note(TURN, SILENT_SECONDS - 1, answered=False)
    assert not silent.is_silent(TURN, SILENT_SECONDS)
    silent.note(TURN, 100.0, answered=False)
    silent.note(TURN, 101.0, answered=True)
    assert not silent.is_silent(TURN, 102.0)
