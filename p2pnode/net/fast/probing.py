"""Larger packets, between two of our nodes that found that the path carries them.

A node says in its INIT which packet length it can read. If both do, each sends one HEARTBEAT per
size, padded to it (as RFC 8899 does, with the PAD chunk of RFC 4820), and uses the largest that is
answered: 16,000 bytes over loopback, 8,800 on a network of jumbo frames, 1,400 on most others.
A probe that does not fit is not fragmented but dropped; anything else may be fragmented, so that a
path that carries less than the shortest packet is slow but open. After a time-out packets are short
again, and the path is asked anew. Sans-IO. May import: of net.fast: packets.
"""

from __future__ import annotations

import struct

from p2pnode.net.fast.packets import Address, chunk_packet

PARAMETER = 0xBF50
"""Of an INIT; the upper bits make whoever does not know it skip it silently."""

SIZES = (16_000, 8_800, 1_400)
"""SCTP packets to try. OpenSSL's records hold 16,384 bytes."""

HEARTBEAT = 4
PAD = 0x84
INFO = 1
"""Parameter of a HEARTBEAT, which the answer repeats."""

_LENGTH = struct.Struct("!HH")
_SIZE = struct.Struct("!4sL")
_MARK = b"size"


class Probing:
    """Of one association."""

    def __init__(self, largest: int | None = None) -> None:
        """largest: longest packet tried and read; None: as long as may be."""
        self._sizes = [size for size in SIZES if largest is None or size <= largest]
        self._peer_largest = 0
        self._best = 0

    def offer(self) -> tuple[int, bytes] | None:
        """The parameter of our INIT."""
        return (PARAMETER, struct.pack("!L", max(self._sizes))) if self._sizes else None

    def offered(self, value: bytes) -> None:
        """The peer's parameter."""
        if len(value) == 4:
            self._peer_largest = int.from_bytes(value)

    def probes(self, address: Address) -> list[bytes]:
        """Packets to send once the association is established, and to ask anew."""
        self._best = 0
        return [_probe(address, size) for size in self._sizes if size <= self._peer_largest]

    def answered(self, parameters: list[tuple[int, bytes]]) -> int | None:
        """Parameters of a HEARTBEAT ACK: the new packet length, if this is the largest so far."""
        for kind, value in parameters:
            if kind != INFO or len(value) != _SIZE.size:
                continue
            mark, size = _SIZE.unpack(value)
            if mark == _MARK and size in self._sizes and size > self._best:
                self._best = size
                return int(size)
        return None


def _probe(address: Address, size: int) -> bytes:
    info = _LENGTH.pack(INFO, 4 + _SIZE.size) + _SIZE.pack(_MARK, size)
    padding = bytes(size - 12 - 4 - len(info) - 4)
    pad = struct.pack("!BBH", PAD, 0, 4 + len(padding)) + padding
    return chunk_packet(address, HEARTBEAT, info, pad)
