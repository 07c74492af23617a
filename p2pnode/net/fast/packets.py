"""SCTP packets as bytes: DATA and SACK, the two chunks that carry the load (RFC 9260, section 3).

Sans-IO. May import: nothing of ours.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from google_crc32c import extend, value

DATA, SACK = 0, 3
"""Chunk types."""

LAST, FIRST, UNORDERED, NOW = 1, 2, 4, 8
"""Flags of a DATA chunk; NOW asks for a SACK at once (RFC 7053)."""

DATA_BYTES = 28
"""Common header and header of a DATA chunk."""

MAX_BLOCKS = 256
"""Gap blocks in one SACK: as many as fit the smallest packet."""

MAX_DUPLICATES = 16
"""Duplicate TSNs in one SACK: they only tell the sender that it was too eager."""

_COMMON = struct.Struct("!HHL4s")
_CHUNK = struct.Struct("!BBH")
_DATA = struct.Struct("!HHL4sBBHLHHL")
_SACK = struct.Struct("!LLHH")
_ZERO = bytes(4)
_PADDING = (b"", bytes(3), bytes(2), bytes(1))


class ProtocolViolation(Exception):
    """The peer sent what it may not; the association ends."""


class Address(NamedTuple):
    """What the common header of every packet to the peer says."""

    source_port: int
    destination_port: int
    tag: int


class DataChunk(NamedTuple):
    """TSN as on the wire: modulo 2**32."""

    flags: int
    tsn: int
    stream: int
    sequence: int
    protocol: int
    payload: bytes


class SackChunk(NamedTuple):
    """Blocks: (first, last) offsets from the cumulative TSN, received."""

    cumulative: int
    window: int
    blocks: list[tuple[int, int]]


def data_packet(address: Address, chunk: DataChunk) -> bytes:
    """One packet with one DATA chunk."""
    flags, tsn, stream, sequence, protocol, payload = chunk
    source, destination, tag = address
    size = 16 + len(payload)
    if size & 3:
        payload += _PADDING[size & 3]
    head = _DATA.pack(
        source, destination, tag, _ZERO, DATA, flags, size, tsn, stream, sequence, protocol
    )
    checksum: int = extend(value(head), payload)
    return b"".join((head[:8], checksum.to_bytes(4, "little"), head[12:], payload))


def sack_packet(
    address: Address,
    cumulative: int,
    window: int,
    blocks: list[tuple[int, int]],
    duplicates: list[int],
) -> bytes:
    """One packet with one SACK chunk. Blocks and duplicates beyond the limits are left out."""
    blocks, duplicates = blocks[:MAX_BLOCKS], duplicates[:MAX_DUPLICATES]
    body = _SACK.pack(cumulative, window, len(blocks), len(duplicates))
    body += b"".join(struct.pack("!HH", *block) for block in blocks)
    body += struct.pack(f"!{len(duplicates)}L", *duplicates)
    return chunk_packet(address, SACK, body)


def chunk_packet(address: Address, kind: int, body: bytes, more: bytes = b"") -> bytes:
    """One packet with one chunk of any type; body: a multiple of four bytes. more: whole chunks."""
    head = _COMMON.pack(*address, _ZERO)
    chunk = _CHUNK.pack(kind, 0, 4 + len(body)) + body + more
    checksum: int = extend(value(head), chunk)
    return head[:8] + checksum.to_bytes(4, "little") + chunk


def parse(packet: bytes, tag: int) -> list[DataChunk | SackChunk] | None:
    """The chunks of a packet with our verification tag, or None: not wholly DATA and SACK, damaged,
    or not for us. Such a packet is for whoever knows the other chunks.
    """
    length = len(packet)
    if length < DATA_BYTES:  # the shortest SACK is as long
        return None
    _, _, theirs, _, kind, flags, size, tsn, stream, sequence, protocol = _DATA.unpack_from(packet)
    if theirs != tag or kind not in (DATA, SACK) or not _intact(packet):
        return None
    if kind == DATA and size >= 16 and 0 <= length - 12 - size < 4:  # alone, as nearly always
        return [DataChunk(flags, tsn, stream, sequence, protocol, packet[28 : 12 + size])]
    return _parse_bundle(packet)


def _intact(packet: bytes) -> bool:
    sum_: int = value(packet[:8] + _ZERO + packet[12:])
    return packet[8:12] == sum_.to_bytes(4, "little")


def _parse_bundle(packet: bytes) -> list[DataChunk | SackChunk] | None:
    chunks: list[DataChunk | SackChunk] = []
    at = 12
    while at + 4 <= len(packet):
        kind, flags, size = _CHUNK.unpack_from(packet, at)
        end = at + size
        if size < 16 or end > len(packet):
            return None
        if kind == DATA:
            tsn, stream, sequence, protocol = struct.unpack_from("!LHHL", packet, at + 4)
            payload = packet[at + 16 : end]
            chunks.append(DataChunk(flags, tsn, stream, sequence, protocol, payload))
        elif kind == SACK:
            sack = _parse_sack(packet, at + 4, end)
            if sack is None:
                return None
            chunks.append(sack)
        else:
            return None
        at = end + (-size & 3)
    return chunks


def _parse_sack(packet: bytes, at: int, end: int) -> SackChunk | None:
    cumulative, window, blocks, duplicates = _SACK.unpack_from(packet, at)
    if at + 12 + 4 * (blocks + duplicates) > end:
        return None
    offsets = struct.unpack_from(f"!{2 * blocks}H", packet, at + 12)
    pairs = list(zip(offsets[::2], offsets[1::2], strict=True))
    return SackChunk(cumulative, window, pairs)
