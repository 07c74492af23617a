"""What waits to be sent to one peer: by priority, without doubles, within the in-flight bound.

Sans-IO: messages go in with `put`, frames come out of `take` while the window allows, the peer's
cumulative acknowledgements open it. May import: errors, limits, protocol.frames; of net: events.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

from p2pnode.errors import PeerError
from p2pnode.limits import LIMITS, Limits
from p2pnode.net.events import Priority
from p2pnode.protocol.frames import DATA_HEADER_BYTES, BufferLike, Channel, Fragmenter

SMOOTHING = 1 / 8
"""Weight of a new rate sample, as in TCP's smoothed round trip."""

FRAGMENT_SECONDS = 0.5
"""A fragment takes no longer than this at the measured rate: it is the sign of life of a slow
transfer, and what a heartbeat waits for."""
FIRST_FRAGMENT = 16 * 1024
"""Payload of a fragment while no rate is known: also at 2 KB/s it beats the silence limit."""
LEAST_FRAGMENT = 2 * 1024

CHANNEL = {
    Priority.CONTROL: Channel.CONTROL,
    Priority.SHARD: Channel.BULK,
    Priority.STATE: Channel.BULK,
}


@dataclasses.dataclass(slots=True)
class _Message:
    buffers: Sequence[BufferLike]
    nbytes: int
    run: bytes
    key: object | None


@dataclasses.dataclass(slots=True)
class _Sent:
    """A frame on its way, with what a delivery-rate sample needs (as in the BBR draft)."""

    end: int
    """Value of the acknowledgement that covers it."""
    acked: int
    """Bytes acknowledged when it was sent."""
    since: float
    """Time of that acknowledgement, or of sending if nothing else was on its way."""
    starved: bool
    """Nothing was waiting behind it: the sample says what we offered, not what the path takes."""


class Window:
    """How many bytes may be on their way: min(1 MB, measured rate × half a second + a round trip).

    Half a second beyond the path's own delay, or two frames, is the longest a heartbeat then waits
    behind bulk.
    """

    def __init__(self, frame_bytes: int, limits: Limits) -> None:
        """frame_bytes: length of the longest frame."""
        self._limits = limits
        self.frame_bytes = frame_bytes
        """Length of the longest frame that comes next."""
        self.rate = 0.0
        """Bytes per second the path delivers; 0 until measured."""
        self.full_rate = 0.0
        """The newest such figure measured while something was waiting; 0 until there is one."""
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._acked = 0
        self._acked_at = 0.0

    @property
    def in_flight(self) -> int:
        return self._sent_bytes - self._acked

    @property
    def acked(self) -> int:
        """Bytes acknowledged since the link began."""
        return self._acked

    def limit(self, rtt: float) -> int:
        """Bytes that may be in flight. rtt: shortest round trip seen, seconds."""
        # Two frames at least: one on its way while the other is acknowledged. They come on top of
        # all that the path's own delay holds: with less, the rate measured could never exceed the
        # rate that was allowed, and the first would stay for good.
        two = 2 * self.frame_bytes
        more = max(two, self.rate * self._limits.in_flight_seconds)
        return max(two, min(self._limits.in_flight_bytes, int(more + self.rate * rtt)))

    def open(self, rtt: float) -> bool:
        """Another frame may be sent."""
        return self.in_flight + self.frame_bytes <= self.limit(rtt)

    def sent(self, nbytes: int, now: float, *, starved: bool) -> None:
        """A frame of `nbytes` went out. `starved`: nothing else waited to be sent."""
        if not self.in_flight:
            self._acked_at = now
        self._sent_bytes += nbytes
        self._sent.append(_Sent(self._sent_bytes, self._acked, self._acked_at, starved))

    def acknowledged(self, total: int, now: float) -> None:
        """The peer has received `total` bytes since the link began. Raises PeerError."""
        if not self._acked <= total <= self._sent_bytes:
            raise PeerError(
                f"acknowledged {total:,} bytes; between {self._acked:,} and "
                f"{self._sent_bytes:,} are possible"
            )
        self._acked = total
        self._acked_at = now
        newest: _Sent | None = None
        while self._sent and self._sent[0].end <= total:
            newest = self._sent.popleft()
        if newest is None or now <= newest.since:
            return
        sample = (total - newest.acked) / (now - newest.since)
        if not newest.starved:
            self.full_rate = sample
        if self.rate == 0.0:
            self.rate = sample
        elif sample > self.rate or not newest.starved:
            self.rate += SMOOTHING * (sample - self.rate)


class Outbox:
    """Queues of one link."""

    def __init__(self, fragment_bytes: int, limits: Limits = LIMITS) -> None:
        """fragment_bytes: payload of one frame."""
        self._limits = limits
        self._fragment_bytes = fragment_bytes
        self._waiting: dict[Priority, deque[_Message]] = {p: deque() for p in Priority}
        self._current: dict[Priority, tuple[_Message, Fragmenter]] = {}
        self._frames: dict[Channel, deque[bytes]] = {c: deque() for c in Channel}
        self._keys: dict[object, tuple[Priority, _Message]] = {}
        self._next_id = dict.fromkeys(Channel, 0)
        self._frame_bytes = 0
        self.queued = 0
        """Bytes of messages not yet wholly taken."""
        self.window = Window(fragment_bytes + DATA_HEADER_BYTES, limits)

    @property
    def empty(self) -> bool:
        """Nothing waits and nothing is on its way."""
        return not (self._has_waiting() or self.window.in_flight)

    def put(
        self, buffers: Sequence[BufferLike], priority: Priority, run: bytes, key: object | None
    ) -> bool:
        """Queue a message; False if the queue is full.

        With a key: one with the same key that still waits is replaced in place, one that is
        partly sent stands and the new one counts as queued.
        """
        nbytes = sum(memoryview(b).nbytes for b in buffers)
        if key is not None and key in self._keys:
            held_priority, held = self._keys[key]
            if any(message is held for message, _ in self._current.values()):
                return True
            if held_priority is priority:
                if self.queued + nbytes - held.nbytes > self._limits.queued_bytes:
                    return False
                self.queued += nbytes - held.nbytes
                held.buffers, held.nbytes, held.run = buffers, nbytes, run
                return True
            self._waiting[held_priority] = deque(
                m for m in self._waiting[held_priority] if m is not held
            )
            self.queued -= held.nbytes
            del self._keys[key]
        if self.queued + nbytes > self._limits.queued_bytes:
            return False
        message = _Message(buffers, nbytes, run, key)
        self._waiting[priority].append(message)
        self.queued += nbytes
        if key is not None:
            self._keys[key] = (priority, message)
        return True

    def put_frame(self, channel: Channel, frame: bytes) -> bool:
        """Queue a finished frame (one that is relayed); False if too many wait."""
        if self._frame_bytes + len(frame) > self._limits.relay_queue_bytes:
            return False
        self._frames[channel].append(frame)
        self._frame_bytes += len(frame)
        return True

    def take(self, now: float, rtt: float) -> tuple[Channel, bytes] | None:
        """The next frame to hand to the connection, or None: nothing waits or the window is full.

        rtt: shortest round trip seen on this link, seconds.
        """
        if not (self._has_waiting() and self.window.open(rtt)):
            return None
        channel, frame = self._next()
        self.window.sent(len(frame), now, starved=not self._has_waiting())
        return channel, frame

    def _has_waiting(self) -> bool:
        return bool(self._current) or any(self._waiting.values()) or self._frame_bytes > 0

    def _next(self) -> tuple[Channel, bytes]:
        for priority in Priority:
            channel = CHANNEL[priority]
            if priority is not Priority.STATE and self._frames[channel]:
                frame = self._frames[channel].popleft()
                self._frame_bytes -= len(frame)
                return channel, frame
            if priority in self._current or self._waiting[priority]:
                return channel, self._next_fragment(priority, channel)
        raise AssertionError("called with nothing waiting")

    def _fragment_size(self) -> int:
        rate = self.window.full_rate
        wanted = max(LEAST_FRAGMENT, int(rate * FRAGMENT_SECONDS)) if rate else FIRST_FRAGMENT
        return min(wanted, self._fragment_bytes)

    def _next_fragment(self, priority: Priority, channel: Channel) -> bytes:
        if priority not in self._current:
            message = self._waiting[priority].popleft()
            size = self._fragment_size()
            self.window.frame_bytes = size + DATA_HEADER_BYTES
            fragmenter = Fragmenter(self._next_id[channel], message.buffers, message.run, size)
            self._next_id[channel] += 1
            self._current[priority] = (message, fragmenter)
        message, fragmenter = self._current[priority]
        frame = next(fragmenter)
        if fragmenter.done:
            del self._current[priority]
            self.queued -= message.nbytes
            if message.key is not None:
                del self._keys[message.key]
        return frame
