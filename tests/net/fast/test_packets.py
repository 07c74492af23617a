"""Packets as bytes: aiortc reads what we write, and we what it writes; damaged ones are refused."""

from __future__ import annotations

import pytest
from aiortc import rtcsctptransport
from hypothesis import given
from hypothesis import strategies as st

from p2pnode.net.fast.packets import (
    DATA,
    FIRST,
    LAST,
    MAX_BLOCKS,
    MAX_DUPLICATES,
    Address,
    DataChunk,
    SackChunk,
    data_packet,
    parse,
    sack_packet,
)

HERE = Address(5000, 5001, 0xDEADBEEF)
WORD = st.integers(0, 2**32 - 1)
HALF = st.integers(0, 2**16 - 1)


@given(flags=st.integers(0, 15), tsn=WORD, stream=HALF, seq=HALF, data=st.binary(min_size=1))
def test_data_is_read_by_aiortc_and_by_us(flags, tsn, stream, seq, data):
    chunk = DataChunk(flags, tsn, stream, seq, 53, data)
    packet = data_packet(HERE, chunk)
    assert len(packet) % 4 == 0
    assert parse(packet, HERE.tag) == [chunk]
    source, destination, tag, (theirs,) = rtcsctptransport.parse_packet(packet)
    assert (source, destination, tag) == HERE
    assert (theirs.flags, theirs.tsn, theirs.user_data) == (flags, tsn, data)


@given(cumulative=WORD, window=WORD, blocks=st.lists(st.tuples(HALF, HALF), max_size=300))
def test_sacks_are_read_by_aiortc_and_by_us(cumulative, window, blocks):
    packet = sack_packet(HERE, cumulative, window, blocks, [1, 2])
    kept = blocks[:MAX_BLOCKS]
    assert parse(packet, HERE.tag) == [SackChunk(cumulative, window, kept)]
    _, _, _, (theirs,) = rtcsctptransport.parse_packet(packet)
    assert (theirs.cumulative_tsn, theirs.advertised_rwnd) == (cumulative, window)
    assert (theirs.gaps, theirs.duplicates) == (kept, [1, 2])
    assert len(packet) <= 1188


def test_a_sack_tells_of_few_duplicates():
    packet = sack_packet(HERE, 1, 2, [], list(range(1000)))
    _, _, _, (sack,) = rtcsctptransport.parse_packet(packet)
    assert sack.duplicates == list(range(MAX_DUPLICATES))


def bundle(*chunks: rtcsctptransport.Chunk) -> bytes:
    class Many:
        def __bytes__(self) -> bytes:
            return b"".join(bytes(chunk) for chunk in chunks)

    return rtcsctptransport.serialize_packet(*HERE, Many())


def aiortc_data(data: bytes) -> rtcsctptransport.DataChunk:
    chunk = rtcsctptransport.DataChunk(flags=FIRST | LAST)
    chunk.tsn, chunk.stream_id, chunk.protocol, chunk.user_data = 7, 1, 53, data
    return chunk


def aiortc_sack() -> rtcsctptransport.SackChunk:
    sack = rtcsctptransport.SackChunk()
    sack.cumulative_tsn, sack.advertised_rwnd, sack.gaps = 9, 10, [(2, 3)]
    return sack


def test_bundles_are_read_if_all_chunks_are_ours():
    packet = bundle(aiortc_sack(), aiortc_data(b"abc"), aiortc_data(b"defgh"))
    sack, first, second = parse(packet, HERE.tag)
    assert sack == SackChunk(9, 10, [(2, 3)])
    assert (first.payload, second.payload) == (b"abc", b"defgh")
    heartbeat = rtcsctptransport.HeartbeatChunk()
    heartbeat.params = [(1, b"12345678")]
    assert parse(bundle(aiortc_data(b"abc"), heartbeat), HERE.tag) is None


@pytest.mark.parametrize("at", [0, 4, 8, 12, 20, 40])
def test_a_damaged_packet_is_nobodys(at: int):
    packet = bytearray(data_packet(HERE, DataChunk(3, 1, 0, 0, 53, bytes(64))))
    assert parse(bytes(packet), HERE.tag) is not None
    packet[at] ^= 1
    assert parse(bytes(packet), HERE.tag) is None


def test_another_tag_is_not_for_us():
    packet = data_packet(HERE, DataChunk(3, 1, 0, 0, 53, b"x"))
    assert parse(packet, HERE.tag + 1) is None


@given(st.binary(max_size=80), st.sampled_from([DATA, 3]))
def test_any_bytes_are_read_or_refused(rest: bytes, kind: int):
    raw = rtcsctptransport.Chunk.__new__(rtcsctptransport.Chunk)
    raw.flags, raw.body = 0, rest
    raw.type = kind
    packet = rtcsctptransport.serialize_packet(*HERE, raw)
    parse(packet, HERE.tag)
    parse(packet[:-1], HERE.tag)
    parse(bytes([*packet[:12], kind, *rest]), HERE.tag)
