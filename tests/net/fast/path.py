"""A simulated path between two associations: rate, queue, delay, loss, reordering, duplicates.

No real time: events are taken in order of their simulated time.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Callable

from p2pnode.net.fast.association import Association
from p2pnode.net.fast.packets import Address

TAGS = (0x11111111, 0x22222222)
OVERHEAD = 65  # IP, UDP and DTLS around an SCTP packet


@dataclasses.dataclass
class Path:
    """One direction."""

    rate: float = 12.5e6
    """Bytes per second of the bottleneck."""
    delay: float = 0.025
    queue: float = 0.1
    """Seconds the bottleneck buffers."""
    loss: float = 0.0
    reorder: float = 0.0
    """Part of the packets that take up to `reorder_by` longer."""
    reorder_by: float = 0.002
    duplicate: float = 0.0
    free_at: float = 0.0
    dropped: int = 0

    def arrivals(self, nbytes: int, now: float, chance: random.Random) -> list[float]:
        """When a packet sent now arrives; not at all if it is lost."""
        start = max(now, self.free_at)
        if start - now > self.queue:
            self.dropped += 1
            return []
        self.free_at = start + nbytes / self.rate
        if chance.random() < self.loss:
            return []
        at = self.free_at + self.delay
        if chance.random() < self.reorder:
            at += chance.random() * self.reorder_by
        return [at, at + 1e-4] if chance.random() < self.duplicate else [at]


class Simulation:
    """Two associations over two paths."""

    def __init__(self, there: Path, back: Path, *, seed: int = 1, tsns=(1, 1), max_message=1 << 18):
        self.now = 0.0
        self.chance = random.Random(seed)
        self.paths = (there, back)
        self.ends = [
            Association(Address(5000, 5000, TAGS[i]), tsns[i], max_message) for i in range(2)
        ]
        for i, end in enumerate(self.ends):
            end.peer_starts(TAGS[1 - i], tsns[1 - i] % (1 << 32), 4 << 20)
        self.received: list[list[tuple[int, bytes]]] = [[], []]
        self.bytes = [0, 0]
        self.keep = True
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._timer: list[float | None] = [None, None]

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, act))

    def flush(self, i: int) -> None:
        self.transmit(i, self.ends[i].packets(self.now))

    def transmit(self, i: int, packets: list[bytes]) -> None:
        for packet in packets:
            for when in self.paths[i].arrivals(len(packet) + OVERHEAD, self.now, self.chance):
                self.at(when, lambda packet=packet: self._arrive(1 - i, packet))
        self._arm(i)

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        while self._events and self._events[0][0] <= until and not stop():
            self.now, _, act = heapq.heappop(self._events)
            act()
        if not stop():
            self.now = until

    def _arrive(self, i: int, packet: bytes) -> None:
        end = self.ends[i]
        assert end.receive(packet, self.now)
        for message in end.messages:
            self.bytes[i] += len(message.data)
            if self.keep:
                self.received[i].append((message.stream, message.data))
        end.messages.clear()
        self.flush(i)

    def _arm(self, i: int) -> None:
        deadline = self.ends[i].deadline
        if deadline is not None and self._timer[i] is None:
            self._timer[i] = deadline
            self.at(deadline, lambda: self._expire(i))

    def _expire(self, i: int) -> None:
        self._timer[i] = None
        end = self.ends[i]
        if end.deadline is not None and self.now >= end.deadline:
            self.transmit(i, end.expire(self.now))
            self.flush(i)
        self._arm(i)
