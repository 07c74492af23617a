"""What members of a room say to each other outside a run: which run it is, and who is ready.

May import: errors, config, limits, identity, roster's encoded form (opaque here).

The run is announced in a record that the host signs, so that any member can hand it to a
newcomer, also when the host is gone. The record fixes everything the result depends on.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from p2pnode.config import RunConfig, parse_run_config
from p2pnode.errors import ConfigError, PeerError, told
from p2pnode.limits import LIMITS
from p2pnode.protocol.identity import Identity, verify
from p2pnode.protocol.text import clean

Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]

_LABEL = b"run"
_STOP = b"stop"
_PLEDGE = b"pledge"


class Announce(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Host-signed: this room trains this run. `config` and `manifest` are canonical JSON."""

    config: Annotated[bytes, Meta(max_length=16 * 1024)]
    manifest: Annotated[bytes, Meta(max_length=LIMITS.manifest_bytes)]
    text: Annotated[bytes, Meta(max_length=32)]
    """Name of the blob with the run's text (see fetch); empty: it is not handed out."""
    signature: Signature


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The sender has the run's text and compiled kernels and can begin."""

    run: Bytes32


class Declined(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The sender cannot take part; why, in a sentence."""

    run: Bytes32
    reason: Annotated[str, Meta(max_length=512)]


class RosterNews(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The newest roster the sender holds (Roster.encode), for when the server is away."""

    roster: Annotated[bytes, Meta(max_length=64 * 1024)]


class Idle(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """First word on a new link of a member that knows of no run."""


LobbyMessage: TypeAlias = Announce | Ready | Declined | RosterNews | Idle

_decoder = msgspec.msgpack.Decoder(LobbyMessage)


def encode_lobby(message: LobbyMessage) -> bytes:
    """msgpack form, one mesh message."""
    return msgspec.msgpack.encode(message)


def decode_lobby(raw: bytes | bytearray) -> LobbyMessage:
    """Inverse of `encode_lobby`. Raises PeerError with a sentence."""
    try:
        message: LobbyMessage = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"sent a lobby message that cannot be read: {told(error)}") from None
    if isinstance(message, Declined):
        return Declined(message.run, clean(message.reason, 512))
    return message


def announce(
    host: Identity, room: bytes, config: RunConfig, manifest: bytes, text: bytes
) -> Announce:
    """The record of a run, signed by its host for this room (32 bytes)."""
    raw = config.canonical()
    signature = host.sign(_LABEL, room, raw, hashlib.sha256(manifest).digest(), text)
    return Announce(raw, manifest, text, signature)


def check_announce(message: Announce, host_key: bytes, room: bytes) -> RunConfig:
    """The run's configuration. Raises PeerError if the host did not sign it for this room, and
    ConfigError if no run can have it."""
    digest = hashlib.sha256(message.manifest)
    signed = (room, message.config, digest.digest(), message.text)
    if not verify(host_key, message.signature, _LABEL, *signed):
        raise PeerError("announced a run that the host did not sign; it was ignored")
    config = parse_run_config(message.config)
    if config.data != digest.hexdigest():
        raise ConfigError("the announced data manifest is not the one of the run's configuration")
    return config


def sign_stop(host: Identity, run: bytes, last_step: int) -> bytes:
    """The host's signature under the order to end the run (32-byte id) after `last_step`."""
    return host.sign(_STOP, run, last_step.to_bytes(8, "big"))


def stop_is_signed(host_key: bytes, run: bytes, last_step: int, signature: bytes) -> bool:
    """Whether the host gave this order for this run."""
    return verify(host_key, signature, _STOP, run, last_step.to_bytes(8, "big"))


def sign_pledge(worker: Identity, digest: bytes) -> bytes:
    """A worker's signature under what it has computed; `digest`: messages.pledge_digest."""
    return worker.sign(_PLEDGE, digest)


def pledge_is_signed(worker_key: bytes, digest: bytes, signature: bytes) -> bool:
    """Whether the worker signed this pledge, which names its run."""
    return verify(worker_key, signature, _PLEDGE, digest)
