"""Stand-ins for tests of net: a clock that is set, a transport that is a list, meshes in memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from p2pnode.limits import LIMITS, Limits
from p2pnode.net.events import Heard, LinkDown, LinkUp, MeshEvent, Received
from p2pnode.net.ice import IceMode, IcePolicy
from p2pnode.net.link import Link, LinkCallbacks
from p2pnode.net.mesh import Mesh
from p2pnode.net.signals import Signal, decode_signal, encode_signal
from p2pnode.protocol.frames import Channel


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wire:
    """One direction: frames wait until `deliver`."""

    def __init__(self, max_message: int = 65_536) -> None:
        self.max_message = max_message
        self.frames: deque[tuple[Channel, bytes]] = deque()
        self.stuck = 0
        self.error: Exception | None = None
        self.dead = False

    def send(self, channel: Channel, frame: bytes) -> None:
        if self.dead:
            raise ConnectionError("the wire is cut")
        assert len(frame) <= self.max_message
        self.frames.append((channel, frame))

    def buffered(self, channel: Channel) -> int:
        return self.stuck

    def check(self) -> None:
        if self.error:
            raise self.error


class End:
    """One end of a pair of links over two wires."""

    def __init__(self, clock: Clock, soon: Callable, limits: Limits, max_message: int) -> None:
        self.wire = Wire(max_message)
        self.messages: list[tuple[bytes, bytes]] = []
        self.heard = 0
        self.relayed: list[tuple] = []
        self.broken: Exception | None = None
        self.link = Link(
            self.wire,
            LinkCallbacks(
                on_message=lambda run, m: self.messages.append((run, bytes(m))),
                on_heard=self._heard,
                on_relay=lambda *frame: self.relayed.append(frame),
                on_broken=self._broken,
            ),
            clock,
            soon,
            limits,
        )

    def _heard(self, nbytes: int) -> None:
        self.heard += nbytes

    def _broken(self, error: Exception) -> None:
        assert self.broken is None
        self.broken = error


class LinkPair:
    """Two links joined by wires; `run` delivers until nothing moves."""

    def __init__(self, limits: Limits = LIMITS, max_message: int = 65_536) -> None:
        self.clock = Clock()
        self.later: deque[Callable[[], None]] = deque()
        self.a, self.b = (End(self.clock, self.later.append, limits, max_message) for _ in range(2))

    def run(self) -> None:
        moved = True
        while moved:
            moved = False
            for sender, receiver in ((self.a, self.b), (self.b, self.a)):
                while sender.wire.frames:
                    receiver.link.received(*sender.wire.frames.popleft())
                    moved = True
            while self.later:
                self.later.popleft()()
                moved = True

    def tick(self, seconds: float = 0.25) -> None:
        self.clock.now += seconds
        self.a.link.tick()
        self.b.link.tick()
        self.run()


class Node:
    """A mesh and what it reported."""

    def __init__(self, peer: bytes, mesh: Mesh, relay_public: bytes) -> None:
        self.id = peer
        self.mesh = mesh
        self.relay_public = relay_public
        self.events: list[MeshEvent] = []
        self.heard: dict[bytes, int] = {}
        """Bulk bytes heard of each peer."""
        self.signs: dict[bytes, int] = {}
        """Frames heard of each peer."""
        self.react: Callable[[MeshEvent], None] = lambda event: None

    def on_event(self, event: MeshEvent) -> None:
        if isinstance(event, Heard):
            self.heard[event.peer] = self.heard.get(event.peer, 0) + event.nbytes
            self.signs[event.peer] = self.signs.get(event.peer, 0) + 1
        else:
            self.events.append(event)
        self.react(event)

    def ups(self, peer: bytes) -> int:
        return sum(isinstance(e, LinkUp) and e.peer == peer for e in self.events)

    def downs(self, peer: bytes) -> list[LinkDown]:
        return [e for e in self.events if isinstance(e, LinkDown) and e.peer == peer]

    def messages(self) -> list[bytes]:
        return [bytes(e.message) for e in self.events if isinstance(e, Received)]


@dataclasses.dataclass
class Nodes:
    """Meshes in one process, their offers and answers passed on in memory."""

    nodes: list[Node]
    signals: list[tuple[bytes, bytes, Signal]]
    lose: Callable[[bytes, bytes, Signal], bool]

    def __getitem__(self, index: int) -> Node:
        return self.nodes[index]

    def members(self) -> dict[bytes, bytes]:
        return {n.id: n.relay_public for n in self.nodes}

    def meet(self) -> None:
        for node in self.nodes:
            node.mesh.set_members(self.members())

    async def linked(self) -> None:
        want = len(self.nodes) - 1
        await until(lambda: all(len(n.mesh.links()) == want for n in self.nodes))


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for a condition; a test that hangs fails instead."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of every kind, no one event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def meshes(
    count: int, limits: Limits = LIMITS, ice: IcePolicy | None = None
) -> AsyncIterator[Nodes]:
    """`count` started meshes that do not know of each other yet (see Nodes.meet)."""
    loop = asyncio.get_running_loop()
    all_nodes = Nodes([], [], lambda source, target, signal: False)
    by_id: dict[bytes, Node] = {}

    def make(index: int) -> Node:
        me, key = bytes([index + 1]) * 32, X25519PrivateKey.generate()

        def send_signal(peer: bytes, signal: Signal) -> None:
            all_nodes.signals.append((me, peer, signal))
            if peer in by_id and not all_nodes.lose(me, peer, signal):
                raw = encode_signal(signal)
                loop.call_later(0.005, lambda: by_id[peer].mesh.signal(me, decode_signal(raw)))

        mesh = Mesh(
            me,
            on_event=lambda event: by_id[me].on_event(event),  # noqa: PLW0108 - not there yet
            send_signal=send_signal,
            ice=ice or IcePolicy(mode=IceMode.LOOPBACK, limits=limits),
            relay_key=key,
            limits=limits,
        )
        return Node(me, mesh, key.public_key().public_bytes_raw())

    for index in range(count):
        node = make(index)
        all_nodes.nodes.append(node)
        by_id[node.id] = node
        node.mesh.start()
    try:
        yield all_nodes
    finally:
        await asyncio.gather(*(n.mesh.close() for n in all_nodes.nodes))
