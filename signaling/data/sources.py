"""What a source of text is to the server, which names of files it takes, and what can go wrong.

May import: nothing of ours.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

BLOCK = 1024 * 1024
"""Bytes that are read from a source, and kept, at once."""
_NAME_CHARS = 1_024


class SourceError(Exception):
    """Why a file or a part of it is not to be had; the text is a sentence for the node."""

    status = 502
    """Of HTTP. 502: the source does what no patience cures."""


class MissingError(SourceError):
    """There is no such file, or it is none of a stranger's business: one answer for both."""

    status = 404

    def __init__(self) -> None:
        super().__init__("There is no such file here.")


class BeyondError(SourceError):
    """The file ends before the part that was asked for. `size`: its bytes, -1 if not known."""

    status = 416

    def __init__(self, size: int) -> None:
        super().__init__("The file ends before that.")
        self.size = size


class AwayError(SourceError):
    """The source does not answer, or too many ask for it; it may be better later."""

    status = 503


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of a file. `size` and `version` are of the whole file: if one of them changes, pieces
    that came before are of another file."""

    data: bytes
    size: int
    version: str


class Source(Protocol):
    """Files that the operator named, in a folder or on a web server."""

    def __str__(self) -> str:
        """As the operator wrote it."""

    async def read(self, name: str, start: int, length: int) -> Piece:
        """`length` bytes of a file, fewer only where it ends. Raises SourceError."""

    async def close(self) -> None:
        """Nothing is read any more."""


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a file's name, of which none leads out of a folder. Raises MissingError."""
    parts = tuple(name.split("/"))
    if (
        len(name) > _NAME_CHARS
        or not name.isprintable()
        or "\\" in name
        or any(not part or part.startswith(".") for part in parts)
    ):
        raise MissingError
    return parts
