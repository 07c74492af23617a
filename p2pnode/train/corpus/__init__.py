"""The built-in training text: English made by rule, the same everywhere, without a download.

Text is a pure function of integers (BLAKE2b in counter mode chooses, nothing else does), so any
part of it can be made anywhere at any time and none of it need be stored.

May import: corpus.topics, corpus.lessons, corpus.grammar.
"""

from __future__ import annotations

import functools
import hashlib

from p2pnode.train.corpus.grammar import Draws
from p2pnode.train.corpus.lessons import LESSONS
from p2pnode.train.corpus.topics import TOPICS, story

SEPARATOR = b"\0"
"""Stands between documents, here and in text read from files."""
PASSAGES = 1 << 32
"""Training passages before the text repeats."""
_KINDS = (*TOPICS, *LESSONS, story, story)
_LEAD = 1_024
"""A passage begins up to this many bytes into its first document (or the next ones)."""


def document(key: bytes) -> str:
    """One document, some 200 to 1,500 ASCII characters, for a key of at most 64 bytes."""
    d = Draws(key)
    return d.one(_KINDS)(d)


def passage(index: int, length: int) -> bytes:
    """`length` bytes of running text number `index` (0 <= index < 2**64).

    Whole documents joined by SEPARATOR, entered and left anywhere, as a window cut from a long
    text would be. Passages of different index share no document.
    """
    head = index.to_bytes(8, "little")
    skip = int.from_bytes(hashlib.blake2b(head, digest_size=2).digest(), "little") % _LEAD
    parts: list[bytes] = []
    have = 0
    while have < skip + length:
        part = document(head + len(parts).to_bytes(4, "little")).encode("ascii") + SEPARATOR
        parts.append(part)
        have += len(part)
    return b"".join(parts)[skip : skip + length]


@functools.cache
def fingerprint() -> str:
    """SHA-256 (hex) of sample passages: nodes whose generators differ notice in time."""
    digest = hashlib.sha256()
    for index in range(64):
        digest.update(passage(index * (PASSAGES >> 6), 2_048))
    return digest.hexdigest()
