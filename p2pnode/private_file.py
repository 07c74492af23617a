"""Small files for this machine's owner alone: mode 0600, replaced whole or not at all.

May import: nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` (folders are made, mode 0700). Raises OSError; the old file then stays.

    A killed process leaves the old content or the new. There is no fsync, because callers are on
    the event loop: after a power cut the file may be empty, so readers must check what they read.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_private(path: Path, most: int) -> bytes | None:
    """The content, or None if the file is missing, unreadable or longer than `most` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError:
        return None
    return content if len(content) <= most else None
