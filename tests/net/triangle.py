"""Three peers, two of which reach each other through the third alone."""

from __future__ import annotations

import random
from collections import deque

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from p2pnode.limits import LIMITS
from p2pnode.net.events import NO_RUN, Priority, Received
from p2pnode.net.relay import Relays
from p2pnode.protocol.frames import (
    Channel,
    Kind,
    frame_kind,
    unpack_relay,
)
from tests.net.fakes import Clock

A, B, C = b"A" * 32, b"B" * 32, b"C" * 32


class Triangle:
    """A and C, and B between them. `pass_on` delivers; `tamper` sees every frame first."""

    def __init__(self, limits=LIMITS) -> None:
        self.clock = Clock()
        self.keys = {p: X25519PrivateKey.generate() for p in (A, B, C)}
        self.queue: deque = deque()
        self.later: deque = deque()
        self.events: dict[bytes, list] = {A: [], C: []}
        self.log: list[tuple[bytes, Channel, bytes]] = []
        self.tamper = lambda source, channel, body: [body]
        self.open = True
        rng = random.Random(1)
        members = {p: k.public_key().public_bytes_raw() for p, k in self.keys.items()}
        self.ends = {}
        for me in (A, C):
            self.ends[me] = Relays(
                me,
                self.keys[me],
                forward=lambda via, channel, frame, me=me: self._forward(me, via, channel, frame),
                emit=self.events[me].append,
                clock=self.clock,
                soon=self.later.append,
                random=rng.randbytes,
                limits=limits,
            )
            self.ends[me].set_members({p: k for p, k in members.items() if p != me})

    def _forward(self, source: bytes, via: bytes, channel: Channel, frame: bytes) -> bool:
        assert via == B
        assert frame_kind(frame) is Kind.RELAY
        _, target, body = unpack_relay(frame)
        self.queue.append((source, target, channel, body))
        return self.open

    def pass_on(self) -> None:
        while self.queue or self.later:
            while self.queue:
                source, target, channel, body = self.queue.popleft()
                self.log.append((source, channel, body))
                for altered in self.tamper(source, channel, body):
                    self.ends[target].received(B, channel, source, altered)
            while self.later:
                self.later.popleft()()

    def send(self, source: bytes, data: bytes, priority=Priority.SHARD, key=None) -> bool:
        target = C if source == A else A
        return self.ends[source].send(target, B, [data], priority, run=NO_RUN, key=key)

    def messages(self, at: bytes) -> list[bytes]:
        return [bytes(e.message) for e in self.events[at] if isinstance(e, Received)]

    def tick(self, seconds: float = 0.25) -> None:
        self.clock.now += seconds
        for end in self.ends.values():
            end.tick(0.0)
        self.pass_on()
