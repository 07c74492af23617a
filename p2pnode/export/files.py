"""Files that appear whole or not at all, and never in place of another unless that is wanted.

May import: errors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from p2pnode.errors import ExportError, told


def refuse_existing(paths: Iterable[Path], force: bool) -> None:
    """Raise ExportError if one of the files is there, unless it may be replaced."""
    for path in paths:
        if path.is_dir():
            raise ExportError(f"{path} is a folder; give the name of a file.")
        if path.exists() and not force:
            raise ExportError(f"{path} exists; give --force to replace it.")


def make_folder(path: Path) -> None:
    """Make a folder, with those above it. Raises ExportError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"Cannot make the folder {path}: {error.strerror}") from None


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A name to write a file under, which becomes `path` at the end: a crash leaves the old file,
    the new one or none. Raises ExportError."""
    other = path.with_name(f".{path.name}.tmp")
    try:
        yield other
        with open(other, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(other, path)
    except OSError as error:
        # numpy's own words have no strerror.
        raise ExportError(f"Cannot write {path}: {error.strerror or told(error)}") from None
    finally:
        with contextlib.suppress(OSError):
            other.unlink(missing_ok=True)


def write(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file piece by piece, whole or not at all. Raises ExportError."""
    with unfinished(path) as other, open(other, "wb") as file:
        for part in parts:
            file.write(part)


def remove(path: Path) -> None:
    """Remove a file that may not be there. Raises ExportError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ExportError(f"Cannot remove {path}: {error.strerror}") from None
