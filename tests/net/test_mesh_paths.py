"""What a mesh does when a path is lost, or when there is none."""

from __future__ import annotations

import dataclasses

import pytest
from aioice.ice import StunProtocol

from p2pnode.limits import LIMITS
from p2pnode.net.events import Unlinked
from p2pnode.net.ice import IceMode, IcePolicy
from p2pnode.net.rtc import RtcTransport
from p2pnode.net.signals import Gone, Offer
from tests.net.fakes import meshes, until

DEAF = dataclasses.replace(LIMITS, silence=3600.0, reconnect=0.2)
"""Nobody is given up for being silent."""
HASTY = dataclasses.replace(LIMITS, handshake=0.5, reconnect=0.2)


def unlinked(node) -> list[Unlinked]:
    return [event for event in node.events if isinstance(event, Unlinked)]


async def test_who_cannot_offer_says_that_the_connection_is_gone(monkeypatch):
    """As after a change of address: nothing that is sent on the old connection arrives."""
    async with meshes(2, DEAF) as nodes:
        nodes.meet()
        await nodes.linked()
        offering, answering = nodes.nodes
        lost = answering.mesh._peers[offering.id].attempt.transport

        def check(self):
            if self is lost:
                raise ConnectionError("this machine no longer has the address")

        async def silently(self):
            self._over = True

        with monkeypatch.context() as patch:
            patch.setattr(RtcTransport, "check", check)
            patch.setattr(RtcTransport, "close", silently)
            await until(lambda: answering.downs(offering.id))
            await until(lambda: offering.downs(answering.id))
        assert offering.downs(answering.id)[0].reason == "it has lost the connection"
        await until(lambda: offering.ups(answering.id) == answering.ups(offering.id) == 2)
        await lost.close()


async def test_word_of_another_connection_changes_nothing():
    async with meshes(2, DEAF) as nodes:
        nodes.meet()
        await nodes.linked()
        offering, answering = nodes.nodes
        offering.mesh.signal(answering.id, Gone(bytes(16)))
        assert not offering.downs(answering.id)
        link = offering.mesh._peers[answering.id].attempt.link
        offering.mesh.signal(answering.id, Gone(link))
        assert offering.downs(answering.id)


async def test_machines_without_a_path_are_told_once_and_linked_when_there_is_one(monkeypatch):
    async with meshes(2, HASTY) as nodes:
        with monkeypatch.context() as patch:
            patch.setattr(StunProtocol, "datagram_received", lambda self, data, addr: None)
            nodes.meet()
            await until(lambda: all(node.mesh._peers for node in nodes.nodes))
            offers = nodes.signals
            await until(lambda: sum(isinstance(s, Offer) for _, _, s in offers) >= 6)
            for node in nodes.nodes:
                (event,) = unlinked(node)
                assert "no path" in event.reason
        await nodes.linked()


async def test_a_machine_that_is_away_is_not_said_to_lack_a_path():
    async with meshes(2, HASTY) as nodes:
        nodes.lose = lambda source, target, signal: True
        nodes.meet()
        await until(lambda: sum(isinstance(s, Offer) for _, _, s in nodes.signals) >= 5)
        assert not any(unlinked(node) for node in nodes.nodes)


@pytest.mark.parametrize("index", [0, 1])
async def test_only_who_cannot_offer_says_so(index):
    async with meshes(2, DEAF) as nodes:
        nodes.meet()
        await nodes.linked()
        node, other = nodes[index], nodes[1 - index]
        node.mesh._peers[other.id].link._break(ConnectionError("test"))
        await until(lambda: node.ups(other.id) == other.ups(node.id) == 2)
        said = [source for source, _, signal in nodes.signals if isinstance(signal, Gone)]
        assert all(source == nodes[1].id for source in said)


async def test_an_owner_who_wants_relays_only_is_told_that_there_are_none():
    async with meshes(2, HASTY, IcePolicy(mode=IceMode.RELAY)) as nodes:
        nodes.meet()
        offering = nodes[0]
        await until(lambda: unlinked(offering))
        assert "no TURN server has answered" in unlinked(offering)[0].reason
        assert not nodes.signals
