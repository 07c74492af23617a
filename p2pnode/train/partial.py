"""Parts of a state under way, on disk, so that a node that is started again goes on with them.

One file: name of the blob (32 bytes), its size (8), the SHA-256 of every part, then the blob, with
holes where parts are missing. It is only memory: whoever reads it checks every part.

May import: nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

_HEADER = struct.Struct("<32sQ")


class PartialFile:
    """The one file of a node's folder. Where it cannot be written nothing is kept."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.partial"
        self._root = b""

    def store(self, root: bytes, size: int, hashes: bytes, start: int, payload: memoryview) -> None:
        """Keep bytes from offset `start` of the blob on."""
        with contextlib.suppress(OSError):
            if root != self._root or not self.path.exists():
                self._create(root, size, hashes)
            with open(self.path, "r+b") as file:
                file.seek(_HEADER.size + len(hashes) + start)
                file.write(payload)

    def _create(self, root: bytes, size: int, hashes: bytes) -> None:
        self.discard()
        with open(self.path, "xb") as file:
            file.write(_HEADER.pack(root, size) + hashes)
            file.truncate(_HEADER.size + len(hashes) + size)
        self._root = root

    def recall(
        self, root: bytes, count: Callable[[int], int]
    ) -> tuple[int, bytes, bytearray] | None:
        """(size, hashes, blob), none of it checked; None if there is nothing of this blob.
        `count`: the number of parts of a blob of some size."""
        try:
            with open(self.path, "rb") as file:
                found, size = _HEADER.unpack(file.read(_HEADER.size))
                length = os.fstat(file.fileno()).st_size
                hashed = 32 * count(size)
                if found != root or length != _HEADER.size + hashed + size:
                    return None
                hashes, blob = file.read(hashed), bytearray(size)
                file.readinto(blob)
        except (OSError, struct.error):
            return None
        self._root = root
        return size, hashes, blob

    def discard(self) -> None:
        """It is of no more use."""
        self._root = b""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
