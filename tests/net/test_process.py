"""A peer in another process that is killed, stopped or started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys

import pytest

from p2pnode.net.events import LinkUp, Priority
from p2pnode.net.signals import decode_signal, encode_signal
from tests.net.child import FAST
from tests.net.fakes import Node, meshes, until

CHILD = bytes([99]) * 32


class Child:
    """The process, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process, node: Node) -> None:
        self.process = process
        self.node = node
        self.said: list[dict[str, str]] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while line := await self.process.stdout.readline():
            said = json.loads(line)
            if "signal" in said:
                self.node.mesh.signal(CHILD, decode_signal(bytes.fromhex(said["signal"])))
            self.said.append(said)

    def tell(self, **what: object) -> None:
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps(what).encode() + b"\n")

    def count(self, what: str) -> int:
        return sum(what in said for said in self.said)

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reader


async def start(node: Node) -> Child:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.net.child",
        CHILD.hex(),
        json.dumps(["loopback", []]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    child = Child(process, node)
    await until(lambda: child.said)
    members = {CHILD: bytes.fromhex(child.said[0]["key"]), node.id: node.relay_public}
    node.mesh._send_signal = lambda peer, s: child.tell(
        **{"from": node.id.hex(), "signal": encode_signal(s).hex()}
    )
    child.tell(members={p.hex(): k.hex() for p, k in members.items()})
    node.mesh.set_members(members)
    return child


@pytest.fixture
async def pair():
    async with meshes(1, FAST) as nodes:
        node = nodes[0]
        children = []

        async def begin() -> Child:
            children.append(await start(node))
            return children[-1]

        yield node, begin
        for child in children:
            await child.end()


async def test_a_killed_peer_is_noticed_and_met_again_when_it_returns(pair):
    node, begin = pair
    child = await begin()
    await until(lambda: node.ups(CHILD))
    data = bytes(range(256)) * 8192
    node.mesh.send(CHILD, [data], Priority.SHARD)
    await until(lambda: node.messages() == [data])
    node.mesh.send(CHILD, [data], Priority.SHARD)
    await asyncio.sleep(0.05)
    await child.end()  # in the middle of a transfer
    await until(lambda: node.downs(CHILD))
    assert not node.downs(CHILD)[0].fault
    assert node.mesh.stats(CHILD) is None
    await begin()
    await until(lambda: node.ups(CHILD) == 2)
    assert node.mesh.send(CHILD, [b"hello again"], Priority.CONTROL)
    await until(lambda: node.messages()[-1] == b"hello again")


async def test_a_stopped_peer_is_left_and_met_again_when_it_goes_on(pair):
    node, begin = pair
    child = await begin()
    await until(lambda: node.ups(CHILD) and child.count("up"))
    child.process.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: node.downs(CHILD))
    finally:
        child.process.send_signal(signal.SIGCONT)
    await until(lambda: node.ups(CHILD) == 2 and child.count("up") == 2)
    assert isinstance(node.events[-1], LinkUp)


async def test_a_peer_stopped_for_less_than_the_silence_keeps_its_link(pair):
    node, begin = pair
    child = await begin()
    await until(lambda: node.ups(CHILD) and child.count("up"))
    child.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(FAST.silence / 3)
    signs = node.signs.get(CHILD, 0)
    child.process.send_signal(signal.SIGCONT)
    await until(lambda: node.signs.get(CHILD, 0) > signs + 10)
    assert not node.downs(CHILD)
    assert child.count("down") == 0


async def test_a_peer_whose_loop_is_held_again_and_again_keeps_its_link(pair):
    """A machine that is busy most of the time, for twice the silence that would count as death."""
    node, begin = pair
    child = await begin()
    await until(lambda: node.ups(CHILD) and child.count("up"))
    data = bytes(range(256)) * 1024
    child.tell(hold=[FAST.silence / 6, 12])
    node.mesh.send(CHILD, [data], Priority.SHARD)
    await until(lambda: child.count("held") and node.messages() == [data])
    assert not node.downs(CHILD)
    assert child.count("down") == 0
