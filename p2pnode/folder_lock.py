"""One node per output folder: two would remove each other's unfinished files. And one for a key in
a room: the server takes a second for the first come back, and closes the first one's connection.

May import: errors.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import TracebackType

from p2pnode.errors import CheckpointError, IdentityError


class FolderLock:
    """Holds a folder (made if missing) until the block ends, or the process does, however."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> FolderLock:
        """Raises CheckpointError if another process holds it or it cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._folder / "node.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CheckpointError(f"Cannot write to {self._folder}: {error.strerror}.") from None
        try:
            _lock(self._file)
        except OSError:
            os.close(self._file)
            raise CheckpointError(
                f"Another node uses {self._folder}. Give each node on this machine a folder of "
                "its own with --out (and a key of its own with --home)."
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)


class PlaceLock:
    """Holds the place of this machine's key in a room, as FolderLock holds a folder."""

    def __init__(self, home: Path, room: bytes) -> None:
        self._home = home
        self._path = home / "rooms" / f"{room.hex()[:32]}.lock"
        self._file: int | None = None

    def __enter__(self) -> PlaceLock:
        """Raises IdentityError if another process holds it. Where nothing can be locked nothing is
        held: the server notices too, only later."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            _lock(self._file)
        except (BlockingIOError, PermissionError):
            if self._file is None:
                return self
            os.close(self._file)
            raise IdentityError(
                f"Another node on this machine is in this room with the key in {self._home}. Give "
                "each node a key of its own with --home, and a folder of its own with --out."
            ) from None
        except OSError:
            pass
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # Windows keeps a file that is open
                self._path.unlink()
            os.close(self._file)


def _lock(file: int) -> None:
    """Take the lock or raise OSError at once; the system frees it when the file is closed."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
