"""A file object over ranges, for readers that seek: whole blocks, a bounded number of them kept.

May import: limits.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Protocol

from p2pnode.limits import LIMITS, MIB

BLOCK = 1 * MIB
READ_BYTES = 8 * BLOCK
"""Most bytes that one request asks for."""


class Ranges(Protocol):
    """A file that is read by ranges."""

    name: str

    @property
    def size(self) -> int:
        """Bytes."""

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer only where the file ends."""


class BlockFile(io.RawIOBase):
    """Readable, seekable. Not thread-safe."""

    def __init__(self, file: Ranges, most: int = LIMITS.block_cache_bytes) -> None:
        self._file = file
        self._most = max(1, most // BLOCK)
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self.read(-1)

    def read(self, size: int | None = -1) -> bytes:
        """Bytes from here; all that was asked for, unless the file ends."""
        left = max(0, self._file.size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        parts = []
        while length:
            index, skip = divmod(self._at, BLOCK)
            part = self._block(index, (skip + length - 1) // BLOCK + 1)[skip : skip + length]
            if not part:
                break
            parts.append(part)
            self._at += len(part)
            length -= len(part)
        return b"".join(parts)

    def _block(self, index: int, wanted: int) -> bytes:
        """A block; those after it, up to `wanted` in all, are likely to be asked for next."""
        if index not in self._blocks:
            count = 1
            ahead = min(wanted, READ_BYTES // BLOCK, self._most)
            while count < ahead and index + count not in self._blocks:
                count += 1
            raw = self._file.read(index * BLOCK, count * BLOCK)
            for i in range(count):
                self._blocks[index + i] = raw[i * BLOCK : (i + 1) * BLOCK]
            while len(self._blocks) > self._most:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(index)
        return self._blocks[index]
