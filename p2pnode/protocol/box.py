"""A sealed box: bytes for the owner of one X25519 key, from anybody. Sans-IO.

May import: errors, and `signaling.messages` for nothing but types.

Layout: the sender's one-time public key (32 bytes), AES-256-GCM ciphertext. The key is
HKDF-SHA256(shared secret; one-time key, recipient's key, purpose) and used for this one box, so the
GCM nonce is constant. A box says nothing about its sender: what needs one is signed elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from p2pnode.errors import PeerError

OVERHEAD = 32 + 16
"""Bytes that a box is longer than what it holds."""

_NONCE = bytes(12)


def seal(key: bytes, content: bytes, purpose: bytes, random: Callable[[int], bytes]) -> bytes:
    """A box that only the owner of `key` (32 bytes) can open, for the same `purpose`. Raises
    PeerError for a key that no honest peer has."""
    once = X25519PrivateKey.from_private_bytes(random(32))
    public = once.public_key().public_bytes_raw()
    try:
        shared = once.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:  # a point of small order
        raise PeerError("A relay key is not one; nothing was sealed to it.") from None
    return public + _cipher(shared, public, key, purpose).encrypt(_NONCE, content, None)


def unseal(private: X25519PrivateKey, box: bytes, purpose: bytes) -> bytes:
    """Raises PeerError for a box that was damaged, or made for others or another purpose."""
    public = private.public_key().public_bytes_raw()
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(box[:32]))
        return _cipher(shared, box[:32], public, purpose).decrypt(_NONCE, box[32:], None)
    except (ValueError, InvalidTag):
        raise PeerError("A sealed box could not be opened; it was ignored.") from None


def _cipher(shared: bytes, once: bytes, key: bytes, purpose: bytes) -> AESGCM:
    info = b"p2pnode/1 box" + once + key + purpose
    return AESGCM(HKDF(hashes.SHA256(), 32, None, info).derive(shared))
