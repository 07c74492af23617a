"""Real nodes (sockets, envelopes, links over loopback) at a server that lies.

What admission makes of each kind of lie is tested without sockets in protocol/test_admit and
test_nearby; here the whole of a node meets a server process' worth of malice.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from p2pnode.door import Ticket
from p2pnode.limits import LIMITS
from p2pnode.net import mesh as mesh_module
from p2pnode.net import signaling_client
from p2pnode.net.rtc import fingerprint
from p2pnode.net.signaling_url import server_url
from p2pnode.net.signals import Answer, Offer, decode_signal, encode_signal
from p2pnode.node_config import NodeConfig
from p2pnode.protocol import attendance
from p2pnode.protocol.code import RoomKeys
from p2pnode.protocol.envelope import Channel
from p2pnode.protocol.identity import Identity, PeerId
from p2pnode.room import Room
from p2pnode.ui.events import Event, Info, Knock, Warn
from signaling.app import SignalingServer
from signaling.messages import Relayed, View
from tests.harness.malicious import MaliciousServer, Meddler, Swapper, halves

CODE, ROOM, SECRET = "a code of the test", b"r" * 32, b"s" * 32
SOON = 40.0


class Occupant:
    """Takes note of what a room tells; there is no run."""

    def __init__(self) -> None:
        self.refused: Exception | None = None
        self.removed: set[PeerId] = set()

    def on_roster(self, roster: object, removed: tuple[PeerId, ...]) -> None:
        self.removed |= set(removed)

    def on_refused(self, error: Exception) -> None:
        self.refused = error

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


class Member:
    """One node without a run, and what its owner reads."""

    def __init__(
        self, server: SignalingServer, folder: Path, name: str, identity: Identity | None
    ) -> None:
        self.events: list[Event] = []
        self.occupant = Occupant()
        self.identity = identity or Identity.ephemeral()
        self.id = self.identity.peer_id
        config = NodeConfig(
            signal=server.url, code=CODE, name=name, home=folder / name, out=folder, approve="all"
        )
        keys = RoomKeys(ROOM, SECRET)
        ticket = Ticket(config, self.identity, CODE, keys, server_url(server.url))
        self.room = Room(ticket, self, self.occupant)

    def show(self, event: Event) -> None:
        self.events.append(event)

    def ask(self, question: str | None) -> None:
        pass

    @property
    def links(self) -> frozenset[PeerId]:
        return self.room.mesh.links()

    @property
    def ids(self) -> set[PeerId]:
        return set(self.room.roster.ids) if self.room.roster is not None else set()

    def told(self, kind: type[Event], words: str) -> bool:
        return any(isinstance(e, kind) and words in e.text for e in self.events)


class Party:
    """Members that come one after the other; the first is host."""

    def __init__(self, server: SignalingServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.stack = contextlib.AsyncExitStack()
        self.members: list[Member] = []

    async def come(self, *names: str, identities: Sequence[Identity] = ()) -> None:
        for name, identity in itertools.zip_longest(names, identities):
            member = Member(self.server, self.folder, name, identity)
            await self.stack.enter_async_context(member.room)
            # What was lost is waited for as long as this, 20 s outside tests.
            member.room.mesh._limits = dataclasses.replace(LIMITS, handshake=2.0)
            task = asyncio.create_task(member.room.run())
            self.stack.callback(task.cancel)
            self.members.append(member)
            await soon(lambda member=member: member.id in member.ids)

    def linked(self) -> bool:
        return all(len(member.links) == len(self.members) - 1 for member in self.members)

    @property
    def ids(self) -> set[PeerId]:
        return {member.id for member in self.members}


async def soon(condition: object, seconds: float = SOON) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of every kind
            await asyncio.sleep(0.02)


@pytest.fixture
async def server() -> AsyncIterator[MaliciousServer]:
    async with MaliciousServer() as made:
        yield made


@pytest.fixture
async def party(
    server: MaliciousServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Party]:
    monkeypatch.setattr(signaling_client, "FIRST_DELAY", 0.05)
    monkeypatch.setattr(signaling_client, "MAX_DELAY", 0.3)
    monkeypatch.setattr(mesh_module, "FIRST_RETRY", 0.2)
    monkeypatch.setattr(attendance, "PATIENCE", 1.0)
    made = Party(server, tmp_path)
    async with made.stack:
        yield made


@pytest.mark.parametrize("seed", range(2))
async def test_meddling_with_envelopes_neither_joins_nor_parts_anybody(
    server: MaliciousServer, party: Party, seed: int
) -> None:
    """Repeated, reordered, reflected, misattributed, damaged: the room comes together all the
    same, of those alone whom the host let in, with one link a pair."""
    server.twist = Meddler(server, seed)
    await party.come("host", "ann", "ben")
    await soon(party.linked)
    for member in party.members:
        assert member.ids == party.ids
        assert member.links == party.ids - {member.id}
        assert member.occupant.refused is None


async def test_a_swapped_fingerprint_links_nobody(server: MaliciousServer, party: Party) -> None:
    """The server has the room's secret too (a member told it): it opens every offer and answer,
    puts its own certificate's fingerprint in, and seals it again. It cannot sign it, so no link
    comes; when it stops, links do."""
    swapper = Swapper(ROOM, lambda: party.members[0].room.door._admission._post._inside)
    server.twist = swapper
    await party.come("host", "ann")
    await soon(lambda: swapper.swapped >= 2)
    await asyncio.sleep(1.0)
    assert all(not member.links for member in party.members)
    assert any(member.told(Info, "signature is wrong") for member in party.members)
    server.twist = lambda to, message: [(to, message)]
    await soon(party.linked)


def test_swapping_is_what_the_test_swaps() -> None:
    """The text that is replaced is the one that counts."""
    sdp = f"v=0\r\na=fingerprint:sha-256 {':'.join(['CD'] * 32)}\r\n"
    for signal in (Offer(bytes(16), sdp), Answer(bytes(16), sdp)):
        raw = encode_signal(signal)
        assert fingerprint(decode_signal(Swapper.false(raw)).sdp) == "ab" * 32


async def test_envelopes_and_server_have_no_text_in_common(
    server: MaliciousServer, party: Party
) -> None:
    """Nothing that nodes say to each other can be read by who carries it."""
    await party.come("host", "ann-the-name")
    await soon(party.linked)
    carried = b"".join(sealed for _, _, sealed in server.seen)
    assert len(carried) > 1_000
    for text in (
        b"ann-the-name",
        b"a=candidate",
        b"a=fingerprint",
        b"127.0.0.1",
        b"knock",
        CODE.encode(),
    ):
        assert text not in carried


async def test_invented_peers_join_nothing(server: MaliciousServer, party: Party) -> None:
    await party.come("host", "ann")
    await soon(party.linked)
    host, ann = party.members
    ghost = Identity.ephemeral()
    for _ in range(3):
        view = View(
            "host", host.id, 2, tuple(sorted((host.id, ann.id, ghost.peer_id))), (b"g" * 32,)
        )
        server.inject(host.id, view)
        server.inject(ann.id, View("member", ghost.peer_id, 99, view.members))
        for member in (host, ann):
            channel = Channel(ghost, ROOM, SECRET, member.id, secrets.token_bytes)
            for sealed in channel.send("signal", encode_signal(Offer(bytes(16), "v=0"))):
                server.inject(member.id, Relayed(ghost.peer_id, sealed))
        await asyncio.sleep(0.3)
    for member in (host, ann):
        assert member.ids == party.ids
        assert member.links == party.ids - {member.id}
    assert ann.told(Info, "goes by the host that it knows")
    assert not any(isinstance(event, Knock) for event in host.events), "nobody has knocked"


async def test_a_server_that_turns_up_with_another_host_keeps_no_member(
    server: MaliciousServer, party: Party
) -> None:
    """It forgets the room and lets somebody else found it; members stay with their host."""
    await party.come("host", "ann")
    await soon(party.linked)
    host, ann = party.members
    false = Identity.ephemeral().peer_id
    for role, epoch in (("waiting", 0), ("member", 7), ("waiting", 0)):
        server.inject(ann.id, View(role, false, epoch, () if role == "waiting" else (false,)))
        server.inject(host.id, View("waiting", false))
        await asyncio.sleep(0.2)
    assert ann.room.roster is not None
    assert ann.room.roster.host == host.id
    assert host.room.door.is_host
    assert party.linked()


async def test_a_room_that_is_split_after_it_met_is_noticed(
    server: MaliciousServer, party: Party
) -> None:
    """Links are there: each node sees that the server hides those it is linked to."""
    await party.come("host", "ann", "ben")
    await soon(party.linked)
    ben = party.members[2].id
    server.twist = halves(lambda peer: peer == ben)
    for member in party.members:
        view = View(
            "host" if member.room.door.is_host else "member",
            party.members[0].id,
            3,
            tuple(sorted(party.ids)),
        )
        for recipient, twisted in server.twist(member.id, view):
            server.inject(recipient, twisted)
    await soon(lambda: all(m.told(Warn, "keeps members apart") for m in party.members))
    assert party.linked(), "and nothing else happens"


async def test_a_room_that_starts_apart_is_noticed_as_members_missing(
    server: MaliciousServer, party: Party
) -> None:
    """All are started anew, without links: a split looks like machines that are off, and each
    owner is told who is not here."""
    await party.come("host", "ann", "ben")
    await soon(party.linked)
    identities = [member.identity for member in party.members]
    await party.stack.aclose()
    server.twist = halves(lambda peer: peer == identities[2].peer_id)
    party.members.clear()
    await party.come("host", "ann", "ben", identities=identities)
    host, ann, ben = party.members
    await soon(lambda: all(m.told(Info, "the server keeps you apart") for m in party.members))
    assert ben.told(Info, "2 of 3 members are not here: host (")
    assert ann.told(Info, "1 of 3 members are not here: ben (")
    assert host.links == {ann.id}
    assert not ben.links
