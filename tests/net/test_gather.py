"""Gathering: which servers are asked, what is made of their answers, and what is waited for.

Nothing here measures time. A limit of an hour stands for "does not wait": a test that waits after
all ends with its own time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import threading
import time

import pytest

from p2pnode.limits import LIMITS
from p2pnode.net import gather as gathering
from p2pnode.net import ice
from p2pnode.net.ice import IceMode, IcePolicy, Interface
from p2pnode.net.ice_servers import IceServer, SilentServers
from p2pnode.net.rtc import RtcTransport
from signaling.limits import LIMITS as SERVER_LIMITS
from signaling.stun import StunResponder
from tests.net.coturn import coturn, needs_coturn
from tests.net.fakes import until
from tests.signaling.peers import self_signed

PATIENT = dataclasses.replace(LIMITS, gather=3600.0)
HASTY = dataclasses.replace(LIMITS, gather=0.05)
LOOPBACK_V4 = Interface("lo", "127.0.0.1")
LOOPBACK_V6 = Interface("lo", "::1")

needs_v6 = pytest.mark.skipif(not socket.has_ipv6, reason="Python was built without IPv6")


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch):
    """A machine whose only addresses are loopback ones: they are then offered like others."""
    monkeypatch.setattr(ice, "local_interfaces", lambda: [LOOPBACK_V4])


@contextlib.contextmanager
def silent_server(kind: str = "stun"):
    """A socket that takes questions and gives no answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        login = "" if kind == "stun" else "user:password@"
        yield IceServer.parse(f"{kind}:{login}127.0.0.1:{server.getsockname()[1]}"), server


@contextlib.asynccontextmanager
async def stun_server(host: str = "127.0.0.1", responder: type[StunResponder] = StunResponder):
    """The signaling server's responder."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: responder(SERVER_LIMITS), local_addr=(host, 0)
    )
    port = transport.get_extra_info("sockname")[1]
    try:
        yield IceServer("stun", host, port)
    finally:
        transport.close()


def nothing(*_: object) -> None:
    pass


async def candidates(policy: IcePolicy) -> list[list[str]]:
    """Fields of the candidate lines of an offer."""
    transport = RtcTransport(policy, nothing, nothing)
    try:
        async with asyncio.timeout(20):
            sdp = await transport.offer()
    finally:
        await transport.close()
    return [line.split() for line in sdp.splitlines() if line.startswith("a=candidate")]


def kinds(lines: list[list[str]]) -> list[str]:
    return [line[7] for line in lines]


async def test_a_silent_server_ends_nothing():
    with silent_server() as (server, taken):
        policy = IcePolicy(servers=[server], limits=HASTY)
        assert kinds(await candidates(policy)) == ["host"]
        assert taken.recv(100)


@needs_coturn
async def test_a_server_is_not_blamed_for_a_loop_that_was_held(monkeypatch):
    """Longer than servers get; then a relay takes two questions more."""
    limits = dataclasses.replace(LIMITS, gather=3.0)
    original = gathering._Questions.ask

    async def held(self):
        asyncio.get_running_loop().call_soon(time.sleep, limits.gather + 0.2)
        return await original(self)

    monkeypatch.setattr(gathering._Questions, "ask", held)
    async with coturn() as turn:
        policy = IcePolicy(mode=IceMode.RELAY, servers=[turn.server()], limits=limits)
        assert kinds(await candidates(policy)) == ["relay"]


async def test_a_silent_server_is_hardly_waited_for_again(monkeypatch):
    monkeypatch.setattr(gathering, "SILENT_PATIENCE", 0.05)
    silent = SilentServers()
    with silent_server() as (server, taken):
        await candidates(IcePolicy(servers=[server], limits=HASTY, silent=silent))
        await candidates(IcePolicy(servers=[server], limits=PATIENT, silent=silent))
        assert taken.recv(100)
        assert taken.recv(100)  # but it was asked


async def test_a_silent_server_beside_one_that_answers_costs_nothing(monkeypatch):
    found = []
    original = gathering._Questions.ask

    async def look(self):
        answers = await original(self)
        found.extend((c.type, c.related_address) for c in answers)
        return answers

    monkeypatch.setattr(gathering._Questions, "ask", look)
    silent = SilentServers()
    with silent_server() as (dead, _):
        async with stun_server() as alive:
            policy = IcePolicy(servers=[dead, alive], limits=PATIENT, silent=silent)
            assert kinds(await candidates(policy)) == ["host"]
        # Not waited for, so nothing is known of it.
        assert not silent.is_silent(dead, asyncio.get_running_loop().time())
    assert found == []  # without a NAT the public address is the local one: no news


class Picky(StunResponder):
    """Answers one address, as if the packets of the others found no way."""

    def datagram_received(self, data, addr):
        if addr[0] == "127.0.0.1":
            super().datagram_received(data, addr)


async def test_a_socket_without_an_answer_does_not_hold_up_the_others(monkeypatch):
    """As on every machine with a container bridge."""
    machine = [LOOPBACK_V4, Interface("docker0", "127.0.0.2")]
    monkeypatch.setattr(ice, "local_interfaces", lambda: machine)
    monkeypatch.setattr(ice, "_is_global_or_private", lambda address: True)
    async with stun_server(responder=Picky) as server:
        policy = IcePolicy(servers=[server], limits=PATIENT)
        lines = await public_addresses(policy, monkeypatch)
    assert [line[4] for line in lines] == ["127.0.0.1"]


async def test_a_server_that_answers_again_is_trusted_again(monkeypatch):
    silent = SilentServers()
    now = asyncio.get_running_loop().time()
    async with stun_server() as server:
        silent.note(server, now, answered=False)
        await candidates(IcePolicy(servers=[server], limits=PATIENT, silent=silent))
        assert not silent.is_silent(server, now)


async def public_addresses(policy: IcePolicy, monkeypatch) -> list[list[str]]:
    """What is offered if no address counts as known: as behind a NAT."""
    monkeypatch.setattr(gathering._Questions, "_is_host", lambda self, candidate: False)
    return [line for line in await candidates(policy) if line[7] == "srflx"]


@needs_v6
async def test_stun_works_over_ipv6_and_by_name(monkeypatch):
    monkeypatch.setattr(ice, "local_interfaces", lambda: [LOOPBACK_V4, LOOPBACK_V6])
    async with stun_server("::1") as server:
        lines = await public_addresses(IcePolicy(servers=[server], limits=PATIENT), monkeypatch)
        assert [line[4] for line in lines] == ["::1"]
    async with stun_server() as server:
        named = dataclasses.replace(server, host="localhost")
        lines = await public_addresses(IcePolicy(servers=[named], limits=HASTY), monkeypatch)
        assert [line[4] for line in lines] == ["127.0.0.1"]


async def test_a_name_that_nobody_knows_is_no_obstacle():
    servers = [IceServer.parse("stun:nobody.invalid"), IceServer.parse("turn:u:p@nobody.invalid")]
    assert kinds(await candidates(IcePolicy(servers=servers, limits=LIMITS))) == ["host"]


async def test_better_addresses_have_higher_priorities(monkeypatch):
    machine = [LOOPBACK_V4, Interface("docker0", "127.0.0.3"), Interface("eth0", "127.0.0.2")]
    monkeypatch.setattr(ice, "local_interfaces", lambda: machine)
    monkeypatch.setattr(ice, "_is_global_or_private", lambda address: address != "127.0.0.1")
    lines = await candidates(IcePolicy())
    by_priority = sorted(lines, key=lambda line: -int(line[3]))
    assert [line[4] for line in by_priority] == ["127.0.0.2", "127.0.0.3"]
    assert len({line[3] for line in lines}) == 2


async def test_relay_mode_without_an_answer_is_an_error():
    with silent_server("turn") as (server, _), pytest.raises(ConnectionError, match="no TURN"):
        await candidates(IcePolicy(mode=IceMode.RELAY, servers=[server], limits=HASTY))


@needs_coturn
@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_a_relayed_address_comes_from_the_server_that_answers(transport: str):
    with silent_server("turn") as (dead, taken):
        async with coturn() as turn:
            policy = IcePolicy(servers=[dead, turn.server(transport)], limits=PATIENT)
            lines = await candidates(policy)
        assert taken.recv(100)
    assert kinds(lines) == ["host", "relay"]


@needs_coturn
async def test_tls_to_a_turn_server_is_checked(monkeypatch, tmp_path, caplog):
    threads = []
    make = ssl.create_default_context

    def made():
        threads.append(threading.current_thread())
        return make()

    monkeypatch.setattr(ssl, "create_default_context", made)
    chain, key = self_signed(tmp_path)
    async with coturn(tls=(chain, key)) as turn:
        policy = IcePolicy(servers=[turn.server("tls")], limits=PATIENT)
        with caplog.at_level("INFO", gathering.__name__):
            assert kinds(await candidates(policy)) == ["host"]
        assert "certificate verify failed" in caplog.text
        monkeypatch.setenv("SSL_CERT_FILE", str(chain))
        assert kinds(await candidates(policy)) == ["host", "relay"]
    assert len(threads) == 2
    assert threading.main_thread() not in threads  # it takes long


@needs_coturn
async def test_relay_mode_tells_no_address_of_this_machine():
    async with coturn("127.0.0.5") as turn:
        policy = IcePolicy(mode=IceMode.RELAY, servers=[turn.server()], limits=PATIENT)
        transport = RtcTransport(policy, nothing, nothing)
        try:
            sdp = await transport.offer()
        finally:
            await transport.close()
    assert "127.0.0.5" in sdp
    assert "127.0.0.1" not in sdp


@needs_coturn
async def test_wrong_credentials_are_said_and_not_waited_for(caplog):
    async with coturn() as turn:
        policy = IcePolicy(servers=[turn.server(password="wrong")], limits=PATIENT)
        assert kinds(await candidates(policy)) == ["host"]
    assert "refuses" in caplog.text
    assert "wrong" not in caplog.text


@needs_coturn
async def test_a_second_relay_is_given_back(monkeypatch):
    both = asyncio.Barrier(2)
    original = gathering._relayed

    async def together(*args, **options):
        """Both answers come in one turn of the loop."""
        answer = await original(*args, **options)
        await both.wait()
        return answer

    monkeypatch.setattr(gathering, "_relayed", together)
    async with coturn() as first, coturn() as second:
        policy = IcePolicy(servers=[first.server(), second.server()], limits=PATIENT)
        assert kinds(await candidates(policy)).count("relay") == 1
        # Allocations end with a refresh of lifetime 0: of the unused one, and of the used one when
        # the connection closed.
        for turn in (first, second):
            await until(lambda: "lifetime=0" in turn.log(), 10)  # noqa: B023
