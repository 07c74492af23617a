"""Two associations over two emulated paths, without real time: events in order of their times."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

from p2pnode.bench.path import Path
from p2pnode.net.fast.association import Association
from p2pnode.net.fast.packets import Address

COUNT = itertools.count()
"""Events of one time are taken in the order in which they were made."""

TAGS = (0x11111111, 0x22222222)
OVERHEAD = 65  # IP, UDP and DTLS around an SCTP packet


def line(rate: float = 12.5e6, delay: float = 0.025, **more: float) -> Path:
    """One direction of 100 Mbit/s with a round trip of 50 ms, if nothing else is said."""
    return Path(rate=rate, delay=delay, **more)


class Simulation:
    """Two associations over two paths."""

    def __init__(self, there: Path, back: Path, *, seed: int = 1, tsns=(1, 1), max_message=1 << 18):
        self._clock = [0.0]
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
        self._timer: list[float | None] = [None, None]

    def share_time_with(self, other: Simulation) -> None:
        """Both run when the other is run."""
        self._clock, self._events = other._clock, other._events

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(COUNT), act))

    def flush(self, i: int) -> None:
        self.transmit(i, self.ends[i].packets(self.now))

    def transmit(self, i: int, packets: list[bytes]) -> None:
        for packet in packets:
            for when in self.paths[i].arrivals(len(packet) + OVERHEAD, self.now, self.chance):
                self.at(when, lambda packet=packet: self._arrive(1 - i, packet))
        self._arm(i)

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        while self._events and self._events[0][0] <= until and not stop():
            self._clock[0], _, act = heapq.heappop(self._events)
            act()
        if not stop():
            self._clock[0] = until

    @property
    def now(self) -> float:
        return self._clock[0]

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
        timer = self._timer[i]
        if deadline is not None and (timer is None or deadline < timer):
            self._timer[i] = deadline
            self.at(deadline, lambda: self._expire(i, deadline))

    def _expire(self, i: int, timer: float) -> None:
        if timer != self._timer[i]:
            return  # an earlier one was set meanwhile
        self._timer[i] = None
        end = self.ends[i]
        if end.deadline is not None and self.now >= end.deadline:
            self.transmit(i, end.expire(self.now))
            self.flush(i)
        self._arm(i)
