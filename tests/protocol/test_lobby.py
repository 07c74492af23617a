"""What members say to each other outside a run: bounded, and read or refused."""

from __future__ import annotations

import contextlib
import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pnode.config import RunConfig, RunOptions
from p2pnode.errors import ConfigError, PeerError
from p2pnode.limits import LIMITS
from p2pnode.protocol.chain import RECORD_BYTES, RECORDS, SignedRecord, begin, open_chain
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.lobby import (
    Announce,
    Declined,
    LobbyMessage,
    Ready,
    RecordNews,
    RosterNews,
    check_manifest,
    decode_lobby,
    encode_lobby,
)

HOST = Identity.ephemeral()
ROOM = b"r" * 32
MANIFEST = b'{"files":[],"kind":"builtin"}'
TEXT = b"t" * 32


def run_config(manifest: bytes = MANIFEST, **options: object) -> RunConfig:
    return RunOptions(preset="nano", **options).config(  # type: ignore[arg-type]
        arithmetic_version=1,
        gates_digest="a" * 64,
        data=hashlib.sha256(manifest).hexdigest(),
    )


CONFIG = run_config()
CHAIN = begin(HOST, ROOM, CONFIG, TEXT)
GOOD = Announce(CHAIN.signed, MANIFEST)


def test_an_announcement_brings_the_chain_and_its_data() -> None:
    message = decode_lobby(encode_lobby(GOOD))
    assert isinstance(message, Announce)
    assert open_chain(message.records, ROOM, [HOST.peer_id]) == CHAIN
    check_manifest(CHAIN, message.manifest)


@pytest.mark.parametrize("manifest", [MANIFEST + b" ", b"", b"another"])
def test_another_manifest_is_refused(manifest: bytes) -> None:
    with pytest.raises(PeerError, match="manifest"):
        check_manifest(CHAIN, manifest)


# The wire

NESTED = b"\x91" * 100_000 + b"\xc0"
"""Arrays in arrays: skipping them must not end in a RecursionError."""


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        RecordNews(CHAIN.signed),
        Ready(b"r" * 32),
        Declined(b"r" * 32, "no text here"),
        RosterNews(b"roster"),
    ],
)
def test_messages_come_back_as_they_went(message: LobbyMessage) -> None:
    assert decode_lobby(encode_lobby(message)) == message
    assert decode_lobby(bytearray(encode_lobby(message))) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready(b"r" * 31),
        Ready(b"r" * 33),
        Declined(b"r" * 32, "x" * 513),
        RosterNews(bytes(64 * 1024 + 1)),
        msgspec.structs.replace(GOOD, records=()),
        RecordNews(CHAIN.signed * (RECORDS + 1)),
        RecordNews((SignedRecord(CHAIN.signed[0].record, bytes(63)),)),
        RecordNews((SignedRecord(bytes(RECORD_BYTES + 1), bytes(64)),)),
        msgspec.structs.replace(GOOD, manifest=bytes(LIMITS.manifest_bytes + 1)),
    ],
)
def test_every_field_is_bounded(message: LobbyMessage) -> None:
    with pytest.raises(PeerError, match="cannot be read"):
        decode_lobby(encode_lobby(message))


def test_reasons_are_cleaned() -> None:
    message = decode_lobby(encode_lobby(Declined(b"r" * 32, "\x1b[2Jno\ndisk\u202e left")))
    assert isinstance(message, Declined)
    assert message.reason == "[2Jno disk left"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x92\x09\xc0",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x93\x03\xc4\x20" + b"r" * 32 + b"\xa2\xff\xfe",
        b"\x93\x02\xc4\x20" + b"r" * 32 + NESTED,
    ],
)
def test_what_cannot_be_read(raw: bytes) -> None:
    with pytest.raises(PeerError):
        decode_lobby(raw)


@given(st.binary(max_size=300))
def test_any_bytes_give_a_message_or_a_peer_error(raw: bytes) -> None:
    with contextlib.suppress(PeerError):
        decode_lobby(raw)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(VALUES, max_size=6), st.sampled_from([1, 2, 3, 4, 5, 6, -1, "1"]))
def test_any_fields_give_a_message_or_a_peer_error(fields: list, tag: object) -> None:
    with contextlib.suppress(PeerError):
        decode_lobby(msgspec.msgpack.encode([tag, *fields]))


@given(st.data())
def test_damaged_messages_give_a_message_or_a_peer_error(data: st.DataObject) -> None:
    raw = bytearray(encode_lobby(GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PeerError, ConfigError):
        message = decode_lobby(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
        if isinstance(message, Announce):
            check_manifest(open_chain(message.records, ROOM, [HOST.peer_id]), message.manifest)
