"""What members of a room say to each other outside a run: which run it is, and who is ready.

May import: errors, limits, chain, identity, text, and `signaling.messages` for a wire type. A
roster is opaque here.

The run is announced by its chain of records, which the host and who stands in for it have signed,
so that any member can hand it to a newcomer, also when the host is gone. The chain fixes everything
the result depends on.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from p2pnode.errors import PeerError, told
from p2pnode.limits import LIMITS
from p2pnode.protocol.chain import Chain, Records
from p2pnode.protocol.identity import Identity, verify
from p2pnode.protocol.text import clean
from signaling.messages import Signature

Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]

_PLEDGE = b"pledge"


class Announce(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """This room trains this run. `manifest`: canonical JSON, named by the run's configuration."""

    records: Records
    manifest: Annotated[bytes, Meta(max_length=LIMITS.manifest_bytes)]


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The sender has the run's text and compiled kernels and can begin."""

    run: Bytes32
    """Id of the run's first record."""


class Declined(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The sender cannot take part; why, in a sentence."""

    run: Bytes32
    reason: Annotated[str, Meta(max_length=512)]


class RosterNews(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The newest roster the sender holds (Roster.encode), for when the server is away."""

    roster: Annotated[bytes, Meta(max_length=64 * 1024)]


class Idle(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """First word on a new link of a member that knows of no run."""


class RecordNews(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The chain that the sender now goes by; it has changed since its Announce."""

    records: Records


class LedgerSigned(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The sender's ledger of the run is this one, up to a step (see p2pnode.signatures)."""

    run: Bytes32
    """Id of the run's first settings."""
    step: Annotated[int, Meta(ge=1, le=10_000_000)]
    digest: Bytes32
    signature: Signature


class LedgerWant(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The sender lacks lines of its ledger from step `first` on."""

    run: Bytes32
    first: Annotated[int, Meta(ge=1, le=10_000_000)]


class LedgerLines(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Whole lines from there on, as the sender has them."""

    run: Bytes32
    lines: Annotated[bytes, Meta(max_length=LIMITS.ledger_part_bytes)]


LedgerMessage: TypeAlias = LedgerSigned | LedgerWant | LedgerLines
LobbyMessage: TypeAlias = (
    Announce | Ready | Declined | RosterNews | Idle | RecordNews | LedgerMessage
)

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


def check_manifest(chain: Chain, manifest: bytes) -> None:
    """Raises PeerError unless this is the data manifest of the run."""
    if hashlib.sha256(manifest).hexdigest() != chain.config.data:
        raise PeerError("announced a data manifest that is not the one of its run")


def sign_pledge(worker: Identity, digest: bytes) -> bytes:
    """A worker's signature under what it has computed; `digest`: messages.pledge_digest."""
    return worker.sign(_PLEDGE, digest)


def pledge_is_signed(worker_key: bytes, digest: bytes, signature: bytes) -> bool:
    """Whether the worker signed this pledge, which names its run."""
    return verify(worker_key, signature, _PLEDGE, digest)
