"""Deeply nested values in what strangers send: refused where they are read, everywhere.

A decoder skips fields it does not know, and skipping recurses. The error this gives is none of
msgspec's own, so each place that reads strangers' bytes must know it.
"""

from __future__ import annotations

import secrets

import msgspec
import pytest

from p2pnode.config import parse_run_config
from p2pnode.errors import ConfigError, DataError, PeerError
from p2pnode.net.signals import Answer, Offer, decode_signal, encode_signal
from p2pnode.protocol.admit import Admission
from p2pnode.protocol.admit_messages import DECISION, KNOCK, Decision, Knock, encode
from p2pnode.protocol.envelope import Opened
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.messages import Want, decode
from p2pnode.protocol.messages import encode as encode_message
from p2pnode.train.manifest import parse_manifest
from signaling import messages, rooms
from signaling.grouping import Origin
from signaling.proof import checked_claim

DEPTH = 100_000
NESTED = b"\x91" * DEPTH + b"\xc0"


def with_nested(raw: bytes) -> bytes:
    """One more element, deeply nested, in a short msgpack array or map."""
    if raw[0] & 0xF0 == 0x90:
        return bytes([raw[0] + 1]) + raw[1:] + NESTED
    assert raw[0] & 0xF0 == 0x80
    return bytes([raw[0] + 1]) + raw[1:] + b"\xa1x" + NESTED


def test_the_danger_is_real() -> None:
    """If this fails, msgspec has changed, and the rest can be simpler."""

    class Any(msgspec.Struct):
        pass

    with pytest.raises(RecursionError):
        msgspec.msgpack.decode(b"\x81\xa1x" + NESTED, type=Any)


def test_run_messages() -> None:
    header = b"".join(encode_message(Want(bytes(16), 1, (), ())))[4:]
    raw = with_nested(header)
    with pytest.raises(PeerError):
        decode(len(raw).to_bytes(4, "little") + raw)


@pytest.mark.parametrize("signal", [Offer(b"l" * 16, "v=0"), Answer(b"l" * 16, "v=0")])
def test_signals(signal: Offer | Answer) -> None:
    with pytest.raises(PeerError):
        decode_signal(with_nested(encode_signal(signal)))


@pytest.mark.parametrize(
    ("kind", "body"),
    [(KNOCK, encode(Knock(1, "bob", bytes(32)))), (DECISION, encode(Decision("no")))],
    ids=[KNOCK, DECISION],
)
def test_a_knock_or_a_decision(kind: str, body: bytes) -> None:
    """Whoever has the room code can send these to the host."""
    admission = Admission(
        Identity.ephemeral(),
        room=bytes(32),
        secret=bytes(32),
        name="alice",
        approve="ask",
        random=secrets.token_bytes,
    )
    with pytest.raises(PeerError, match="malformed"):
        admission._on_opened(Opened(b"p" * 32, bytes(32), kind, with_nested(body)))


def test_the_server_expels_the_sender_only() -> None:
    server = rooms.Rooms(0.0)
    server.on_connect(1, Origin("192.0.2.1", None), bytes(32), 0.0)
    frame = with_nested(messages.encode(messages.Dismiss(bytes(32))))
    effects = server.on_frame(1, frame, 0.0)
    assert any(isinstance(effect, rooms.Close) for effect in effects)


def test_rosters() -> None:
    nested = with_nested(msgspec.msgpack.encode(messages.SignedRoster(b"claim", bytes(64))))
    assert checked_claim(nested, bytes(32), 64) is None


@pytest.mark.parametrize("raw", [b'{"x":', b'{"kind":', b'{"files":', b'{"model":'])
def test_json_from_the_host(raw: bytes) -> None:
    nested = raw + b"[" * DEPTH + b"]" * DEPTH + b"}"
    with pytest.raises(ConfigError):
        parse_run_config(nested)
    with pytest.raises(DataError):
        parse_manifest(nested)
