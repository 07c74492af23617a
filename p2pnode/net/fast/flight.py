"""Packets on their way: numbered as they leave, acknowledged by SACKs, lost.

A packet sent again gets a new number. One is lost when a packet that left REORDERING numbers after
it has arrived, or when any that left after it has, and a round trip and a part are over (RFC 9002,
section 6.1). A path that turns out to reorder raises both.

Sans-IO: `now` is an argument, seconds. TSNs are whole numbers here, modulo 2**32 on the wire.
May import: of net.fast: packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from p2pnode.net.fast.packets import SackChunk

MODULUS = 1 << 32
HALF = 1 << 31

REORDERING = 3
MAX_REORDERING = 96
"""Packets by which a path may reorder before it is mistaken for loss: at first, at most."""

LATE = 1 / 8
MAX_LATE = 1.0
"""Part of a round trip by which a packet may come after a later one: at first, at most. Finds what
is lost of a few packets, and bounds the wait where the path reorders by many."""

LEAST_LATE = 0.005
"""Seconds that are always allowed: two machines whose processors are busy."""

OF_EARLIER = 0.9
"""An acknowledgement of a packet sent twice that comes sooner than this part of the shortest round
trip after the second is for the first."""


class Packet:
    """One DATA packet."""

    __slots__ = ("acked", "late", "lost", "nbytes", "number", "packet", "sent_at", "times", "tsn")

    def __init__(self, tsn: int, nbytes: int, packet: bytes, number: int, now: float) -> None:
        """nbytes: of user data. It leaves now, with this number."""
        self.tsn = tsn
        self.nbytes = nbytes
        self.packet = packet
        self.number = number
        self.sent_at = now
        self.times = 1
        self.acked = False
        self.lost = False
        self.late = False
        """It was taken for lost because later ones had arrived."""


class Acknowledged(NamedTuple):
    """What a SACK told that was news. rtt: a round trip, seconds, if there is an honest one."""

    nbytes: int
    rtt: float | None


class Lost(NamedTuple):
    """Packets newly found lost: their user data and the highest of their numbers."""

    nbytes: int
    number: int


class Flight:
    """Everything sent and not yet acknowledged for good."""

    def __init__(self, initial_tsn: int) -> None:
        self.next_tsn = initial_tsn
        self.acked_tsn = initial_tsn - 1
        """The peer has everything up to it."""
        self.nbytes = 0
        """Bytes on their way: sent, and neither acknowledged nor lost."""
        self.next_number = 0
        self.newest_acked = -1
        """The highest packet number that arrived."""
        self.round_trip: float | None = None
        """Smoothed, seconds."""
        self.deviation = 0.0
        self.shortest: float | None = None
        """Shortest round trip seen, seconds."""
        self.loss_due: float | None = None
        """When the oldest packet with a later one arrived is lost, if nothing comes."""
        self.reneged = 0
        """How often the peer took back what it had acknowledged."""
        self.reordering = REORDERING
        self.late_part = LATE
        self.outstanding: dict[int, Packet] = {}
        """By TSN, ascending."""
        self._departures: deque[tuple[int, Packet]] = deque()  # by number
        self._lost: deque[Packet] = deque()
        self._known: list[tuple[int, int]] = []  # TSN ranges of the last SACK
        self._newest_rtt = 0.0

    def add(self, nbytes: int, packet: bytes, now: float) -> None:
        """The packet of `next_tsn` leaves."""
        tsn, number = self.next_tsn, self.next_number
        made = self.outstanding[tsn] = Packet(tsn, nbytes, packet, number, now)
        self._departures.append((number, made))
        self.nbytes += nbytes
        self.next_tsn = tsn + 1
        self.next_number = number + 1

    def depart_again(self, packet: Packet, now: float) -> bytes:
        """A packet leaves once more."""
        if packet.lost:
            self.nbytes += packet.nbytes
        packet.late = packet.late and packet.lost  # and not asked after because all was silent
        packet.lost = False
        packet.number = self.next_number
        packet.sent_at = now
        packet.times += 1
        self._departures.append((packet.number, packet))
        self.next_number += 1
        return packet.packet

    @property
    def lost(self) -> Packet | None:
        """The first that is to be sent again."""
        while self._lost and (self._lost[0].acked or not self._lost[0].lost):
            self._lost.popleft()
        return self._lost[0] if self._lost else None

    # Acknowledgements

    def is_news(self, sack: SackChunk) -> bool:
        """It is neither stale nor speaks of what was never sent."""
        return self._advance(sack) <= self.next_tsn - 1 - self.acked_tsn

    def _advance(self, sack: SackChunk) -> int:
        return (sack.cumulative - self.acked_tsn) % MODULUS

    def take(self, sack: SackChunk, now: float) -> Acknowledged | None:
        """A SACK that is news; None if it acknowledges nothing more."""
        arrived = self._arrived(sack)
        nbytes = landed = 0
        newest: Packet | None = None
        for packet in arrived:
            nbytes += packet.nbytes
            packet.acked = True
            if not packet.lost:
                landed += packet.nbytes
            if packet.late and self._was_early(packet, now):
                self._reorders()
            if newest is None or packet.number > newest.number:
                newest = packet
        self.nbytes -= landed
        self._reneged()
        return None if newest is None else Acknowledged(nbytes, self._sample(newest, now))

    def _arrived(self, sack: SackChunk) -> list[Packet]:
        """Packets that this SACK is the first to acknowledge."""
        outstanding, first = self.outstanding, self.acked_tsn + 1
        self.acked_tsn += self._advance(sack)
        found = [outstanding.pop(tsn) for tsn in range(first, self.acked_tsn + 1)]
        for start, end in self._news(sack.blocks):
            found.extend(outstanding[tsn] for tsn in range(start, end + 1))
        return [packet for packet in found if not packet.acked]

    def _news(self, blocks: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The TSN ranges in these blocks that the last SACK did not report; each SACK repeats all
        that is known, and going through it again would cost the window for every SACK."""
        known, base = self._known, self.acked_tsn
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

    def _was_early(self, packet: Packet, now: float) -> bool:
        """Of two copies, the first has arrived (RFC 3522)."""
        return now - packet.sent_at < OF_EARLIER * (self.shortest or 0.0)

    def _reorders(self) -> None:
        self.reordering = min(2 * self.reordering, MAX_REORDERING)
        self.late_part = min(2 * self.late_part, MAX_LATE)

    def _sample(self, newest: Packet, now: float) -> float | None:
        """The newest packet that a SACK acknowledges: a round trip, if it tells one."""
        again = newest.times > 1
        if not again or not self._was_early(newest, now):
            self.newest_acked = max(self.newest_acked, newest.number)
        if again:
            return None  # of which copy?
        rtt = self._newest_rtt = now - newest.sent_at
        self.shortest = rtt if self.shortest is None else min(self.shortest, rtt)
        if self.round_trip is None:
            self.round_trip, self.deviation = rtt, rtt / 2
        else:
            self.deviation += (abs(rtt - self.round_trip) - self.deviation) / 4
            self.round_trip += (rtt - self.round_trip) / 8
        return rtt

    def _reneged(self) -> None:
        """A receiver may drop what it had only reported in a block (RFC 9260, section 6.2)."""
        first = self.outstanding.get(self.acked_tsn + 1)
        if first is None or not first.acked:
            return
        self._known = []
        self.reneged += 1
        for packet in self.outstanding.values():
            if packet.acked:
                packet.acked = False
                packet.lost = True
                self._lost.append(packet)

    # Losses

    def find_lost(self, now: float) -> Lost | None:
        """What is lost by now, if anything."""
        self.loss_due = None
        patience = max(self.round_trip or 0.0, self._newest_rtt)
        patience += max(LEAST_LATE, patience * self.late_part)
        departures, newest = self._departures, self.newest_acked
        nbytes, found = 0, -1
        while departures and departures[0][0] < newest:
            number, packet = departures[0]
            if not (packet.acked or packet.lost or packet.number != number):  # waited for
                due = packet.sent_at + patience
                if number > newest - self.reordering and now < due:
                    self.loss_due = due
                    break
                self._lose(packet)
                packet.late = True
                nbytes += packet.nbytes
                found = number
            departures.popleft()
        return Lost(nbytes, found) if nbytes else None

    def lose_all(self) -> None:
        """Nothing that is on its way will arrive."""
        self._departures.clear()
        self.loss_due = None
        for packet in self.outstanding.values():
            if not (packet.acked or packet.lost):
                self._lose(packet)

    def _lose(self, packet: Packet) -> None:
        packet.lost = True
        packet.late = False
        self.nbytes -= packet.nbytes
        self._lost.append(packet)
