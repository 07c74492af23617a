"""Room codes: made, checked, turned into a room id and a secret, and passed on as an invite.

May import: errors, wordlist.

A generated code is seven words of ten bits each: 60 random bits, then ten bits of checksum, which
tell a mistyped code from the code of a room that does not exist. A code of one's own is accepted
if it would take an attacker long enough to guess. The server sees the room id; trying one guess
against it costs a scrypt evaluation (about 0.4 s and 128 MiB).
"""

from __future__ import annotations

import difflib
import hashlib
import re
import secrets
import unicodedata
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from p2pnode.errors import RoomCodeError
from p2pnode.protocol.wordlist import WORDS

CODE_WORDS = 7
MIN_BITS = 40.0
"""Least estimated entropy of a code of one's own: 14,000 processor years to try them all."""
MAX_CHARS = 128

_INDEX = {word: index for index, word in enumerate(WORDS)}
_RANDOM_BITS = 60
_CHECK_BITS = 10
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**17, 8, 1
_LABEL = b"p2pnode/1 room code"


@dataclass(frozen=True)
class RoomKeys:
    """What a code stands for: `room` (32 bytes) is told to the server, `secret` to nobody.
    `secret` is None where there was no code and the host is yet to tell it."""

    room: bytes
    secret: bytes | None = field(repr=False)


@dataclass(frozen=True)
class Invite:
    """A code and, if stated, the address of the signaling server. `str` gives `CODE@SERVER`."""

    code: str = field(repr=False)
    server: str | None = None

    def __str__(self) -> str:
        return self.code if self.server is None else f"{self.code}@{self.server}"


def generate_code() -> str:
    """A new code of 60 random bits, such as `maple-orbit-tunnel-…` (seven words)."""
    value = secrets.randbits(_RANDOM_BITS)
    value = value << _CHECK_BITS | _checksum(value)
    words = []
    for _ in range(CODE_WORDS):
        words.append(WORDS[value & 1023])
        value >>= 10
    return "-".join(reversed(words))


def parse_invite(text: str) -> Invite:
    """An invite, or a code alone. Raises RoomCodeError if the code is mistyped or too weak."""
    code, at, server = text.strip().partition("@")
    return Invite(check_code(code), server.strip() if at and server.strip() else None)


def check_code(text: str) -> str:
    """The normal form of a code: lower case, words joined by hyphens.

    Raises RoomCodeError, with a sentence, for a generated code with a slip in it and for a code of
    one's own that could be guessed.
    """
    if len(text) > MAX_CHARS:
        raise RoomCodeError(f"A room code has at most {MAX_CHARS} characters.")
    folded = unicodedata.normalize("NFKC", text).casefold()
    if any(unicodedata.category(char).startswith("C") for char in folded.strip()):
        raise RoomCodeError("The room code contains control characters.")
    words = [word for word in re.split(r"[\s\-_‐‑–—]+", folded) if word]
    if not words:
        raise RoomCodeError("The room code is empty.")
    if len(words) >= 4 and sum(word in _INDEX for word in words) > len(words) // 2:
        _check_generated(words)
    elif (bits := estimate_bits(words)) < MIN_BITS:
        raise RoomCodeError(
            f"This room code could be guessed (about {bits:.0f} bits; {MIN_BITS:.0f} are needed). "
            "Leave the code out to have one made."
        )
    return "-".join(words)


def estimate_bits(words: list[str]) -> float:
    """Cautious estimate of what a typed code is worth to a guesser.

    Every run of letters counts as random letters, but at most like a word of a large dictionary
    (13 bits); every run of digits likewise, since it may be a date. Repeated runs count once.
    """
    runs = {run for word in words for run in re.findall(r"[^\W\d_]+|\d+|[^\w]+|_+", word)}
    return sum(min(13.0, len(run) * (3.3 if run.isdigit() else 4.7)) for run in runs)


def derive(code: str) -> RoomKeys:
    """Room id and secret of a checked code. Takes about 0.4 s: run it off the event loop."""
    kdf = Scrypt(salt=_LABEL, length=64, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P)
    both = kdf.derive(code.encode())
    return RoomKeys(room=both[:32], secret=both[32:])


def _check_generated(words: list[str]) -> None:
    """Raise RoomCodeError unless these are seven words of the list with the right checksum."""
    for place, word in enumerate(words, 1):
        if word not in _INDEX:
            near = difflib.get_close_matches(word, WORDS, 1, 0.6)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise RoomCodeError(
                f"The room code is mistyped: word {place}, {word!r}, is not one of its words{hint}"
            )
    if len(words) != CODE_WORDS:
        raise RoomCodeError(
            f"The room code is incomplete: it has {CODE_WORDS} words, not {len(words)}."
        )
    value = 0
    for word in words:
        value = value << 10 | _INDEX[word]
    if _checksum(value >> _CHECK_BITS) != value & 1023:
        raise RoomCodeError(
            "The room code is mistyped: its words do not belong together. Check their order, and "
            "each word with the host."
        )


def _checksum(value: int) -> int:
    digest = hashlib.sha256(b"p2pnode/1 code check" + value.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:2], "big") & 1023
