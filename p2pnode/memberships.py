"""What a node remembers of its rooms: the newest roster of each, in its home folder.

With it a restarted node registers as the member (or host) that it was: nobody is asked again, the
server may have forgotten everything, and the room's host stays the one whose key it was.
The file is only memory. Whoever reads one verifies it (`protocol.roster.open_roster`).

May import: private_file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from p2pnode.private_file import read_private, write_private

ROOMS = 64
"""Rooms remembered; those not touched for longest are forgotten."""
MAX_BYTES = 64 * 1024
"""An encoded roster of 64 members fits twice."""
_SUFFIX = ".roster"


class Memberships:
    """The rosters under `home`/rooms, one file a room. `room`: the room's id, 32 bytes."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "rooms"

    def path(self, room: bytes) -> Path:
        """Where the roster of a room is kept, for messages to the owner."""
        return self._folder / f"{room.hex()[:32]}{_SUFFIX}"

    def load(self, room: bytes) -> bytes | None:
        """The encoded roster as it was saved, unchecked; None if there is none."""
        return read_private(self.path(room), MAX_BYTES)

    def save(self, room: bytes, encoded: bytes) -> None:
        """Keep this as the newest roster of the room. Raises OSError."""
        write_private(self.path(room), encoded)
        found = sorted(self._folder.glob(f"*{_SUFFIX}"), key=_modified, reverse=True)
        for path in found[ROOMS:]:
            with contextlib.suppress(OSError):
                path.unlink()

    def forget(self, room: bytes) -> None:
        """This node is no member any more."""
        with contextlib.suppress(OSError):
            self.path(room).unlink(missing_ok=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another node of this home has just removed it
        return 0.0
