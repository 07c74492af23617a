"""Documents of JSON lines (`.jsonl`, also compressed): one object a line, its text in one column.

May import: listing, table, limits, errors.
"""

from __future__ import annotations

import gzip
import zlib
from typing import IO, Any

import msgspec

from p2pnode.errors import DataError, SourceAwayError, told
from p2pnode.limits import MIB
from p2pnode.sources.listing import Skipped

_ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_LINE_BYTES = 64 * MIB


def is_lines(name: str) -> bool:
    """Whether a file of this name is read line by line."""
    return name.lower().endswith(_ENDINGS)


def read_lines(file: IO[bytes], name: str, column: str, most: int, skipped: Skipped) -> bytes:
    """The documents of a file, UTF-8, joined by byte 0. Lines that are no object or lack the
    column, blank texts and such are left out and counted; none at all is b"" or a DataError.

    Raises DataError for more than `most` bytes.
    """
    texts: list[bytes] = []
    total = -1
    keys: list[str] = []
    broken = 0
    try:
        with _plain(file, name) as plain:
            while line := plain.readline(_LINE_BYTES):
                if not line.strip():
                    continue
                text = _document(line, column, keys)
                if text is None:
                    broken += 1
                elif not text.strip():
                    skipped.nulls += 1
                else:
                    raw = text.encode("utf-8", "replace").replace(b"\0", b"")
                    texts.append(raw)
                    total += len(raw) + 1
                    if total > most:
                        raise DataError(
                            f"{name} has more than the {most} bytes of text that fit. Choose a "
                            "part of it, or convert it to Parquet, which is not held in memory."
                        )
    except SourceAwayError:
        raise
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{name} cannot be decompressed: {told(error)}") from None
    if broken and not texts:
        there = f" The first object has: {', '.join(keys)}." if keys else ""
        raise DataError(
            f"No line of {name} is a JSON object with a text in {column!a}; name the column with "
            f"--column.{there}"
        )
    skipped.broken += broken
    return b"\0".join(texts)


def _document(line: bytes, column: str, keys: list[str]) -> str | None:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    if not keys:
        keys += [ascii(key)[1:-1][:64] for key in list(row)[:20]]
    text = row.get(column)
    return "" if text is None and column in row else text if isinstance(text, str) else None


def _plain(file: IO[bytes], name: str) -> Any:
    """The file without its compression."""
    ending = name.lower().rsplit(".", 1)[-1]
    if ending == "gz":
        return gzip.GzipFile(fileobj=file)
    if ending == "zst":
        from p2pnode.sources.table import decompressed

        return decompressed(file, "zstd")
    return file
