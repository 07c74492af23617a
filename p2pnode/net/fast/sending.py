"""The sending half of an association: messages cut into packets, what is on its way, what is lost.

Packets are numbered in the order in which they leave, a packet sent again gets a new number: one is
lost when a packet that left REORDERING numbers after it has arrived. A path that turns out to
reorder raises that distance. If nothing is heard for a while, the oldest packet is sent once more
to make the peer speak (as RFC 8985's tail loss probe); only silence after that is a time-out.
TSNs are given when a packet first leaves, so an urgent message waits behind at most the one message
that is being sent. A message is cut by the packet length of the moment.

Sans-IO: `now` is an argument, seconds. TSNs are whole numbers here, modulo 2**32 on the wire.
May import: of net.fast: congestion, packets.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator

from p2pnode.net.fast.congestion import Congestion
from p2pnode.net.fast.packets import FIRST, LAST, NOW, UNORDERED, DataChunk, SackChunk

MODULUS = 1 << 32
HALF = 1 << 31

REORDERING = 3
MAX_REORDERING = 96
"""Packets by which a path may reorder before it is mistaken for loss: at first, at most."""

MAX_OUTSTANDING = 60_000
"""TSNs not yet acknowledged cumulatively: a SACK speaks of 65,535 at most."""

PROBE_SECONDS = 0.05
"""Least silence before a probe. Only a packet is wasted if it was too early."""

TIMEOUT_SECONDS = 0.4
"""Least silence after the probe before a time-out: longer than machines are busy for, and than the
0.2 s for which a peer may hold a SACK back."""

FIRST_TIMEOUT = 0.5
"""Round trip assumed until one is measured."""

MAX_TIMEOUT = 4.0
"""Within the 8 s after which a silent peer is dropped."""

OF_EARLIER = 0.9
"""An acknowledgement of a packet sent twice that comes sooner than this part of the shortest round
trip after the second is for the first."""


class _Message:
    __slots__ = ("at", "data", "protocol", "sequence", "stream", "unordered")

    def __init__(self, stream: int, protocol: int, data: bytes, unordered: bool) -> None:
        self.stream = stream
        self.protocol = protocol
        self.data = data
        self.unordered = unordered
        self.sequence = 0
        self.at = 0


class _Packet:
    __slots__ = ("acked", "lost", "nbytes", "number", "packet", "sent_at", "times", "tsn")

    def __init__(self, tsn: int, nbytes: int, packet: bytes) -> None:
        self.tsn = tsn
        self.nbytes = nbytes
        self.packet = packet
        self.number = -1
        self.sent_at = 0.0
        self.times = 0
        self.acked = False
        self.lost = False


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
        self.next_tsn = initial_tsn
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
        self.round_trip: float | None = None
        """Smoothed, seconds."""
        self.flight = 0
        """Bytes on their way: sent, and neither acknowledged nor lost."""
        self._payload_bytes = payload_bytes
        self._pack = pack
        self._acked_tsn = initial_tsn - 1
        self._urgent: deque[_Message] = deque()
        self._others: deque[_Message] = deque()
        self._current: _Message | None = None
        self._outstanding: dict[int, _Packet] = {}  # by TSN, ascending
        self._departures: deque[tuple[int, _Packet]] = deque()  # by number
        self._lost: deque[_Packet] = deque()
        self._next_number = 0
        self._newest_acked = -1
        self._known: list[tuple[int, int]] = []  # TSN ranges of the last SACK
        self._reordering = REORDERING
        self._full = False  # the congestion window, and nothing else, held us back
        self._deviation = 0.0
        self._quiet_since = 0.0
        self._silences = 0

    # What others see

    @property
    def unsent(self) -> bool:
        """Messages wait, or a part of one."""
        return bool(self._current or self._urgent or self._others)

    @property
    def idle(self) -> bool:
        """Nothing waits and everything sent was acknowledged."""
        return not (self.unsent or self._outstanding)

    @property
    def deadline(self) -> float | None:
        """When `expire` is due."""
        return self._quiet_since + self._patience() if self._outstanding else None

    def waits(self, stream: int) -> bool:
        """A message of this stream has not wholly left."""
        if self._current is not None and self._current.stream == stream:
            return True
        return any(m.stream == stream for m in (*self._urgent, *self._others))

    def set_payload(self, payload_bytes: int) -> None:
        """From now on, packets with this much user data."""
        window = self.congestion.window * payload_bytes / self._payload_bytes
        self._payload_bytes = self.congestion.packet_bytes = payload_bytes
        self.congestion.window = max(self.congestion.window, min(window, 16.0 * payload_bytes))

    # What comes in

    def send(self, stream: int, protocol: int, data: bytes, *, unordered: bool = False) -> None:
        """Queue a message of at least one byte."""
        queue = self._urgent if stream in self.urgent else self._others
        queue.append(_Message(stream, protocol, data, unordered))

    def take(self, sack: SackChunk, now: float) -> None:
        """A SACK came. One that is stale or speaks of what was never sent is left unread."""
        advance = (sack.cumulative - self._acked_tsn) % MODULUS
        if advance >= HALF or advance > self.next_tsn - 1 - self._acked_tsn:
            return
        self.peer_window = sack.window
        newest, acked = self._take_cumulative(advance, None)
        newest, more = self._take_blocks(sack.blocks, newest)
        acked += more
        if sack.duplicates and self.counts.resent:
            self._reordering = min(2 * self._reordering, MAX_REORDERING)
        if newest is not None:
            rtt = self._sample(newest, now)
            self.congestion.acked(
                acked, rtt, self._newest_acked, self._next_number, full=self._full
            )
            self._quiet_since = now
            self._silences = 0
        self._reneged()
        self._find_lost()

    def expire(self, now: float) -> list[bytes]:
        """The deadline may have come: packets to send at once, past every window."""
        deadline = self.deadline
        if deadline is None or now < deadline:
            return []
        self._silences += 1
        self._quiet_since = now
        if self._silences > 1:
            self._time_out()
        oldest = next(iter(self._outstanding.values()))
        if self._silences == 1:
            self.counts.probes += 1
        return [self._depart(oldest, now)]

    # What goes out

    def packets(self, now: float) -> list[bytes]:
        """All that may be sent now."""
        out: list[bytes] = []
        window = self._window()
        while self._lost and self.flight < window:
            packet = self._lost.popleft()
            if packet.lost and not packet.acked:
                out.append(self._depart(packet, now))
        if not self._lost:
            out.extend(self._fresh_packets(window, now))
        self._full = self.flight + self._payload_bytes > self.congestion.window
        return out

    def _window(self) -> float:
        # With nothing on its way one packet may always go: it asks whether a shut window opened.
        least = self._payload_bytes if not self.flight else 0
        return max(least, min(self.congestion.window, self.peer_window))

    def _fresh_packets(self, window: float, now: float) -> Iterator[bytes]:
        while self.flight < window and self.next_tsn - self._acked_tsn < MAX_OUTSTANDING:
            message = self._current or self._next_message()
            if message is None:
                return
            size = self._payload_bytes
            if self.flight and self.flight + min(size, len(message.data)) > self.peer_window:
                return
            at = message.at
            data = message.data[at : at + size]
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
            tsn = self.next_tsn
            self.next_tsn = tsn + 1
            chunk = DataChunk(
                *(flags, tsn % MODULUS, message.stream, message.sequence, message.protocol, data)
            )
            packet = _Packet(tsn, len(data), self._pack(chunk))
            if not self._outstanding:
                self._quiet_since = now
                self._silences = 0
            self._outstanding[tsn] = packet
            yield self._depart(packet, now)

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

    def _depart(self, packet: _Packet, now: float) -> bytes:
        if packet.lost or packet.times == 0:
            self.flight += packet.nbytes
        packet.lost = False
        packet.number = self._next_number
        packet.sent_at = now
        packet.times += 1
        self._departures.append((packet.number, packet))
        self._next_number += 1
        self.counts.sent += 1
        self.counts.resent += packet.times > 1
        return packet.packet

    # Acknowledgements

    def _take_cumulative(self, advance: int, newest: _Packet | None) -> tuple[_Packet | None, int]:
        acked = 0
        first = self._acked_tsn + 1
        for tsn in range(first, first + advance):
            packet = self._outstanding.pop(tsn)
            if not packet.acked:
                acked += packet.nbytes
                self._acknowledge(packet)
                if newest is None or packet.number > newest.number:
                    newest = packet
        self._acked_tsn += advance
        return newest, acked

    def _take_blocks(
        self, blocks: list[tuple[int, int]], newest: _Packet | None
    ) -> tuple[_Packet | None, int]:
        acked = 0
        for first, last in self._news(blocks):
            for tsn in range(first, last + 1):
                packet = self._outstanding[tsn]
                if not packet.acked:
                    acked += packet.nbytes
                    self._acknowledge(packet)
                    if newest is None or packet.number > newest.number:
                        newest = packet
        return newest, acked

    def _news(self, blocks: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The TSN ranges in these blocks that the last SACK did not report; each SACK repeats all
        that is known, and going through it again would cost the window for every SACK."""
        known, base = self._known, self._acked_tsn
        self._known = []
        at = 0
        end = base
        for first, last in ((base + f, base + e) for f, e in blocks):
            if not end < first <= last < self.next_tsn:
                continue  # out of order or never sent
            end = last
            self._known.append((first, last))
            while at < len(known) and known[at][1] < first:
                at += 1
            begin = first
            seen = at
            while seen < len(known) and known[seen][0] <= last:
                if begin < known[seen][0]:
                    yield begin, known[seen][0] - 1
                begin = max(begin, known[seen][1] + 1)
                seen += 1
            if begin <= last:
                yield begin, last

    def _acknowledge(self, packet: _Packet) -> None:
        packet.acked = True
        if not packet.lost:
            self.flight -= packet.nbytes

    def _sample(self, newest: _Packet, now: float) -> float | None:
        """The newest packet this SACK acknowledges: a round trip, if it tells one."""
        rtt = now - newest.sent_at
        again = newest.times > 1
        if not again or rtt >= OF_EARLIER * (self.congestion.shortest or 0.0):
            self._newest_acked = max(self._newest_acked, newest.number)
        if again:
            return None  # of which copy?
        if self.round_trip is None:
            self.round_trip, self._deviation = rtt, rtt / 2
        else:
            self._deviation += (abs(rtt - self.round_trip) - self._deviation) / 4
            self.round_trip += (rtt - self.round_trip) / 8
        return rtt

    def _find_lost(self) -> None:
        departures = self._departures
        limit = self._newest_acked - self._reordering
        lost = 0
        number = -1
        while departures and departures[0][0] <= limit:
            number_here, packet = departures.popleft()
            if packet.number == number_here and not (packet.acked or packet.lost):
                self._lose(packet)
                lost += packet.nbytes
                number = number_here
        if lost:
            self.congestion.lost(lost, number, self._next_number)

    def _lose(self, packet: _Packet) -> None:
        packet.lost = True
        self.flight -= packet.nbytes
        self._lost.append(packet)

    def _reneged(self) -> None:
        """A receiver may drop what it had only reported in a block (RFC 9260, section 6.2)."""
        first = self._outstanding.get(self._acked_tsn + 1)
        if first is None or not first.acked:
            return
        self._known = []
        for packet in self._outstanding.values():
            if packet.acked:
                packet.acked = False
                packet.lost = True
                self._lost.append(packet)

    # Silence

    def _patience(self) -> float:
        if self.round_trip is None:
            usual = FIRST_TIMEOUT
        else:
            usual = self.round_trip + max(4 * self._deviation, 0.01)
        if self._silences == 0:
            return max(PROBE_SECONDS, usual)
        backed_off = max(TIMEOUT_SECONDS, usual) * float(1 << min(self._silences - 1, 6))
        return min(MAX_TIMEOUT, backed_off)

    def _time_out(self) -> None:
        self.counts.timeouts += 1
        self._departures.clear()
        for packet in self._outstanding.values():
            if not (packet.acked or packet.lost):
                self._lose(packet)
        self.congestion.timed_out(self._next_number)
