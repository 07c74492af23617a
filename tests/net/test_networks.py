"""Links between machines of different networks, each a namespace with a process in it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import sys
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.net.coturn import coturn, needs_coturn
from tests.net.fakes import until
from tests.net.namespaces import (
    HUB,
    NOWHERE,
    Namespace,
    alone,
    home,
    needs_namespaces,
    needs_nat,
    star,
)

pytestmark = needs_namespaces

Said = dict[str, object]


class Peer:
    """A mesh that runs inside a namespace, and what it said."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.id = (bytes([number]) * 32).hex()
        self.said: list[Said] = []
        self.others: dict[str, Peer] = {}
        """Who gets its signals, by id."""
        self._process = process
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            self.said.append(said)
            if "signal" in said:
                self.others[said["to"]].tell({"from": self.id, "signal": said["signal"]})

    def tell(self, what: Said) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    def heard(self, what: str) -> list[Said]:
        return [said for said in self.said if what in said]

    def send(self, to: Peer, message: bytes) -> None:
        self.tell({"send": [to.id, message.hex()]})

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reader


@contextlib.asynccontextmanager
async def peers(
    where: Sequence[Namespace], mode: str = "default", servers: Sequence[str] = ()
) -> AsyncIterator[list[Peer]]:
    """A process in each namespace; they know each other."""
    found: list[Peer] = []
    try:
        for number, namespace in enumerate(where, 1):
            process = await asyncio.create_subprocess_exec(
                *namespace.within,
                *(sys.executable, "-m", "tests.net.child", (bytes([number]) * 32).hex()),
                json.dumps([mode, list(servers)]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            found.append(Peer(number, process))
        await until(lambda: all(peer.heard("key") for peer in found))
        keys = {peer.id: peer.heard("key")[0]["key"] for peer in found}
        for peer in found:
            peer.others = {other.id: other for other in found if other is not peer}
            peer.tell({"quiet": True})
            peer.tell({"members": keys})
        yield found
    finally:
        for peer in found:
            await peer.end()


async def exchange(a: Peer, b: Peer) -> None:
    """A message each way arrives with its hash; a link may be lost on a busy machine."""
    for sender, receiver in ((a, b), (b, a)):
        message = random.Random(sender.id).randbytes(200_000)
        digest = hashlib.sha256(message).hexdigest()
        before = len(receiver.heard("got"))
        while len(receiver.heard("got")) == before:
            links = len(a.heard("up")) + len(b.heard("up"))
            sender.send(receiver, message)
            await until(
                lambda: (
                    len(receiver.heard("got")) > before  # noqa: B023
                    or len(a.heard("up")) + len(b.heard("up")) > links  # noqa: B023
                )
            )
        assert receiver.heard("got")[-1]["got"] == digest


@needs_coturn
async def test_networks_without_a_path_meet_through_turn():
    """The first of the servers named is down."""
    async with star(2) as net, coturn(HUB, 3478, within=net.hub.within) as turn:
        servers = [f"turn:user:password@{host}:3478" for host in (NOWHERE, turn.host)]
        async with peers(net.leaves, servers=servers) as (a, b):
            await until(lambda: a.heard("up") and b.heard("up"))
            assert a.heard("up")[0]["turn"] is True
            assert b.heard("up")[0]["turn"] is True
            await exchange(a, b)


async def test_networks_without_a_path_and_without_turn_do_not_meet():
    """What the test above rests on: there is no other way."""
    async with star(2) as net, peers(net.leaves) as (a, b):
        await until(lambda: len(a.heard("signal")) >= 2)  # it has tried, failed, and tries again
        assert not a.heard("up")
        assert not b.heard("up")


@needs_coturn
async def test_when_the_direct_path_breaks_a_new_connection_goes_through_turn():
    async with star(2) as net, coturn(HUB, 3478, within=net.hub.within) as turn:
        await net.forward(True)
        servers = [f"turn:user:password@{turn.host}:3478"]
        async with peers(net.leaves, servers=servers) as (a, b):
            await until(lambda: a.heard("up") and b.heard("up"))
            assert a.heard("up")[0]["turn"] is False
            await exchange(a, b)
            await net.forward(False)
            await until(lambda: len(a.heard("up")) == 2 and len(b.heard("up")) == 2)
            assert a.heard("up")[1]["turn"] is True
            await exchange(a, b)


@pytest.mark.parametrize("which", [0, 1], ids=["who-offers", "who-answers"])
async def test_a_machine_that_changes_its_address_is_met_again(which: int):
    async with star(2) as net:
        await net.forward(True)
        async with peers(net.leaves) as (a, b):
            await until(lambda: a.heard("up") and b.heard("up"))
            await net.readdress(which, f"10.77.{which}.9")
            await until(lambda: len(a.heard("up")) == 2 and len(b.heard("up")) == 2)
            await exchange(a, b)


async def test_a_machine_with_nothing_but_loopback_meets_itself():
    async with alone() as machine, peers([machine, machine]) as (a, b):
        await until(lambda: a.heard("up") and b.heard("up"))
        await exchange(a, b)


async def test_a_network_with_nothing_but_ipv6():
    """And no more than 1,280 bytes, the least that IPv6 asks for and what many tunnels carry."""
    async with star(2) as net:
        await net.hub.set("net.ipv6.conf.all.forwarding", "1")
        for i, leaf in enumerate(net.leaves):
            await leaf.ip("addr", "del", f"{leaf.address}/24", "dev", "up0")
            await net.hub.ip("addr", "add", f"fd77:{i}::1/64", "dev", f"leaf{i}", "nodad")
            await leaf.ip("addr", "add", f"fd77:{i}::2/64", "dev", "up0", "nodad")
            await leaf.ip("-6", "route", "add", "default", "via", f"fd77:{i}::1")
        await net.hub.ip("link", "set", "leaf1", "mtu", "1280")
        await net.leaves[1].ip("link", "set", "up0", "mtu", "1280")
        async with peers(net.leaves) as (a, b):
            await until(lambda: a.heard("up") and b.heard("up"))
            await exchange(a, b)


@needs_nat
async def test_a_path_that_carries_less_than_our_packets_and_does_not_say_so():
    """A narrow tunnel behind a firewall that drops the router's complaints."""
    async with star(2) as net:
        await net.forward(True)
        async with peers(net.leaves) as (a, b):
            await until(lambda: a.heard("up") and b.heard("up"))
            await exchange(a, b)
            await net.narrow(1, 1000)
            await exchange(a, b)
            assert len(a.heard("up")) == len(b.heard("up")) == 1


@contextlib.asynccontextmanager
async def signaling_in(namespace: Namespace) -> AsyncIterator[str]:
    """A signaling server process, for its STUN responder; yields that one's address."""
    process = await asyncio.create_subprocess_exec(
        *namespace.within,
        *(
            sys.executable,
            "-m",
            "signaling",
            "serve",
            "--host",
            namespace.address,
            "--port",
            "8765",
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert b"Listening" in await process.stdout.readline()
        yield f"stun:{namespace.address}:8765"
    finally:
        process.kill()
        await process.wait()


@needs_nat
@needs_coturn
@pytest.mark.parametrize("symmetric", [False, True], ids=["ordinary", "symmetric"])
async def test_homes_behind_routers_meet(symmetric: bool):
    """Ordinary routers let a direct path through, once the machines know their public addresses by
    the STUN of our signaling server; symmetric ones need TURN. Both homes use the same private
    addresses."""
    async with (
        star(2) as net,
        home(net.leaves[0], symmetric=symmetric) as one,
        home(net.leaves[1], symmetric=symmetric) as two,
        coturn(HUB, 3478, within=net.hub.within) as turn,
        signaling_in(net.hub) as stun,
    ):
        await net.forward(True)
        servers = [stun, f"turn:user:password@{turn.host}:3478"]
        async with peers([one, two], servers=servers) as (a, b):
            await until(lambda: a.heard("up") and b.heard("up"))
            assert a.heard("up")[0]["turn"] is symmetric
            assert b.heard("up")[0]["turn"] is symmetric
            await exchange(a, b)


@needs_coturn
async def test_when_a_turn_server_dies_another_takes_over():
    async with star(2) as net, contextlib.AsyncExitStack() as first:
        await first.enter_async_context(coturn(HUB, 3478, within=net.hub.within))
        servers = [f"turn:user:password@{HUB}:{port}" for port in (3478, 3479)]
        async with peers(net.leaves, servers=servers) as (a, b):
            await until(lambda: a.heard("up") and b.heard("up"))
            async with coturn(HUB, 3479, within=net.hub.within):
                await first.aclose()
                await until(lambda: len(a.heard("up")) == 2 and len(b.heard("up")) == 2)
                await exchange(a, b)
