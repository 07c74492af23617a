"""Announcements and stop orders: what the host signed counts, and nothing else."""

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
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.lobby import (
    Announce,
    Declined,
    LobbyMessage,
    Ready,
    RosterNews,
    announce,
    check_announce,
    decode_lobby,
    encode_lobby,
    sign_stop,
    stop_is_signed,
)

HOST = Identity.ephemeral()
MEMBER = Identity.ephemeral()
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
GOOD = announce(HOST, ROOM, CONFIG, MANIFEST, TEXT)


def test_what_the_host_signed_is_the_run() -> None:
    assert check_announce(GOOD, HOST.key, ROOM) == CONFIG
    assert check_announce(decode_lobby(encode_lobby(GOOD)), HOST.key, ROOM) == CONFIG
    silent = announce(HOST, ROOM, CONFIG, MANIFEST, b"")
    assert check_announce(silent, HOST.key, ROOM) == CONFIG


def refused(message: Announce, key: bytes = HOST.key, room: bytes = ROOM) -> None:
    with pytest.raises(PeerError, match="did not sign"):
        check_announce(message, key, room)


def test_a_member_cannot_announce() -> None:
    refused(announce(MEMBER, ROOM, CONFIG, MANIFEST, TEXT))
    refused(GOOD, key=MEMBER.key)


def test_an_announcement_holds_for_its_room_only() -> None:
    refused(GOOD, room=b"s" * 32)


@pytest.mark.parametrize(
    "change",
    [
        {"config": run_config(seed=1).canonical()},
        {"config": CONFIG.canonical() + b" "},
        {"manifest": MANIFEST + b" "},
        {"manifest": b""},
        {"text": b"u" * 32},
        {"text": b""},
        {"signature": bytes(64)},
        {"signature": HOST.sign(b"stop", ROOM, CONFIG.canonical())},
    ],
)
def test_nothing_in_it_can_be_changed(change: dict[str, bytes]) -> None:
    refused(msgspec.structs.replace(GOOD, **change))


def test_bytes_do_not_move_between_the_parts() -> None:
    """The end of one part is not taken for the beginning of the next."""
    moved = Announce(GOOD.config[:-1], GOOD.manifest, GOOD.config[-1:] + TEXT[:31], GOOD.signature)
    refused(moved)


def test_a_bad_key_is_no_crash() -> None:
    refused(GOOD, key=bytes(32))


def test_a_signed_run_with_another_manifest_is_no_run() -> None:
    message = announce(HOST, ROOM, run_config(b"another"), MANIFEST, TEXT)
    with pytest.raises(ConfigError, match="manifest"):
        check_announce(message, HOST.key, ROOM)


@pytest.mark.parametrize("lr", [2.0, float("nan")])
def test_a_signed_run_that_is_impossible_is_a_sentence(lr: float) -> None:
    impossible = msgspec.structs.replace(CONFIG, lr=lr)
    with pytest.raises(ConfigError):
        check_announce(announce(HOST, ROOM, impossible, MANIFEST, TEXT), HOST.key, ROOM)


# Stop orders


def test_stop_orders() -> None:
    run = CONFIG.run_id()
    signature = sign_stop(HOST, run, 17)
    assert stop_is_signed(HOST.key, run, 17, signature)
    assert not stop_is_signed(HOST.key, run, 18, signature)
    assert not stop_is_signed(HOST.key, run_config(seed=1).run_id(), 17, signature)
    assert not stop_is_signed(MEMBER.key, run, 17, signature)
    assert not stop_is_signed(HOST.key, run, 17, sign_stop(MEMBER, run, 17))
    assert not stop_is_signed(HOST.key, run, 17, b"")
    assert not stop_is_signed(HOST.key, run, 17, signature[:-1])


def test_an_announcement_is_no_stop_order() -> None:
    assert not stop_is_signed(HOST.key, CONFIG.run_id(), 17, GOOD.signature)


# The wire

NESTED = b"\x91" * 100_000 + b"\xc0"
"""Arrays in arrays: skipping them must not end in a RecursionError."""


@pytest.mark.parametrize(
    "message",
    [GOOD, Ready(b"r" * 32), Declined(b"r" * 32, "no text here"), RosterNews(b"roster")],
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
        msgspec.structs.replace(GOOD, signature=bytes(63)),
        msgspec.structs.replace(GOOD, text=bytes(33)),
        msgspec.structs.replace(GOOD, config=bytes(16 * 1024 + 1)),
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


@given(st.lists(VALUES, max_size=6), st.sampled_from([1, 2, 3, 4, 5, -1, "1"]))
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
            check_announce(message, HOST.key, ROOM)
