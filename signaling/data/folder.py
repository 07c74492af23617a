"""A folder or a file of the server's machine as a source of text.

May import: sources.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path

from signaling.data.sources import BeyondError, MissingError, Piece, SourceError, parts_of


class Folder:
    """Everything below a folder, or one file, but nothing hidden and nothing that a link leads to
    from there."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError with a sentence if there is nothing to serve."""
        self._path = path
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise ValueError(f"there is no file or folder {str(path)!r}") from None
        if not (real.is_dir() or real.is_file()):
            raise ValueError(f"{str(path)!r} is neither a file nor a folder")
        self._root = real
        self._is_file = real.is_file()

    def __str__(self) -> str:
        return str(self._path)

    async def read(self, name: str, start: int, length: int) -> Piece:
        return await asyncio.to_thread(self._read, parts_of(name), start, length)

    async def close(self) -> None:
        pass

    def _read(self, parts: tuple[str, ...], start: int, length: int) -> Piece:
        try:
            path = self._find(parts)
            # A pipe would keep who opens it waiting for a writer.
            flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            handle = os.open(path, flags)
            try:
                return _piece(handle, start, length)
            finally:
                os.close(handle)
        except (FileNotFoundError, NotADirectoryError, PermissionError, RuntimeError, ValueError):
            raise MissingError from None
        except OSError as error:
            if error.errno == errno.ELOOP:  # Python 3.13's form of the RuntimeError
                raise MissingError from None
            raise SourceError(f"The server cannot read the file ({error.strerror}).") from None

    def _find(self, parts: tuple[str, ...]) -> Path:
        if self._is_file:
            if parts != (self._path.name,):
                raise MissingError
            return self._root
        path = self._root.joinpath(*parts).resolve(strict=True)
        if not path.is_relative_to(self._root):
            raise MissingError
        return path


def _piece(handle: int, start: int, length: int) -> Piece:
    """Part of an open file. Raises SourceError, OSError."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise MissingError
    if start >= status.st_size:
        raise BeyondError(status.st_size)
    os.lseek(handle, start, os.SEEK_SET)
    wanted = min(length, status.st_size - start)
    data = bytearray()
    while len(data) < wanted and (part := os.read(handle, wanted - len(data))):
        data += part
    if len(data) < wanted:
        raise SourceError("The file became shorter while it was read.")
    return Piece(bytes(data), status.st_size, f"{status.st_ino}-{status.st_mtime_ns}")
