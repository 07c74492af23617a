"""Sealing of relayed frames: AES-256-GCM between two roster members through one that cannot read.

Keys come from both members' static X25519 keys and a fresh random value of each, so no session's
frames open in another. Frames are numbered per channel and direction; the number is the nonce and
must be the next one. Sans-IO. May import: protocol.frames, errors.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from p2pnode.errors import PeerError
from p2pnode.protocol.frames import Channel

LABEL = b"p2pnode relay 1"
RANDOM_BYTES = 16
_COUNTER = struct.Struct("!Q")
SEAL_BYTES = _COUNTER.size + 16
"""Counter in front and authentication tag behind."""


class FramesLostError(Exception):
    """A frame is genuine but others before it never came: the session cannot go on."""


class SealedSession:
    """One session, at one end of it."""

    def __init__(
        self,
        private: X25519PrivateKey,
        public: bytes,
        opener: tuple[bytes, bytes],
        accepter: tuple[bytes, bytes],
        *,
        opened_here: bool,
    ) -> None:
        """public: the other's X25519 key. opener, accepter: (peer id, random value) of each end.

        Raises PeerError if the key is not usable.
        """
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise PeerError("has a relay key in the roster that cannot be used") from None
        keys = HKDF(
            algorithm=SHA256(),
            length=64,
            salt=opener[1] + accepter[1],
            info=LABEL + opener[0] + accepter[0],
        ).derive(shared)
        to_accepter, to_opener = AESGCM(keys[:32]), AESGCM(keys[32:])
        self._out, self._in = (to_accepter, to_opener) if opened_here else (to_opener, to_accepter)
        self._sent = dict.fromkeys(Channel, 0)
        self._received = dict.fromkeys(Channel, 0)

    def seal(self, channel: Channel, frame: bytes) -> bytes:
        """The frame for the far end: its counter, the ciphertext and the tag."""
        counter = self._sent[channel]
        self._sent[channel] += 1
        return _COUNTER.pack(counter) + self._out.encrypt(_nonce(channel, counter), frame, None)

    def unseal(self, channel: Channel, sealed: bytes) -> bytes | None:
        """The frame; None if it is forged, damaged, of another session, or came before.

        Raises FramesLostError.
        """
        if len(sealed) < SEAL_BYTES:
            return None
        (counter,) = _COUNTER.unpack_from(sealed)
        if counter < self._received[channel]:
            return None
        try:
            frame = self._in.decrypt(_nonce(channel, counter), sealed[_COUNTER.size :], None)
        except InvalidTag:
            return None
        if counter > self._received[channel]:
            raise FramesLostError(
                f"{counter - self._received[channel]} relayed frames were lost on the way"
            )
        self._received[channel] += 1
        return frame


def _nonce(channel: Channel, counter: int) -> bytes:
    return bytes([0, 0, 0, channel]) + _COUNTER.pack(counter)
