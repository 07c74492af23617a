"""Offer, Answer, Gone: what two meshes say to each other through the signaling server.

The mesh makes and takes them; sealing and signing them is the envelope's work. May import: errors.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from p2pnode.errors import PeerError, told

LinkId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""Random name of one connection attempt; an answer counts only for the attempt it names."""

Sdp: TypeAlias = Annotated[str, Meta(max_length=16_384)]
"""Session description; a data-only one with 32 candidates has under 6 KiB."""


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="offer"):
    """First half of a handshake, always from the peer with the smaller id."""

    link: LinkId
    sdp: Sdp


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="answer"):
    """Second half, from the peer with the larger id."""

    link: LinkId
    sdp: Sdp


class Gone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gone"):
    """The connection of this name has ended at this side, as after a change of address. Said by the
    peer with the larger id, which cannot offer a new one."""

    link: LinkId


Signal: TypeAlias = Offer | Answer | Gone

_decoder: msgspec.msgpack.Decoder[Signal] = msgspec.msgpack.Decoder(Signal)


def encode_signal(signal: Signal) -> bytes:
    """msgpack form for an envelope."""
    return msgspec.msgpack.encode(signal)


def decode_signal(raw: bytes) -> Signal:
    """Inverse of `encode_signal`. Raises PeerError with a sentence."""
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerError(
            f"sent a connection offer or answer that cannot be read: {told(error)}"
        ) from None
