"""Connections through a real TURN server on loopback."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from p2pnode.net import ice, paths
from p2pnode.net.ice import IceMode, IcePolicy, Interface
from p2pnode.net.rtc import RtcTransport
from p2pnode.protocol.frames import Channel
from tests.net.coturn import coturn, needs_coturn
from tests.net.fakes import until

pytestmark = needs_coturn


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch):
    monkeypatch.setattr(ice, "local_interfaces", lambda: [Interface("lo", "127.0.0.1")])


class Side:
    def __init__(self, policy: IcePolicy) -> None:
        self.frames: list[tuple[Channel, bytes]] = []
        self.ended: list[Exception] = []
        self.transport = RtcTransport(
            policy, lambda c, f: self.frames.append((c, f)), self.ended.append
        )


@contextlib.asynccontextmanager
async def connected(first: IcePolicy, second: IcePolicy):
    a, b = Side(first), Side(second)
    try:
        await a.transport.accept(await b.transport.answer(await a.transport.offer()))
        async with asyncio.timeout(30):
            await asyncio.gather(a.transport.opened, b.transport.opened)
        yield a, b
    finally:
        await asyncio.gather(a.transport.close(), b.transport.close())


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_frames_cross_two_relays_and_both_sides_say_so(transport: str):
    async with coturn() as turn:
        policy = IcePolicy(mode=IceMode.RELAY, servers=[turn.server(transport)])
        async with connected(policy, policy) as (a, b):
            assert a.transport.via_turn
            assert b.transport.via_turn
            for i in range(20):
                a.transport.send(Channel.BULK, bytes([i]) * 49_180)
                b.transport.send(Channel.CONTROL, bytes([i]) * 100)
            await until(lambda: len(a.frames) == len(b.frames) == 20)
            assert [frame for _, frame in b.frames] == [bytes([i]) * 49_180 for i in range(20)]
            a.transport.check()


async def test_one_relay_is_enough():
    async with coturn() as turn:
        hidden = IcePolicy(mode=IceMode.RELAY, servers=[turn.server()])
        for policies in ((hidden, IcePolicy()), (IcePolicy(), hidden)):
            async with connected(*policies) as (a, b):
                assert a.transport.via_turn
                assert b.transport.via_turn
                a.transport.send(Channel.BULK, b"over")
                await until(lambda: b.frames)


async def test_a_direct_path_is_preferred_even_if_its_checks_are_answered_late(monkeypatch):
    """As behind home routers, which drop the first packets; a relay would be ready before."""
    monkeypatch.setattr(paths, "RELAY_PATIENCE", 3600.0)
    dropped = []
    original = ice.aioice.ice.StunProtocol.datagram_received

    def drop_first(self, data, addr):
        if self.local_candidate.type == "host" and len(dropped) < 2:
            dropped.append(data)
            return
        original(self, data, addr)

    async with coturn() as turn:
        policy = IcePolicy(servers=[turn.server()])
        monkeypatch.setattr(ice.aioice.ice.StunProtocol, "datagram_received", drop_first)
        async with connected(policy, policy) as (a, b):
            assert not a.transport.via_turn
            assert not b.transport.via_turn
        assert dropped
