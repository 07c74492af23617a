"""Frames: the binary form of what crosses one data channel, and messages cut into and made of them.

Sans-IO. A link has two ordered, reliable channels; a message travels on one of them as fragments
numbered from 0. Fragments of at most `Limits.partial_messages` messages may alternate on a channel.
May import: errors, limits.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from p2pnode.errors import PeerError, VersionMismatchError
from p2pnode.limits import LIMITS, Limits

WIRE_VERSION = 1

BufferLike: TypeAlias = Any
"""Anything with a C-contiguous buffer: bytes, bytearray, memoryview, an array."""


class Kind(enum.IntEnum):
    """Second byte of every frame."""

    DATA = 1
    """A fragment of a message."""
    PING = 2
    """Asks for a PONG with the same value."""
    PONG = 3
    ACK = 4
    """Value: bytes of DATA and relay frames received on this link so far, headers included."""
    RELAY = 5
    """Pass on to the named peer."""
    RELAYED = 6
    """Passed on from the named peer."""


class Channel(enum.IntEnum):
    """The data channels of a link, by their negotiated stream id."""

    CONTROL = 0
    BULK = 1


_DATA = struct.Struct("!BBxxQIII8s")
_VALUE = struct.Struct("!BBxxQ")
_RELAY = struct.Struct("!BBBx32s")

DATA_HEADER_BYTES = _DATA.size
RELAY_HEADER_BYTES = _RELAY.size
RUN_TAG_BYTES = 8
MIN_FRAGMENT_BYTES = 1024
"""Every fragment but the last is at least this long, so that a message cannot be spread over
millions of frames."""


@dataclasses.dataclass(frozen=True, slots=True)
class DataHeader:
    """Header of one fragment. `total` is the length of the whole message in bytes."""

    message: int
    index: int
    count: int
    total: int
    run: bytes

    def pack(self) -> bytes:
        return _DATA.pack(
            WIRE_VERSION, Kind.DATA, self.message, self.index, self.count, self.total, self.run
        )


def frame_kind(frame: bytes) -> Kind:
    """Kind of a frame. Raises VersionMismatchError or PeerError."""
    if len(frame) < _VALUE.size:
        raise PeerError(f"sent a frame of {len(frame)} bytes; the shortest has {_VALUE.size}")
    if frame[0] != WIRE_VERSION:
        raise VersionMismatchError(
            f"speaks wire version {frame[0]}, this node speaks {WIRE_VERSION}; update the older one"
        )
    try:
        return Kind(frame[1])
    except ValueError:
        raise PeerError(f"sent a frame of unknown kind {frame[1]}") from None


def pack_value(kind: Kind, value: int) -> bytes:
    """A PING, PONG or ACK frame."""
    return _VALUE.pack(WIRE_VERSION, kind, value)


def unpack_value(frame: bytes) -> int:
    """Value of a PING, PONG or ACK frame. Raises PeerError."""
    if len(frame) != _VALUE.size:
        raise PeerError(f"sent a {Kind(frame[1]).name} of {len(frame)} bytes, not {_VALUE.size}")
    value: int = _VALUE.unpack(frame)[2]
    return value


def pack_relay(kind: Kind, channel: Channel, peer: bytes, sealed: bytes) -> bytes:
    """A RELAY (peer: destination) or RELAYED (peer: source) frame."""
    return _RELAY.pack(WIRE_VERSION, kind, channel, peer) + sealed


def unpack_relay(frame: bytes) -> tuple[Channel, bytes, bytes]:
    """(channel, peer, sealed bytes) of a relay frame. Raises PeerError."""
    if len(frame) <= _RELAY.size or frame[2] not in (Channel.CONTROL, Channel.BULK):
        raise PeerError("sent a relay frame that cannot be read")
    return Channel(frame[2]), frame[4 : _RELAY.size], frame[_RELAY.size :]


def _views(buffers: Iterable[BufferLike]) -> list[memoryview]:
    views = [memoryview(buffer) for buffer in buffers]
    return [view.cast("B") for view in views if view.nbytes]  # cast refuses empty shapes


class Fragmenter:
    """Cuts one message, given as buffers to be joined, into frames without copying it first.

    The buffers must not change until the last frame is taken. Iterating yields frames (bytes).
    """

    def __init__(
        self, message: int, buffers: Sequence[BufferLike], run: bytes, fragment_bytes: int
    ) -> None:
        """fragment_bytes: payload of one frame, at least MIN_FRAGMENT_BYTES."""
        if fragment_bytes < MIN_FRAGMENT_BYTES:
            raise ValueError(f"fragments of {fragment_bytes} bytes are under the wire's minimum")
        if len(run) != RUN_TAG_BYTES:
            raise ValueError(f"a run tag has {RUN_TAG_BYTES} bytes, not {len(run)}")
        self._views = _views(buffers)
        self.total = sum(view.nbytes for view in self._views)
        self.count = max(1, -(-self.total // fragment_bytes))
        self._message = message
        self._run = run
        self._size = fragment_bytes
        self._index = 0
        self._view = 0
        self._offset = 0

    @property
    def done(self) -> bool:
        return self._index == self.count

    def __iter__(self) -> Fragmenter:
        return self

    def __next__(self) -> bytes:
        if self.done:
            raise StopIteration
        header = DataHeader(self._message, self._index, self.count, self.total, self._run)
        self._index += 1
        return b"".join([header.pack(), *self._take(self._size)])

    def _take(self, size: int) -> list[memoryview]:
        parts: list[memoryview] = []
        while size and self._view < len(self._views):
            view = self._views[self._view]
            part = view[self._offset : self._offset + size]
            parts.append(part)
            size -= part.nbytes
            self._offset += part.nbytes
            if self._offset == view.nbytes:
                self._view += 1
                self._offset = 0
        return parts


@dataclasses.dataclass(slots=True)
class _Partial:
    first: DataHeader
    next_index: int
    received: int
    buffer: bytearray | None
    """None: the message is of another run, checked like any other but not kept."""


class Reassembler:
    """Joins the fragments of one channel of one link to messages.

    The first fragment's header binds. The channel is ordered and reliable, so the only right
    sequence is index 0, 1, …, count−1 with message ids that rise; everything else is a PeerError.
    A buffer grows with the bytes that arrived, so a claimed length costs nothing. At most
    `limits.partial_messages` × the largest message is ever held.
    """

    def __init__(self, channel: Channel, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._largest = limits.control_bytes if channel is Channel.CONTROL else limits.bulk_bytes
        self._run: bytes | None = None
        self._run_largest = self._largest
        self._partial: dict[int, _Partial] = {}
        self._newest = -1

    @property
    def held_bytes(self) -> int:
        """Bytes of unfinished messages in memory."""
        return sum(len(p.buffer) for p in self._partial.values() if p.buffer is not None)

    def set_run(self, run: bytes, max_bytes: int) -> None:
        """Keep messages of this run, each at most `max_bytes` (if that is under the limit)."""
        self._run = run
        self._run_largest = min(max_bytes, self._largest)

    def receive(self, frame: bytes) -> tuple[bytes, bytearray] | None:
        """Take a DATA frame; (run tag, message) when it completes one that is to be kept.

        Raises PeerError when the frame contradicts the rules; the link is then of no more use.
        """
        if len(frame) < DATA_HEADER_BYTES:
            raise PeerError(f"sent a fragment of {len(frame)} bytes, shorter than its header")
        header = DataHeader(*_DATA.unpack_from(frame)[2:])
        payload = memoryview(frame)[DATA_HEADER_BYTES:]
        partial = self._partial.get(header.message)
        if partial is None:
            partial = self._begin(header)
        self._check_fragment(partial, header, payload.nbytes)
        partial.next_index += 1
        partial.received += payload.nbytes
        if partial.buffer is not None:
            partial.buffer += payload
        if partial.next_index < header.count:
            return None
        del self._partial[header.message]
        return None if partial.buffer is None else (header.run, partial.buffer)

    def clear(self) -> None:
        """Drop all unfinished messages (the link closed)."""
        self._partial.clear()

    def _begin(self, header: DataHeader) -> _Partial:
        if header.message <= self._newest:
            raise PeerError(
                f"sent a fragment of message {header.message} again or out of turn "
                f"(message {self._newest} had begun)"
            )
        if header.index != 0:
            raise PeerError(
                f"began message {header.message} with fragment {header.index} instead of 0"
            )
        largest = self._run_largest if header.run == self._run else self._largest
        if header.total > largest:
            raise PeerError(
                f"announced a message of {header.total:,} bytes; at most {largest:,} are allowed"
            )
        most = max(1, -(-header.total // MIN_FRAGMENT_BYTES))
        if not 1 <= header.count <= most:
            raise PeerError(
                f"announced {header.count:,} fragments for {header.total:,} bytes; "
                f"between 1 and {most:,} are possible"
            )
        if len(self._partial) >= self._limits.partial_messages:
            raise PeerError(
                f"began message {header.message} while {len(self._partial)} others were unfinished"
            )
        self._newest = header.message
        kept = header.run in (self._run, bytes(RUN_TAG_BYTES))
        partial = _Partial(header, 0, 0, bytearray() if kept else None)
        self._partial[header.message] = partial
        return partial

    def _check_fragment(self, partial: _Partial, header: DataHeader, nbytes: int) -> None:
        first = partial.first
        if (header.count, header.total, header.run) != (first.count, first.total, first.run):
            raise PeerError(
                f"contradicted itself in fragment {header.index} of message {header.message}: "
                f"count {header.count} and total {header.total:,} after "
                f"{first.count} and {first.total:,}, or another run"
            )
        if header.index != partial.next_index:
            raise PeerError(
                f"sent fragment {header.index} of message {header.message} "
                f"where {partial.next_index} of {first.count} was due"
            )
        last = header.index == first.count - 1
        left = first.total - partial.received
        if nbytes != left if last else not MIN_FRAGMENT_BYTES <= nbytes < left:
            raise PeerError(
                f"sent fragment {header.index} of {first.count} of message {header.message} with "
                f"{nbytes:,} bytes where {left:,} were left"
            )
