"""Bytes that are kept on disk and read when they are needed, in a file that has no name.

May import: errors.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from p2pnode.errors import DiskFullError

ROOM = 4
"""So many times what is written must be free: a full disk harms more than this program."""


def spool(folder: Path, payloads: Sequence[bytes | bytearray | memoryview]) -> list[memoryview]:
    """Read-only views of the same bytes in a temporary file of `folder`. Its space is given back
    when the last view is gone, or with the process, however that ends. Raises DiskFullError."""
    total = sum(len(payload) for payload in payloads)
    try:
        if shutil.disk_usage(folder).free < ROOM * total:
            raise DiskFullError(f"{folder} is nearly full.")
        with tempfile.TemporaryFile(dir=folder) as file:
            file.writelines(payloads)
            file.flush()
            view = memoryview(mmap.mmap(file.fileno(), total, access=mmap.ACCESS_READ))
    except OSError as error:
        raise DiskFullError(f"Cannot write to {folder}: {error.strerror}.") from None
    views = []
    for payload in payloads:
        views.append(view[: len(payload)])
        view = view[len(payload) :]
    return views
