"""Whole runs of real processes at a server that lies, and a node that was put out and comes back.

The server is in the test (harness/malicious); nodes are processes of their own. What is promised:
the run ends at every member with the undisturbed hash, and nobody takes part whom the host did not
let in. test_malicious_server looks closer at each lie, with nodes inside the test.
"""

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from p2pnode.errors import RefusedError
from p2pnode.memberships import Memberships
from p2pnode.net.signals import Offer, encode_signal
from p2pnode.protocol.code import RoomKeys, derive
from p2pnode.protocol.envelope import Channel
from p2pnode.protocol.identity import Identity, PeerId, short_id
from p2pnode.protocol.post import DOOR, INSIDE
from p2pnode.protocol.room_secret import RoomSecret
from p2pnode.protocol.roster import Roster, open_roster
from signaling.messages import FromServer, Relayed, View
from tests.harness.malicious import MaliciousServer, Meddler, Swapper, halves, unsealed
from tests.integration.commands import CODE, STEPS, Demo
from tests.integration.processes import SECONDS, Node, Pace
from tests.integration.terminals import Terminal

_HASTY = """
import dataclasses
from p2pnode import limits
limits.LIMITS = dataclasses.replace(limits.LIMITS, handshake=2.0)
from p2pnode.protocol import attendance
attendance.PATIENCE = 1.0
"""
"""A node that asks again sooner than after 20 s, and complains sooner than after a minute."""


class Party:
    """Nodes at a malicious server; the first is the host, and lets everybody in."""

    def __init__(self, server: MaliciousServer, folder: Path, keys: RoomKeys) -> None:
        self.server = server
        self.keys = keys
        self._folder = folder
        self.pace = Pace(folder, _HASTY)
        self.stack = contextlib.AsyncExitStack()

    async def come(self, *names: str, hosted: bool = False) -> list[Node]:
        """Start these, the first as host unless there is one."""
        nodes = []
        for number, name in enumerate(names):
            first = number == 0 and not hosted
            run = ("--preset", "nano", "--steps", str(STEPS), "--start-when", str(len(names)))
            more = run if first else ("--guest",)
            node = Node(self.server.url, self._folder, name, *more, env=self.pace.env)
            nodes.append(await self.stack.enter_async_context(node))
            if first:
                await node.until("invite")
        return nodes

    # What whoever has a node's home folder knows

    def identity(self, name: str) -> Identity:
        return Identity.load(self._folder / f"{name}-key" / "identity.key")

    def roster(self, name: str) -> Roster:
        saved = Memberships(self._folder / f"{name}-key").load(self.keys.room)
        assert saved is not None
        return open_roster(saved, self.keys.room)

    def secret(self, name: str) -> bytes:
        """The room's secret as this node knows it."""
        knows = RoomSecret(self.identity(name), self.keys.room, secrets.token_bytes)
        knows.take(self.roster(name))
        assert knows.current is not None
        return knows.current


@pytest.fixture(scope="module")
def keys() -> RoomKeys:
    return derive(CODE)


@pytest.fixture
async def party(tmp_path: Path, keys: RoomKeys) -> AsyncIterator[Party]:
    async with MaliciousServer() as server:
        made = Party(server, tmp_path, keys)
        async with made.stack:
            yield made


async def hashes(*nodes: Node) -> set[str]:
    """Of all at their ends, each of which must be a success."""
    ends = [await node.until("finished") for node in nodes]
    assert [await node.end() for node in nodes] == [0] * len(nodes)
    return {end["hash"] for end in ends}


async def told(nodes: list[Node], kind: str, words: str) -> None:
    """Wait until one of these has told its owner that."""
    await soon(lambda: any(words in e["text"] for node in nodes for e in node.events(kind)))


async def soon(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - what another process does
            await asyncio.sleep(0.02)


def honest(to: PeerId, message: FromServer) -> list[tuple[PeerId, FromServer]]:
    return [(to, message)]


async def test_a_run_at_a_server_that_swaps_fingerprints(party: Party, undisturbed: Demo) -> None:
    """A member has told it the room's secret. No link comes while it swaps; then the run does."""
    swapper = Swapper(party.keys.room, lambda: party.secret("a"))
    party.server.twist = swapper
    host, guest = nodes = await party.come("a", "b")
    await soon(lambda: swapper.swapped >= 3)
    await told(nodes, "info", "signature is wrong")
    assert not host.events("joined")
    assert not guest.events("joined")
    party.server.twist = honest
    party.pace.hurry()
    assert await hashes(*nodes) == {undisturbed.hashes["node-1"]}


async def test_a_run_under_meddling_invented_peers_another_host_a_split_and_silence(
    party: Party, undisturbed: Demo
) -> None:
    """Envelopes are repeated, reordered, reflected, misattributed and damaged from the first knock
    on; then come lies about the room. Members train on with whom they know."""
    party.server.twist = Meddler(party.server, 1)
    nodes = await party.come("a", "b", "c")
    for node in nodes:
        await node.until("step", step=3)
    ids = {name: party.identity(name).peer_id for name in "abc"}
    server, ghost = party.server, Identity.ephemeral()

    # Peers that do not exist, one of which offers links and knows the code; another host.
    crowd = tuple(sorted((*ids.values(), ghost.peer_id)))
    for peer in ids.values():
        role = "host" if peer == ids["a"] else "member"
        server.inject(peer, View(role, ids["a"], 9, crowd, (b"g" * 32,)))
        channel = Channel(ghost, party.keys.room, party.keys.secret, peer, secrets.token_bytes)
        for sealed in channel.send("signal", encode_signal(Offer(bytes(16), "v=0"))):
            server.inject(peer, Relayed(ghost.peer_id, sealed))
        server.inject(peer, View("waiting", ghost.peer_id))
        server.inject(peer, View("member", ghost.peer_id, 99, (ghost.peer_id, peer)))
    # Half the room is hidden from the other half, though linked to it.
    server.twist = halves(lambda peer: peer == ids["c"])
    for peer in ids.values():
        role = "host" if peer == ids["a"] else "member"
        for to, view in server.twist(peer, View(role, ids["a"], 9, tuple(sorted(ids.values())))):
            server.inject(to, view)
    for node in nodes:
        await told([node], "warn", "keeps members apart")
    # Nothing at all, and then gone.
    server.twist = lambda to, message: []
    await server.__aexit__(None, None, None)
    await told(nodes, "warn", "Training goes on")
    assert not any(node.events("left") for node in nodes)

    party.pace.hurry()
    assert await hashes(*nodes) == {undisturbed.hashes["node-1"]}
    for name, node in zip("abc", nodes, strict=True):
        assert party.roster(name).host == ids["a"]
        assert set(party.roster(name).ids) == set(ids.values())
        assert short_id(ghost.peer_id) not in str(node.events("joined") + node.events("knock"))


async def test_who_is_put_out_reads_and_joins_no_more_though_it_has_code_and_server(
    party: Party, undisturbed: Demo, tmp_path: Path
) -> None:
    """The host kicks at its terminal. The kicked node has the code, the secret that the room had,
    and all that the server carries."""
    host = Terminal(
        *("p2pnode", "join", "--signal", party.server.url, "--room", CODE, "--name", "a"),
        *("--home", str(tmp_path / "a-key"), "--out", str(tmp_path / "a"), "--preset", "nano"),
        *("--steps", str(STEPS), "--start-when", "3"),
        env=party.pace.env,
    )
    party.stack.callback(host.close)

    async def sees(pattern: str) -> str:
        return await asyncio.to_thread(host.sees, pattern)

    async def lets_in(name: str) -> None:
        await sees(rf"Let {name} \(\S+\) in\?")
        host.types("y")

    await sees("You are the host")
    (guest,) = await party.come("b", hosted=True)
    await lets_in("b")
    (victim,) = await party.come("c", hosted=True)
    await lets_in("c")
    await victim.until("step", step=3)
    known = (party.keys.secret, party.secret("c"))
    assert None not in known
    room = party.keys.room
    a, b = (party.identity(name).peer_id for name in "ab")
    assert "signal" in _readable(party.server, {a, b}, room, known), "it read offers before"

    host.types(f"kick {short_id(party.identity('c').peer_id)}")
    assert await victim.end() == RefusedError.exit_code
    await soon(lambda: len(party.roster("b").ids) == 2)
    party.server.seen.clear()
    # The others make a new link, which takes offers and answers.
    await guest.kill()
    (guest,) = await party.come("b", hosted=True)
    await guest.until("joined")
    inside = [sealed for _, _, sealed in party.server.seen if sealed.startswith(INSIDE)]
    assert len(inside) >= 2
    assert _readable(party.server, {a, b}, room, known) <= DOOR | {"hello"}

    # With its key it is turned away; with a new one it is asked about, like any stranger.
    (again,) = await party.come("c", hosted=True)
    assert await again.end() == RefusedError.exit_code
    (other,) = await party.come("d", hosted=True)
    await other.until("waiting")
    await sees(r"Let d \(\S+\) in\?")
    party.pace.hurry()
    assert await hashes(guest) == {undisturbed.hashes["node-1"]}
    found = await sees(r"hash [0-9a-f]{64}")
    assert re.fullmatch(rf"hash {undisturbed.hashes['node-1']}", found)
    assert not other.events("joined")


def _readable(
    server: MaliciousServer, among: set[PeerId], room: bytes, known: tuple[bytes | None, ...]
) -> set[str]:
    """Kinds of the messages between these peers that somebody with these secrets could read."""
    kinds = set()
    for sender, to, sealed in server.seen:
        for secret in known:
            if {sender, to} <= among and secret is not None:
                plain = unsealed(sealed, sender, to, room, secret)
                if plain is not None:
                    kinds.add(msgspec.msgpack.decode(plain)[4])
    return kinds
