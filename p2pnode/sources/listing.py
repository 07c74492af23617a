"""Which files `--data` names: a path, a folder, a pattern, a web address, or an fsspec URL.

May import: http, retry, blocks, limits, errors.
"""

from __future__ import annotations

import dataclasses
import io
import unicodedata
import urllib.parse
from collections.abc import Callable
from typing import IO, Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from p2pnode.errors import DataError, told
from p2pnode.limits import LIMITS, Limits
from p2pnode.sources.blocks import READ_BYTES, BlockFile, Ranges
from p2pnode.sources.http import HttpFile
from p2pnode.sources.retry import PATIENCE, Patience, Transient, retried

T = TypeVar("T")

KNOWN = {"fineweb-edu": "hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT/*.parquet"}
"""Sources with names of their own."""

_PATTERN = "*?["


@dataclasses.dataclass
class Skipped:
    """Directory entries and documents that were left out, by reason."""

    binary: int = 0
    empty: int = 0
    hidden: int = 0
    other: int = 0
    """Links to folders, broken links, devices, pipes, and names that are not printable text;
    beside tables, files that are none."""
    nulls: int = 0
    """Rows without a text, or with nothing but white space."""
    broken: int = 0
    """Lines that are not JSON or lack the column; row groups that cannot be read."""
    nul_bytes: int = 0
    """Bytes 0 inside of texts."""

    def __str__(self) -> str:
        names = {"nul_bytes": "NUL bytes"}
        counts = [
            f"{n} {names.get(reason, reason)}"
            for reason, n in dataclasses.asdict(self).items()
            if n
        ]
        return ", ".join(counts) or "none"


@dataclasses.dataclass(frozen=True)
class Listing:
    """The files that a source names, sorted by the UTF-8 bytes of their names."""

    spec: str
    files: tuple[tuple[str, str], ...]
    """(name, path): the name is the same on every machine, the path is what opens it."""
    skipped: Skipped
    local: bool
    _fs: Any
    _patience: Patience

    def ranges(self, path: str) -> Ranges:
        """A file to be read by ranges. Raises DataError, SourceAwayError."""
        if _is_web(path):
            return HttpFile(path, self._patience)
        if "hf" in _protocols(self._fs):
            return HttpFile(_asked(lambda: self._fs.url(path), path, self._patience, self.local))
        return _FsFile(self._fs, path, self._patience, self.local)

    def open(self, path: str) -> IO[bytes]:
        """The file from its beginning. Local ones raise OSError, others DataError."""
        if self.local:
            return self._fs.open(path, "rb")  # type: ignore[no-any-return]
        return io.BufferedReader(BlockFile(self.ranges(path)), READ_BYTES)


def list_files(spec: str, limits: Limits = LIMITS, patience: Patience = PATIENCE) -> Listing:
    """What `spec` names. Raises DataError with a sentence, SourceAwayError if it may return."""
    spec = KNOWN.get(spec, spec)
    skipped = Skipped()
    if _is_web(spec) and not spec.endswith("/") and not _has_pattern(spec):
        name = _name_of(urllib.parse.unquote(urllib.parse.urlsplit(spec).path)) or "text"
        return Listing(spec, ((name, spec),), skipped, False, None, patience)
    try:
        fs, root = fsspec.core.url_to_fs(spec)
    except ImportError as error:
        raise DataError(_lacking(spec, error)) from None
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot open {spec!r}: {error}") from None
    local = isinstance(fs, LocalFileSystem)

    def ask(call: Callable[[], T]) -> T:
        return _asked(call, spec, patience, local)

    if _has_pattern(root) and not (local and fs.exists(root)):
        found = _matching(ask(lambda: fs.glob(root, detail=True)), root, spec, skipped, limits)
    else:
        info = ask(lambda: fs.info(root))
        if info["type"] == "directory" or (_is_web(spec) and spec.endswith("/")):
            found = _walk(fs, root.rstrip("/") or root, skipped, limits, ask)
        elif info["type"] == "file":
            found = [(_name_of(root), root)]
        else:
            raise DataError(f"{spec!r} is neither a file nor a folder.")
    found.sort(key=lambda item: item[0].encode("utf-8"))
    return Listing(spec, tuple(found), skipped, local, fs, patience)


class _FsFile:
    """A file of an fsspec file system."""

    def __init__(self, fs: Any, path: str, patience: Patience, local: bool) -> None:
        self.name = path
        self._ask: Callable[[Callable[[], Any]], Any] = lambda call: _asked(
            call, path, patience, local
        )
        self._fs = fs
        self._size: int | None = None

    @property
    def size(self) -> int:
        if self._size is None:
            self._size = int(self._ask(lambda: self._fs.info(self.name))["size"])
        return self._size

    def read(self, start: int, length: int) -> bytes:
        stop = min(start + length, self.size)

        def attempt() -> bytes:
            got = bytes(self._fs.cat_file(self.name, start, stop)) if start < stop else b""
            if len(got) != max(0, stop - start):
                raise OSError(f"{len(got)} of {stop - start} bytes came")
            return got

        return self._ask(attempt)  # type: ignore[no-any-return]


def _asked(call: Callable[[], T], name: str, patience: Patience, local: bool) -> T:
    """What a file system answers. Faults of remote ones may pass; each kind has its own."""

    def attempt() -> T:
        try:
            return call()
        except FileNotFoundError:
            raise missing(name, local) from None
        except (PermissionError, NotImplementedError) as error:
            raise DataError(f"Cannot open {name!r}: {told(error)}") from None
        except (DataError, Transient):
            raise
        except Exception as error:
            if local or isinstance(error, ValueError | TypeError):
                raise DataError(f"Cannot open {name!r}: {told(error)}") from None
            raise Transient(told(error) or type(error).__name__) from None

    return retried(attempt, name, patience)


def missing(name: str, local: bool) -> DataError:
    """The error for a name under which nothing is found."""
    if local:
        return DataError(f"There is no file or folder {name!r}; check --data.")
    # fsspec says so of a server that is busy or away, too
    return DataError(
        f"Cannot get {name!r}: its server has nothing of this name, is busy or does not answer. "
        "Check --data, or try again later."
    )


def _walk(
    fs: Any, root: str, skipped: Skipped, limits: Limits, ask: Callable[[Callable[[], Any]], Any]
) -> list[tuple[str, str]]:
    """(name, path) of the regular files below root; folders behind links are not entered."""
    found: list[tuple[str, str]] = []
    seen = 0
    folders = [("", root)]
    while folders:
        prefix, folder = folders.pop()
        entries = ask(lambda folder=folder: fs.ls(folder, detail=True))  # type: ignore[misc]
        seen += len(entries)
        if seen > limits.data_entries:
            raise _too_many(root, limits)
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


def _matching(
    entries: dict[str, Any], root: str, spec: str, skipped: Skipped, limits: Limits
) -> list[tuple[str, str]]:
    """The files that a pattern fits, named from the last folder before the first sign of it."""
    if len(entries) > limits.data_entries:
        raise _too_many(spec, limits)
    first = min(root.index(sign) for sign in _PATTERN if sign in root)
    start = root.rfind("/", 0, first) + 1
    found = []
    for path, entry in entries.items():
        name = unicodedata.normalize("NFC", path[start:])
        if entry["type"] != "file":
            skipped.other += 1
        elif any(part.startswith(".") for part in name.split("/")):
            skipped.hidden += 1
        elif not name or not name.isprintable() or len(name) > 1_024:
            skipped.other += 1
        else:
            found.append((name, path))
    if not found:
        raise DataError(f"No file fits {spec!r}; check --data.")
    return found


def _links_to_file(fs: Any, entry: dict[str, Any]) -> bool:
    """A listing tells of a link itself; only asking for it by name looks behind it."""
    try:
        return bool(entry.get("islink")) and fs.info(entry["name"])["type"] == "file"
    except OSError:
        return False


def _too_many(root: str, limits: Limits) -> DataError:
    return DataError(
        f"{root!r} has more than {limits.data_entries} entries; choose a smaller folder."
    )


def _lacking(spec: str, error: ImportError) -> str:
    if spec.startswith("hf://"):
        return (
            f"{spec!r} needs the package huggingface_hub: pip install 'p2pnode[hf]', or "
            "pip install huggingface_hub."
        )
    return f"Cannot open {spec!r}: {told(error)}"


def _name_of(path: str) -> str:
    return unicodedata.normalize("NFC", path.rsplit("/", 1)[-1])


def is_local(spec: str) -> bool:
    """Whether a source is on this machine, by its looks."""
    spec = KNOWN.get(spec, spec)
    return "://" not in spec or spec.startswith(("file://", "local://"))


def _is_web(spec: str) -> bool:
    return spec.startswith(("http://", "https://"))


def _has_pattern(spec: str) -> bool:
    return any(sign in spec for sign in _PATTERN) and not (_is_web(spec) and "*" not in spec)


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
