"""Training text from a file or a folder of files, through fsspec.

What counts as text is decided by content alone (it decodes as UTF-8), so that two machines with
the same files read the same text. May import: manifest, limits, errors.
"""

from __future__ import annotations

import codecs
import dataclasses
import hashlib
import unicodedata
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from p2pnode.errors import DataError
from p2pnode.limits import LIMITS, MIB, Limits
from p2pnode.train.manifest import FileEntry, Manifest

_CHUNK = 1 * MIB


@dataclasses.dataclass
class Skipped:
    """Directory entries that were left out, by reason."""

    binary: int = 0
    empty: int = 0
    hidden: int = 0
    other: int = 0
    """Links to folders, broken links, devices, pipes, and names that are not printable text."""

    def __str__(self) -> str:
        counts = [f"{n} {reason}" for reason, n in dataclasses.asdict(self).items() if n]
        return ", ".join(counts) or "none"


@dataclasses.dataclass(frozen=True)
class Texts:
    """The files of a manifest with their contents, in manifest order."""

    manifest: Manifest
    contents: tuple[bytes, ...]
    skipped: Skipped


def read_texts(spec: str, limits: Limits = LIMITS) -> Texts:
    """Read the file or folder `spec` (a path or an fsspec URL). Raises DataError."""
    try:
        fs, root = fsspec.core.url_to_fs(spec)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"Cannot open {spec!r}: {error}") from None
    try:
        info = fs.info(root)
    except FileNotFoundError:
        raise _missing(fs, spec) from None
    except Exception as error:  # every kind of source has its own
        raise DataError(f"Cannot open {spec!r}: {error}") from None
    skipped = Skipped()
    if info["type"] == "directory":
        paths = _walk(fs, root.rstrip("/") or root, skipped, limits)
    elif info["type"] == "file":
        paths = [(_name_of(root), root)]
    else:
        raise DataError(f"{spec!r} is neither a file nor a folder.")
    return _read(fs, spec, paths, skipped, limits)


def _name_of(path: str) -> str:
    return unicodedata.normalize("NFC", path.rsplit("/", 1)[-1])


def _walk(fs: Any, root: str, skipped: Skipped, limits: Limits) -> list[tuple[str, str]]:
    """(name, path) of the regular files below root; folders behind links are not entered."""
    found: list[tuple[str, str]] = []
    seen = 0
    folders = [("", root)]
    while folders:
        prefix, folder = folders.pop()
        try:
            entries = fs.ls(folder, detail=True)
        except Exception as error:  # as above
            raise DataError(f"Cannot read the folder {folder!r}: {error}") from None
        seen += len(entries)
        if seen > limits.data_entries:
            raise DataError(
                f"{root!r} has more than {limits.data_entries} entries; choose a smaller folder."
            )
        for entry in entries:
            name = _name_of(entry["name"].rstrip("/"))
            if name.startswith("."):
                skipped.hidden += 1
            elif not name.isprintable() or len(prefix + name) > 1_024:
                skipped.other += 1
            elif entry["type"] == "directory" and not entry.get("islink"):
                folders.append((f"{prefix}{name}/", entry["name"]))
            elif entry["type"] == "file" or _links_to_file(fs, entry):
                found.append((prefix + name, entry["name"]))
            else:
                skipped.other += 1
    return found


def _links_to_file(fs: Any, entry: dict[str, Any]) -> bool:
    """A listing tells of a link itself; only asking for it by name looks behind it."""
    try:
        return bool(entry.get("islink")) and fs.info(entry["name"])["type"] == "file"
    except OSError:
        return False


def _read(
    fs: Any,
    spec: str,
    paths: list[tuple[str, str]],
    skipped: Skipped,
    limits: Limits,
) -> Texts:
    entries: list[FileEntry] = []
    contents: list[bytes] = []
    total = 0
    for name, path in sorted(paths, key=lambda item: item[0].encode("utf-8")):
        try:
            with fs.open(path, "rb") as file:
                raw = _read_text(file, limits.data_bytes - total + 1)
        except FileNotFoundError:
            if not isinstance(fs, LocalFileSystem):
                raise _missing(fs, path) from None  # or what is read would depend on its luck
            skipped.other += 1  # a link whose target is gone
            continue
        except UnicodeDecodeError:
            skipped.binary += 1
            continue
        except Exception as error:  # as above
            raise DataError(f"Cannot read {path!r}: {error}") from None
        if not raw:
            skipped.empty += 1
            continue
        total += len(raw)
        if total > limits.data_bytes:
            raise _too_large(spec, total, limits)
        entries.append(FileEntry(name, len(raw), hashlib.sha256(raw).hexdigest()))
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


def _missing(fs: Any, path: str) -> DataError:
    if isinstance(fs, LocalFileSystem):
        return DataError(f"There is no file or folder {path!r}; check --data.")
    # fsspec says so of a server that is busy or away, too
    return DataError(
        f"Cannot get {path!r}: its server has nothing of this name, is busy or does not answer. "
        "Check --data, or try again later."
    )


def _too_large(spec: str, size: int, limits: Limits) -> DataError:
    return DataError(
        f"{spec!r} has at least {size} bytes of text; at most {limits.data_bytes} fit. "
        "Choose a part of it."
    )


def split_blob(manifest: Manifest, blob: bytes) -> tuple[bytes, ...]:
    """The manifest's files cut from their concatenation and checked by hash. Raises DataError."""
    if manifest.kind != "files":
        raise DataError("the built-in text is made by each node, not transferred")
    if len(blob) != manifest.size:
        raise DataError(
            f"the transferred text has {len(blob)} bytes; its manifest says {manifest.size}"
        )
    contents: list[bytes] = []
    start = 0
    for entry in manifest.files:
        part = blob[start : start + entry.size]
        start += entry.size
        if hashlib.sha256(part).hexdigest() != entry.sha256:
            raise DataError(f"the transferred text of {entry.name!r} does not match its hash")
        contents.append(part)
    return tuple(contents)
