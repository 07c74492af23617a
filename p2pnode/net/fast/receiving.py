"""The receiving half of an association: which TSNs came, what is acknowledged, messages made whole.

Messages are delivered in the order of their TSNs, which within a stream is their order (a message's
fragments have consecutive TSNs, RFC 9260, section 6.9). Only a message of one packet may overtake a
gap, if its stream allows it: so a short control message does not wait for lost bulk.
Memory is bounded by the window, charged with an overhead for each packet, and one message.

Sans-IO. TSNs are whole numbers here; on the wire they are taken modulo 2**32.
May import: of net.fast: packets.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from p2pnode.net.fast.packets import (
    FIRST,
    LAST,
    MAX_BLOCKS,
    MAX_DUPLICATES,
    UNORDERED,
    DataChunk,
    ProtocolViolation,
)

MODULUS = 1 << 32
HALF = 1 << 31

PACKET_OVERHEAD = 256
"""Charged to the window for each packet held: its objects, so that tiny ones cannot fill us."""

MAX_OFFSET = 65_535
"""A SACK cannot speak of TSNs further beyond the cumulative one."""


class Message(NamedTuple):
    """A whole message. protocol: the payload protocol identifier (RFC 8831, section 8)."""

    stream: int
    protocol: int
    data: bytes


class Receiver:
    """Takes DATA chunks, yields messages and what a SACK says."""

    def __init__(self, initial_tsn: int, window: int, max_message: int) -> None:
        """window: most bytes held. max_message: longest message taken."""
        self.cumulative = initial_tsn - 1
        """Every TSN up to it came."""
        self.duplicates: list[int] = []
        self.expected: dict[int, int] = {}
        """Sequence number of the next ordered message, by stream."""
        self._window = window
        self._max_message = max_message
        self._ranges: list[list[int]] = []  # [first, last] received beyond cumulative, ascending
        self._held: dict[int, DataChunk | None] = {}  # None: delivered ahead of its turn
        self._held_bytes = 0
        self._head: DataChunk | None = None  # first fragment of the message being put together
        self._parts: list[bytes] = []
        self._parts_bytes = 0

    @property
    def room(self) -> int:
        """Bytes of window left."""
        return max(0, self._window - self._held_bytes - self._parts_bytes)

    def blocks(self) -> list[tuple[int, int]]:
        """Received ranges beyond the cumulative TSN, as offsets from it, as a SACK tells."""
        base = self.cumulative
        return [(first - base, last - base) for first, last in self._ranges[:MAX_BLOCKS]]

    def take(self, chunk: DataChunk, out: list[Message]) -> None:
        """A DATA chunk came; messages that are whole now are appended. Raises ProtocolViolation."""
        if not chunk.payload:
            raise ProtocolViolation("a DATA chunk without data")
        offset = (chunk.tsn - self.cumulative) % MODULUS
        if offset == 1:
            self.cumulative += 1
            self._deliver(chunk, out)
            if self._ranges and self._ranges[0][0] == self.cumulative + 1:
                self._catch_up(out)
        elif offset == 0 or offset >= HALF:
            self._duplicate(chunk.tsn)
        elif offset <= MAX_OFFSET and self.room > 0:
            self._hold(self.cumulative + offset, chunk, out)

    def _duplicate(self, tsn: int) -> None:
        if len(self.duplicates) < MAX_DUPLICATES:
            self.duplicates.append(tsn)

    def _hold(self, tsn: int, chunk: DataChunk, out: list[Message]) -> None:
        if tsn in self._held:
            self._duplicate(chunk.tsn)
            return
        self._insert(tsn)
        if self._may_overtake(chunk):
            self._held[tsn] = None
            self._whole(chunk, chunk.payload, out)
        else:
            self._held[tsn] = chunk
            self._held_bytes += len(chunk.payload) + PACKET_OVERHEAD

    def _may_overtake(self, chunk: DataChunk) -> bool:
        if chunk.flags & (FIRST | LAST) != FIRST | LAST:
            return False
        return bool(chunk.flags & UNORDERED or chunk.sequence == self.expected.get(chunk.stream, 0))

    def _insert(self, tsn: int) -> None:
        """Add a TSN that is in no range."""
        ranges = self._ranges
        at = bisect_right(ranges, tsn, key=lambda r: r[0])
        before = at > 0 and ranges[at - 1][1] == tsn - 1
        after = at < len(ranges) and ranges[at][0] == tsn + 1
        if before and after:
            ranges[at - 1][1] = ranges.pop(at)[1]
        elif before:
            ranges[at - 1][1] = tsn
        elif after:
            ranges[at][0] = tsn
        else:
            ranges.insert(at, [tsn, tsn])

    def _catch_up(self, out: list[Message]) -> None:
        first, last = self._ranges.pop(0)
        for tsn in range(first, last + 1):
            chunk = self._held.pop(tsn)
            if chunk is not None:
                self._held_bytes -= len(chunk.payload) + PACKET_OVERHEAD
                self._deliver(chunk, out)
        self.cumulative = last

    def _deliver(self, chunk: DataChunk, out: list[Message]) -> None:
        """The chunk of the next TSN that was not yet delivered."""
        flags, payload = chunk.flags, chunk.payload
        head = self._head
        if flags & FIRST:
            if head is not None:
                raise ProtocolViolation("a message began inside another")
            if flags & LAST:
                self._whole(chunk, payload, out)
                return
            self._head = chunk
        elif head is None or head.stream != chunk.stream:
            raise ProtocolViolation("a fragment of no message")
        self._parts.append(payload)
        self._parts_bytes += len(payload)
        if self._parts_bytes > self._max_message:
            raise ProtocolViolation(f"a message of more than {self._max_message:,} bytes")
        if flags & LAST:
            whole = b"".join(self._parts)
            self._parts.clear()
            self._parts_bytes = 0
            self._head = None
            self._whole(chunk, whole, out)

    def _whole(self, chunk: DataChunk, data: bytes, out: list[Message]) -> None:
        if not chunk.flags & UNORDERED:
            self.expected[chunk.stream] = (chunk.sequence + 1) & 0xFFFF
        out.append(Message(chunk.stream, chunk.protocol, data))
