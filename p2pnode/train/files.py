"""Training text that is held in memory: plain files and lines of JSON.

What counts as text is decided by content alone (it decodes as UTF-8), so that two machines with
the same files read the same text. May import: manifest, sources, limits, errors.
"""

from __future__ import annotations

import codecs
import dataclasses
import hashlib
from typing import Any, Literal

from p2pnode.errors import DataError, told
from p2pnode.limits import LIMITS, MIB, Limits
from p2pnode.sources.lines import is_lines, read_lines
from p2pnode.sources.listing import Listing, Skipped, missing
from p2pnode.train.manifest import FileEntry, Manifest

_CHUNK = 1 * MIB


@dataclasses.dataclass(frozen=True)
class Texts:
    """The files of a manifest with their contents, in manifest order."""

    manifest: Manifest
    contents: tuple[bytes, ...]
    skipped: Skipped


def read_listing(listing: Listing, limits: Limits = LIMITS, column: str = "text") -> Texts:
    """Read all files of a listing: plain text, and lines of JSON, of which one column is taken.
    Raises DataError."""
    spec, skipped = listing.spec, listing.skipped
    entries: list[FileEntry] = []
    contents: list[bytes] = []
    total = 0
    for name, path in listing.files:
        left = limits.data_bytes - total
        form: Literal["text", "documents"] = "documents" if is_lines(name) else "text"
        try:
            with listing.open(path) as file:
                if form == "documents":
                    raw = read_lines(file, name, column, left, skipped)
                else:
                    raw = _read_text(file, left + 1)
        except FileNotFoundError:
            if not listing.local:
                raise missing(path, local=False) from None  # or the text would depend on luck
            skipped.other += 1  # a link whose target is gone
            continue
        except UnicodeDecodeError:
            skipped.binary += 1
            continue
        except DataError:
            raise
        except Exception as error:  # every kind of source has its own
            raise DataError(f"Cannot read {path!r}: {told(error)}") from None
        if not raw:
            skipped.empty += 1
            continue
        total += len(raw)
        if total > limits.data_bytes:
            raise _too_large(spec, total, limits)
        entries.append(FileEntry(name, len(raw), hashlib.sha256(raw).hexdigest(), form))
        contents.append(raw)
        if len(entries) > limits.data_files:
            raise DataError(
                f"{spec!r} has more than {limits.data_files} text files; join them into fewer."
            )
    if not entries:
        raise DataError(f"{spec!r} has no text in it (left out: {skipped}).")
    manifest = Manifest("files", tuple(entries))
    manifest.check()
    return Texts(manifest, tuple(contents), skipped)


def _read_text(file: Any, most: int) -> bytes:
    """Up to `most` bytes. Raises UnicodeDecodeError, for most binaries at the first piece."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    parts: list[bytes] = []
    left = most
    while left and (part := file.read(min(left, _CHUNK))):
        decoder.decode(part)
        parts.append(part)
        left -= len(part)
    if left:  # else cut off, perhaps inside a character
        decoder.decode(b"", final=True)
    return b"".join(parts)


def _too_large(spec: str, size: int, limits: Limits) -> DataError:
    return DataError(
        f"{spec!r} has at least {size} bytes of text; at most {limits.data_bytes} fit. "
        "Choose a part of it."
    )


def split_blob(manifest: Manifest, blob: bytes) -> tuple[bytes, ...]:
    """The manifest's files cut from their concatenation and checked by hash. Raises DataError."""
    if manifest.kind != "files":
        raise DataError("The built-in text is made by each node, not transferred.")
    if len(blob) != manifest.size:
        raise DataError(
            f"The transferred text has {len(blob)} bytes; its manifest says {manifest.size}."
        )
    contents: list[bytes] = []
    start = 0
    for entry in manifest.files:
        part = blob[start : start + entry.size]
        start += entry.size
        if hashlib.sha256(part).hexdigest() != entry.sha256:
            raise DataError(f"The transferred text of {entry.name!r} does not match its hash.")
        contents.append(part)
    return tuple(contents)
