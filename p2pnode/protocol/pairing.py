"""A secret for two nodes that share no room code, and six words that tell whether it is theirs.

May import: errors, envelope, wordlist, identity, and `signaling.messages` for sizes. Sans-IO.

Three messages through an untrusted carrier. The newcomer commits to its X25519 key by a hash, the
host answers with its own key, and the newcomer reveals. Whoever sits in the middle must thus
choose its key towards either side before it knows that side's, so it cannot search for keys whose
words agree: each attempt succeeds with a chance of 2^-60 and shows at a terminal if it fails.

The words come from the shared secret and all that was said, with both nodes' ids and the room. If
they are the same at both ends, both hold the same secret and know each other's signing key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from p2pnode.errors import PeerError
from p2pnode.protocol.envelope import Random
from p2pnode.protocol.identity import PeerId, short_id
from p2pnode.protocol.wordlist import WORDS
from signaling.messages import Bytes32, signing_text

PAIRING = b"\x02"
"""First byte of these messages where envelopes have their version."""
COMPARED_WORDS = 6
"""Ten bits each."""


class Commit(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Newcomer to host."""

    commitment: Bytes32


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Host to newcomer: my key, for the attempt with this commitment."""

    commitment: Bytes32
    public: Bytes32


class Reveal(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Newcomer to host: the key I had committed to."""

    public: Bytes32


PairingMessage = Commit | Answer | Reveal

_decoder: msgspec.msgpack.Decoder[PairingMessage] = msgspec.msgpack.Decoder(PairingMessage)


def encode_pairing(message: PairingMessage) -> bytes:
    """What goes to the server in place of an envelope: a label and the message (msgpack)."""
    return PAIRING + msgspec.msgpack.encode(message)


def decode_pairing(raw: bytes, sender: PeerId) -> PairingMessage:
    """Inverse of `encode_pairing`. Raises PeerError."""
    try:
        return _decoder.decode(raw[len(PAIRING) :])
    except (msgspec.MsgspecError, RecursionError):
        raise PeerError(f"From {short_id(sender)}: a malformed pairing message came.") from None


@dataclass(frozen=True)
class Paired:
    """What an exchange yields: 32 secret bytes, and the words to compare."""

    secret: bytes = field(repr=False)
    words: str


class Newcomer:
    """The newcomer's half of one attempt."""

    def __init__(self, room: bytes, me: PeerId, host: PeerId, random: Random) -> None:
        self._names = (room, me, host)
        self._host = host
        self._key = X25519PrivateKey.from_private_bytes(random(32))
        self._public = self._key.public_key().public_bytes_raw()
        self.commit = Commit(_commitment(self._names, self._public))
        self._answer: Answer | None = None

    def on_answer(self, answer: Answer) -> tuple[Reveal, Paired] | None:
        """What to reveal, and the result; None if the answer is to another attempt.

        Raises PeerError for a second, different answer: to its author our key is no secret.
        """
        if answer.commitment != self.commit.commitment:
            return None
        if self._answer is not None and answer != self._answer:
            raise PeerError(f"From {short_id(self._host)}: two answers to one pairing came.")
        paired = _result(self._names, self._host, self._key, answer.public, self._public, answer)
        self._answer = answer
        return Reveal(self._public), paired


class Host:
    """The host's half of one attempt."""

    def __init__(
        self, room: bytes, newcomer: PeerId, me: PeerId, commit: Commit, random: Random
    ) -> None:
        self._names = (room, newcomer, me)
        self._newcomer = newcomer
        self._key = X25519PrivateKey.from_private_bytes(random(32))
        self.answer = Answer(commit.commitment, self._key.public_key().public_bytes_raw())

    def on_reveal(self, reveal: Reveal) -> Paired:
        """The result. Raises PeerError if this is not what the newcomer had committed to."""
        if _commitment(self._names, reveal.public) != self.answer.commitment:
            raise PeerError(
                f"From {short_id(self._newcomer)}: a pairing came with another key than committed "
                "to; it was ignored."
            )
        return _result(
            self._names, self._newcomer, self._key, reveal.public, reveal.public, self.answer
        )


_Names = tuple[bytes, PeerId, PeerId]
"""Room, newcomer, host."""


def _commitment(names: _Names, public: bytes) -> bytes:
    return hashlib.sha256(signing_text(b"pairing commitment", *names, public)).digest()


def _result(
    names: _Names, peer: PeerId, mine: X25519PrivateKey, theirs: bytes, newcomer: bytes, ans: Answer
) -> Paired:
    """`newcomer`: its public key; the host's is in its answer `ans`."""
    try:
        shared = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:  # a point of small order: the secret would be known to all
        raise PeerError(f"From {short_id(peer)}: a pairing with an unsafe key came.") from None
    transcript = signing_text(b"pairing", *names, ans.commitment, newcomer, ans.public)
    both = HKDF(hashes.SHA256(), 40, None, transcript).derive(shared)
    number = int.from_bytes(both[32:], "big")
    words = [WORDS[number >> 10 * place & 1023] for place in range(COMPARED_WORDS)]
    return Paired(both[:32], " ".join(words))
