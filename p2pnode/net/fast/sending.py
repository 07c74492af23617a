"""The sending half of an association: messages cut into packets, windows, silence.

If nothing is heard for a while, the oldest packet is sent again to make the peer speak (as RFC
8985's tail loss probe), and again after twice as long; only silence after that is a time-out. TSNs
are given when a packet first leaves, so an urgent message waits behind at most the one message that
is being sent. A message is cut by the packet length of the moment.

Sans-IO: `now` is an argument, seconds. TSNs are whole numbers here, modulo 2**32 on the wire.
May import: of net.fast: congestion, flight, packets.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator

from p2pnode.net.fast.congestion import Congestion
from p2pnode.net.fast.flight import MODULUS, Flight, Packet
from p2pnode.net.fast.packets import (
    FIRST,
    LAST,
    NOW,
    UNORDERED,
    DataChunk,
    ProtocolViolation,
    SackChunk,
)

MAX_OUTSTANDING = 60_000
"""TSNs not yet acknowledged cumulatively: a SACK speaks of 65,535 at most."""

MAX_RENEGED = 16
"""A receiver may drop what it had acknowledged in a gap block only, but hardly any does. Each time
all that is on its way is gone through, so that a small SACK costs much."""

PROBES = 2
PROBE_SECONDS = 0.05
"""Least silence before a probe, twice as much before the next. Only a packet is wasted if it was
too early."""

TIMEOUT_SECONDS = 0.4
"""Least silence after the last probe before a time-out: longer than machines are busy for, and than
the 0.2 s for which a peer may hold a SACK back."""

FIRST_TIMEOUT = 0.5
"""Round trip assumed until one is measured."""

MAX_TIMEOUT = 2.0
"""Several times within the 8 s after which a silent peer is dropped."""


class _Message:
    __slots__ = ("at", "data", "protocol", "sequence", "stream", "unordered")

    def __init__(self, stream: int, protocol: int, data: bytes, unordered: bool) -> None:
        self.stream = stream
        self.protocol = protocol
        self.data = data
        self.unordered = unordered
        self.sequence = 0
        self.at = 0


@dataclasses.dataclass
class Counts:
    """Since the association began."""

    sent: int = 0
    resent: int = 0
    probes: int = 0
    timeouts: int = 0


class Sender:
    """Takes messages and SACKs, yields packets."""

    def __init__(
        self,
        initial_tsn: int,
        payload_bytes: int,
        max_window: int,
        pack: Callable[[DataChunk], bytes],
    ) -> None:
        """payload_bytes: user data of one packet. max_window: most bytes on their way.
        pack: makes a packet of a chunk."""
        self.sequences: dict[int, int] = {}
        """Sequence number of the next ordered message, by stream."""
        self.urgent: set[int] = set()
        """Streams whose messages go before those of others."""
        self.peer_window = 0
        """Bytes the peer can take beyond those it has acknowledged."""
        self.counts = Counts()
        self.left: list[tuple[int, int, int]] = []
        """(stream, protocol, bytes) of messages that have wholly left; the reader clears it."""
        self.congestion = Congestion(payload_bytes, max_window)
        self.flight = Flight(initial_tsn)
        self.payload_bytes = payload_bytes
        self._pack = pack
        self._urgent: deque[_Message] = deque()
        self._others: deque[_Message] = deque()
        self._current: _Message | None = None
        self._full = False  # the congestion window, and nothing else, held us back
        self._quiet_since = 0.0
        self._silences = 0

    # What others see

    @property
    def next_tsn(self) -> int:
        return self.flight.next_tsn

    @property
    def unsent(self) -> bool:
        """Messages wait, or a part of one."""
        return bool(self._current or self._urgent or self._others)

    @property
    def silent(self) -> bool:
        """Nothing came in answer to what was last sent, and the peer was asked."""
        return self._silences > 0

    @property
    def idle(self) -> bool:
        """Nothing waits and everything sent was acknowledged."""
        return not (self.unsent or self.flight.outstanding)

    @property
    def deadline(self) -> float | None:
        """When `expire` is due."""
        if not self.flight.outstanding:
            return None
        silence = self._quiet_since + self._patience()
        due = self.flight.loss_due
        return silence if due is None else min(silence, due)

    def waits(self, stream: int) -> bool:
        """A message of this stream has not wholly left."""
        if self._current is not None and self._current.stream == stream:
            return True
        return any(m.stream == stream for m in (*self._urgent, *self._others))

    def set_payload(self, payload_bytes: int) -> None:
        """From now on, packets with this much user data."""
        window = self.congestion.window * payload_bytes / self.payload_bytes
        self.payload_bytes = self.congestion.packet_bytes = payload_bytes
        self.congestion.window = max(self.congestion.window, min(window, 16.0 * payload_bytes))

    def shorten(self, payload_bytes: int) -> bool:
        """After a time-out, packets of at most this much user data: longer ones may be what the
        path has ceased to carry. Whether that changed anything."""
        if self._silences <= PROBES or self.payload_bytes <= payload_bytes:
            return False
        self.set_payload(payload_bytes)
        return True

    # What comes in

    def send(self, stream: int, protocol: int, data: bytes, *, unordered: bool = False) -> None:
        """Queue a message of at least one byte."""
        queue = self._urgent if stream in self.urgent else self._others
        queue.append(_Message(stream, protocol, data, unordered))

    def take(self, sack: SackChunk, now: float) -> None:
        """A SACK came. One that is stale or speaks of what was never sent is left unread. Raises
        ProtocolViolation."""
        flight = self.flight
        if not flight.is_news(sack):
            return
        self.peer_window = sack.window
        acked = flight.take(sack, now)
        if flight.reneged > MAX_RENEGED:
            raise ProtocolViolation("takes back again and again what it has acknowledged")
        if acked is not None:
            self.congestion.acked(
                *(acked.nbytes, acked.rtt, flight.newest_acked, flight.next_number),
                full=self._full,
            )
            self._quiet_since = now
            self._silences = 0
        self._find_lost(now)

    def expire(self, now: float) -> list[bytes]:
        """The deadline may have come: packets to send at once, past every window."""
        deadline = self.deadline
        if deadline is None or now < deadline:
            return []
        if self.flight.loss_due is not None and now >= self.flight.loss_due:
            self._find_lost(now)
            return []
        self._silences += 1
        self._quiet_since = now
        if self._silences > PROBES:
            self._time_out()
        else:
            self.counts.probes += 1
        oldest = next(iter(self.flight.outstanding.values()))
        return [self._depart(oldest, now)]

    # What goes out

    def packets(self, now: float) -> list[bytes]:
        """All that may be sent now."""
        out: list[bytes] = []
        window = self._window()
        while self.flight.nbytes < window and (packet := self.flight.lost) is not None:
            out.append(self._depart(packet, now))
        if self.flight.lost is None:
            out.extend(self._fresh_packets(window, now))
        self._full = self.flight.nbytes + self.payload_bytes > self.congestion.window
        return out

    def _window(self) -> float:
        # With nothing on its way one packet may always go: it asks whether a shut window opened.
        least = self.payload_bytes if not self.flight.nbytes else 0
        return max(least, min(self.congestion.window, self.peer_window))

    def _fresh_packets(self, window: float, now: float) -> Iterator[bytes]:
        flight, size = self.flight, self.payload_bytes
        while flight.nbytes < window and flight.next_tsn - flight.acked_tsn < MAX_OUTSTANDING:
            message = self._current or self._next_message()
            if message is None:
                return
            at = message.at
            data = message.data[at : at + size]
            if flight.nbytes and flight.nbytes + len(data) > self.peer_window:
                return
            message.at = end = at + len(data)
            flags = UNORDERED if message.unordered else 0
            if at == 0:
                flags |= FIRST
            if end == len(message.data):
                flags |= LAST
                self._current = None
                self.left.append((message.stream, message.protocol, end))
                if not (self._urgent or self._others):
                    flags |= NOW
            chunk = DataChunk(
                *(flags, flight.next_tsn % MODULUS, message.stream, message.sequence),
                *(message.protocol, data),
            )
            if not flight.outstanding:
                self._quiet_since = now
                self._silences = 0
            self.counts.sent += 1
            packet = self._pack(chunk)
            flight.add(len(data), packet, now)
            yield packet

    def _next_message(self) -> _Message | None:
        queue = self._urgent or self._others
        if not queue:
            return None
        message = self._current = queue.popleft()
        if not message.unordered:
            sequence = self.sequences.get(message.stream, 0)
            message.sequence = sequence
            self.sequences[message.stream] = (sequence + 1) & 0xFFFF
        return message

    def _depart(self, packet: Packet, now: float) -> bytes:
        self.counts.sent += 1
        self.counts.resent += 1
        return self.flight.depart_again(packet, now)

    # Losses and silence

    def _find_lost(self, now: float) -> None:
        before = self.flight.nbytes
        lost = self.flight.find_lost(now)
        if lost is not None:
            self.congestion.lost(
                *(lost.nbytes, lost.number, self.flight.next_number), on_their_way=before
            )

    def _patience(self) -> float:
        flight = self.flight
        if flight.round_trip is None:
            usual = FIRST_TIMEOUT
        else:
            usual = flight.round_trip + max(4 * flight.deviation, 0.01)
        if self._silences < PROBES:
            return max(PROBE_SECONDS, usual) * float(1 << self._silences)
        backed_off = max(TIMEOUT_SECONDS, usual) * float(1 << min(self._silences - PROBES, 6))
        return min(MAX_TIMEOUT, backed_off)

    def _time_out(self) -> None:
        self.counts.timeouts += 1
        before = self.flight.nbytes
        self.flight.lose_all()
        self.congestion.timed_out(self.flight.next_number, on_their_way=before)
