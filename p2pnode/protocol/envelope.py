"""Sealed, signed envelopes between two nodes of a room, and the channel that keeps them fresh.

May import: errors, identity, and `signaling.messages` for sizes. Sans-IO.

An envelope protects against three parties. The server has no room secret: it can neither read nor
make one. A stranger who knows the room code has the secret, but not the key of another node: the
inside is signed, and the signature covers sender, recipient, room, kind and body, hence also the
DTLS fingerprint inside an offer; it covers the secret too, so that what was sealed under one
secret cannot be resealed under another. And whoever carries envelopes may keep and repeat them:
both sides choose a nonce for the conversation, every envelope echoes the other side's, and a
counter orders what one conversation says.

Layout: version (1 byte), salt (32), AES-256-GCM ciphertext. The key is HKDF-SHA256(secret, salt)
and used for this one envelope, so the GCM nonce is constant. Version, room, sender and recipient
are associated data; the server states sender and recipient beside the envelope.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from p2pnode.errors import PeerError
from p2pnode.protocol.identity import Identity, PeerId, short_id, verify
from signaling.messages import Bytes32, Signature, peer_id

VERSION = b"\x01"
BODY_BYTES = 48 * 1024
"""Largest body: an SDP or a full roster fits, and sealed it fits one signaling message."""

_SALT = 32
_GCM_NONCE = bytes(12)
_NO_NONCE = bytes(32)
_HELLO = "hello"
_UNSEEN = 4
"""Messages kept until the other side is heard from, to be sealed anew if it has restarted: the
newest of each kind, for it takes the place of those before it."""
_PAST_NONCES = 64
"""Conversations of one peer (restarts) remembered before our own nonce is renewed."""

Random = Callable[[int], bytes]
"""Source of unpredictable bytes, `secrets.token_bytes` outside tests."""


class _Inside(msgspec.Struct, frozen=True, array_like=True):
    """What an envelope holds. `signature` covers the rest, the room and the recipient."""

    key: Bytes32
    nonce: Bytes32
    echo: Bytes32
    counter: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    kind: Annotated[str, Meta(max_length=16)]
    body: Annotated[bytes, Meta(max_length=BODY_BYTES)]
    signature: Signature


class Opened(msgspec.Struct, frozen=True):
    """A genuine, fresh envelope: `key` (Ed25519) signed it and hashes to `sender`."""

    sender: PeerId
    key: bytes
    kind: str
    body: bytes


_decoder = msgspec.msgpack.Decoder(_Inside)


class Channel:
    """Conversation with one peer over an untrusted carrier that may drop, repeat, swap or invent.

    `send` and `receive` return the envelopes to hand to the carrier. Delivery is not guaranteed:
    whoever needs an answer asks again.
    """

    def __init__(
        self, identity: Identity, room: bytes, secret: bytes, peer: PeerId, random: Random
    ) -> None:
        """`room` and `secret`: 32 bytes each, from the room code (`code.RoomKeys`), or the
        secret of a pair (`pairing`)."""
        self._identity = identity
        self._room = room
        self._secret = secret
        self._binding = hashlib.sha256(b"p2pnode/1 binding" + secret).digest()
        self._peer = peer
        self._random = random
        self._nonce = random(32)
        self._counter = 0
        self._their_nonce: bytes | None = None
        self._their_counter = -1
        self._past: set[bytes] = set()
        self._unseen: dict[str, bytes] = {}

    @property
    def is_heard(self) -> bool:
        """Whether the peer has answered in this conversation."""
        return self._their_nonce is not None

    def send(self, kind: str, body: bytes) -> list[bytes]:
        """Seal one message, or, while the peer's nonce is unknown, keep it and ask for that."""
        if len(body) > BODY_BYTES or len(kind) > 16 or kind == _HELLO:
            raise ValueError(f"not a message for an envelope: kind {kind!r}, {len(body)} bytes")
        self._unseen.pop(kind, None)
        self._unseen[kind] = body
        if len(self._unseen) > _UNSEEN:
            del self._unseen[next(iter(self._unseen))]
        if self._their_nonce is None:
            return [self._seal(_NO_NONCE, _HELLO, b"")]
        return [self._seal(self._their_nonce, kind, body)]

    def receive(self, envelope: bytes) -> tuple[Opened | None, list[bytes]]:
        """What the envelope says (None for one that only concerns nonces) and what to send.

        Raises PeerError for one that is forged, damaged, meant for others, or a repetition.
        """
        inside = self._open(envelope)
        if inside.echo != self._nonce:
            # It may be an old one, so it changes nothing here. A live sender learns our nonce.
            return None, [self._seal(inside.nonce, _HELLO, b"")]
        replies = []
        if inside.nonce == self._their_nonce:
            if inside.counter <= self._their_counter:
                raise self._error("an envelope came twice or late")
            self._unseen.clear()
        else:
            if inside.nonce in self._past:
                raise self._error("an envelope of an earlier conversation came again")
            self._begin(inside.nonce)
            replies = [self._seal(inside.nonce, kind, body) for kind, body in self._unseen.items()]
        self._their_counter = inside.counter
        if inside.kind == _HELLO:
            return None, replies
        return Opened(self._peer, inside.key, inside.kind, inside.body), replies

    def _begin(self, their_nonce: bytes) -> None:
        if self._their_nonce is not None:
            self._past.add(self._their_nonce)
        self._their_nonce = their_nonce
        if len(self._past) >= _PAST_NONCES:
            # Everything said to the old nonce is now stale, so nothing need be remembered of it.
            self._past.clear()
            self._nonce = self._random(32)

    def _header(self, sender: PeerId, recipient: PeerId) -> bytes:
        return VERSION + self._room + sender + recipient

    def _cipher(self, salt: bytes) -> AESGCM:
        key = HKDF(hashes.SHA256(), 32, salt, b"p2pnode/1 envelope").derive(self._secret)
        return AESGCM(key)

    def _signed(self, recipient: PeerId, inside: _Inside) -> tuple[bytes, ...]:
        return (
            self._room,
            self._binding,
            recipient,
            inside.nonce,
            inside.echo,
            inside.counter.to_bytes(8, "big"),
            inside.kind.encode(),
            inside.body,
        )

    def _seal(self, echo: bytes, kind: str, body: bytes) -> bytes:
        self._counter += 1
        inside = _Inside(
            self._identity.key, self._nonce, echo, self._counter, kind, body, bytes(64)
        )
        signature = self._identity.sign(b"envelope", *self._signed(self._peer, inside))
        plain = msgspec.msgpack.encode(msgspec.structs.replace(inside, signature=signature))
        salt = self._random(_SALT)
        header = self._header(self._identity.peer_id, self._peer)
        return VERSION + salt + self._cipher(salt).encrypt(_GCM_NONCE, plain, header)

    def _open(self, envelope: bytes) -> _Inside:
        if envelope[:1] != VERSION:
            raise self._error("an envelope of another version came")
        salt, sealed = envelope[1 : 1 + _SALT], envelope[1 + _SALT :]
        header = self._header(self._peer, self._identity.peer_id)
        try:
            inside = _decoder.decode(self._cipher(salt).decrypt(_GCM_NONCE, sealed, header))
        except (InvalidTag, msgspec.MsgspecError, RecursionError):
            raise self._error(
                "an envelope could not be opened (other room code, damaged, or meant for others)"
            ) from None
        if peer_id(inside.key) != self._peer:
            raise self._error("an envelope was signed with another node's key")
        parts = self._signed(self._identity.peer_id, inside)
        if not verify(inside.key, inside.signature, b"envelope", *parts):
            raise self._error("an envelope's signature is wrong")
        return inside

    def _error(self, what: str) -> PeerError:
        return PeerError(f"From {short_id(self._peer)}: {what}; it was ignored.")
