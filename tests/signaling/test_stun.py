"""The STUN responder: right answers, and nothing that would help an attacker."""

import asyncio
import dataclasses
import socket

import pytest
from aioice import stun
from hypothesis import given
from hypothesis import strategies as st

from signaling.app import SignalingServer
from signaling.limits import LIMITS
from signaling.stun import answer


def request(method=stun.Method.BINDING, kind=stun.Class.REQUEST, **attributes):
    return stun.Message(message_method=method, message_class=kind, attributes=attributes)


@pytest.mark.parametrize("address", [("192.0.2.7", 4321), ("2001:db8::7", 4321)])
def test_answer_holds_the_address(address):
    question = request()
    reply = stun.parse_message(answer(bytes(question), address))
    assert reply.transaction_id == question.transaction_id
    assert reply.message_class == stun.Class.RESPONSE
    assert reply.attributes == {"XOR-MAPPED-ADDRESS": address}


@pytest.mark.parametrize("address", [("192.0.2.7", 1), ("2001:db8::7", 1)])
def test_answer_is_hardly_longer_than_the_question(address):
    question = bytes(request())
    assert len(question) == 20
    assert len(answer(question, address)) <= len(question) + 24


@pytest.mark.parametrize(
    "question",
    [
        b"",
        bytes(20),
        bytes(request())[:-1],
        bytes(request()) + b"\0",
        bytes(request(kind=stun.Class.RESPONSE)),
        bytes(request(kind=stun.Class.INDICATION)),
        bytes(request(method=stun.Method.ALLOCATE)),
        bytes(request(SOFTWARE="x" * 600)),
        bytes(request())[:4] + bytes(4) + bytes(request())[8:],
    ],
    ids=[
        "empty",
        "zeros",
        "short",
        "long",
        "response",
        "indication",
        "allocate",
        "huge",
        "no cookie",
    ],
)
def test_nothing_else_is_answered(question):
    assert answer(question, ("192.0.2.7", 1)) is None


@given(st.binary(max_size=100), st.integers(0, 30))
def test_no_datagram_is_an_exception(noise, keep):
    answer(noise, ("192.0.2.7", 1))
    answer(bytes(request(SOFTWARE="abc"))[:keep] + noise, ("192.0.2.7", 1))


def ask(port, count):
    """Send questions from a plain socket; the number of answers within half a second."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.5)
        for _ in range(count):
            udp.sendto(bytes(request()), ("127.0.0.1", port))
        answers = 0
        try:
            while True:
                reply = stun.parse_message(udp.recv(1000))
                assert reply.attributes["XOR-MAPPED-ADDRESS"] == udp.getsockname()
                answers += 1
        except TimeoutError:
            return answers


async def test_server_answers_on_its_own_port_number():
    async with SignalingServer("127.0.0.1", 0) as server:
        assert await asyncio.to_thread(ask, server.port, 3) == 3


async def test_answers_per_second_are_capped():
    limits = dataclasses.replace(LIMITS, stun_burst=5.0, stun_rate=0.1)
    async with SignalingServer("127.0.0.1", 0, limits=limits) as server:
        assert await asyncio.to_thread(ask, server.port, 50) == 5


async def test_one_address_does_not_get_all_answers():
    limits = dataclasses.replace(LIMITS, stun_address_burst=5.0, stun_address_rate=0.1)
    async with SignalingServer("127.0.0.1", 0, limits=limits) as server:
        assert await asyncio.to_thread(ask, server.port, 50) == 5
        responder = server._stun.get_protocol()
        assert responder._may_answer("192.0.2.9"), "others still get theirs"
        for _ in range(5):
            responder._may_answer("2001:db8:1:2::a")
        assert not responder._may_answer("2001:db8:1:2::b"), "one /64 is one address"
