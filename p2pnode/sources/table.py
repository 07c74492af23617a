"""Texts of a Parquet file, by row groups: one column of one row group is read, nothing else.

Format: https://parquet.apache.org/docs/file-format/. May import: blocks, listing, limits, errors;
the only place for `pyarrow`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Iterator
from typing import Any

from p2pnode.errors import DataError, SourceAwayError, told
from p2pnode.limits import LIMITS, MIB
from p2pnode.sources.blocks import BlockFile, Ranges
from p2pnode.sources.listing import Skipped

SUFFIX = ".parquet"
_MAGIC = b"PAR1"
_BATCH = 256
_FOOTER_BYTES = 64 * MIB


def _arrow() -> Any:
    """pyarrow, where a table is read: it takes 35 MB that other nodes need not have."""
    import pyarrow
    import pyarrow.parquet

    return pyarrow


class GroupError(DataError):
    """One row group cannot be decoded; others of the file may be whole."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """What tells one table file from another without reading it whole."""

    size: int
    footer: str
    """SHA-256 of the footer, which has sizes and places of all row groups."""


@dataclasses.dataclass(frozen=True)
class Footer:
    """A file's own description, read once and used by every thread."""

    shape: Shape
    metadata: Any


def read_footer(file: Ranges, expected: Shape | None = None) -> Footer:
    """Two short reads at the end of a file. Raises DataError, also for a file that is not the
    expected one, before any of it is decoded; SourceAwayError."""
    size = file.size
    if expected is not None and size != expected.size:
        raise _other(file.name)
    tail = file.read(max(0, size - 8), 8)
    if len(tail) < 8 or tail[4:] != _MAGIC:
        raise _no_parquet(file.name, "it does not end as one")
    length = int.from_bytes(tail[:4], "little")
    if not 0 < length <= min(size - 8, _FOOTER_BYTES):
        raise _no_parquet(file.name, "its footer has an impossible length")
    raw = file.read(size - 8 - length, length)
    shape = Shape(size, hashlib.sha256(raw).hexdigest())
    if expected not in (None, shape):
        raise _other(file.name)
    arrow = _arrow()
    try:
        # The reader looks for a footer at the end of something that begins as a file.
        metadata = arrow.parquet.read_metadata(io.BytesIO(_MAGIC + raw + tail))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise _no_parquet(file.name, told(error)) from None
    return Footer(shape, metadata)


class Table:
    """One Parquet file and one of its columns. Not thread-safe."""

    def __init__(self, file: Ranges, footer: Footer, column: str) -> None:
        """Reads nothing yet. Raises DataError if there is no such column of text."""
        self.name = file.name
        self._column = column
        self.shape = footer.shape
        arrow = self._arrow = _arrow()
        try:
            self._file = arrow.parquet.ParquetFile(
                BlockFile(file),
                metadata=footer.metadata,
                pre_buffer=False,
                page_checksum_verification=True,
                thrift_string_size_limit=_FOOTER_BYTES,
                thrift_container_size_limit=LIMITS.data_groups * 64,
            )
            self._index = self._find(column)
        except SourceAwayError:
            raise
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise _no_parquet(file.name, told(error)) from None
        self.groups: int = self._file.metadata.num_row_groups

    def _find(self, column: str) -> int:
        """Position of the column among those that hold values; its type must be text."""
        schema = self._file.schema_arrow
        if column not in schema.names:
            names = ", ".join(ascii(name)[1:-1] for name in schema.names[:20])
            raise DataError(
                f"{self.name} has no column {column!a}; name one with --column: {names}."
            )
        kind, types = schema.field(column).type, self._arrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        checks = ("string", "large_string", "binary", "large_binary", "string_view", "binary_view")
        if not any(getattr(types, f"is_{check}")(kind) for check in checks):
            raise DataError(
                f"{self.name}: the column {column!a} holds {told(kind)}, not text; choose "
                "another with --column."
            )
        schema = self._file.schema
        return next(i for i in range(len(schema)) if schema.column(i).path == column)

    def rows(self, group: int) -> int:
        """Rows of a row group, empty ones included."""
        return int(self._file.metadata.row_group(group).num_rows)

    def texts(self, group: int, skipped: Skipped) -> Iterator[str]:
        """Texts of a row group in order. Rows without text, blank ones and ones that are not UTF-8
        are left out and counted. Raises DataError, GroupError, SourceAwayError."""
        held = self._file.metadata.row_group(group).column(self._index).total_uncompressed_size
        if not 0 <= held <= LIMITS.group_bytes:
            raise DataError(
                f"{self.name}: row group {group} holds {held} bytes of text; at most "
                f"{LIMITS.group_bytes} are read at once. Write the file with smaller row groups."
            )
        try:
            batches = self._file.iter_batches(
                batch_size=_BATCH, row_groups=[group], columns=[self._column], use_threads=False
            )
            for batch in batches:
                for value in batch.column(0):
                    text = _text(value.as_py(), skipped)
                    if text is not None:
                        yield text
        except SourceAwayError:
            raise
        except (self._arrow.ArrowException, OSError, ValueError) as error:
            raise GroupError(
                f"{self.name}: row group {group} cannot be read ({told(error)})."
            ) from None


def _text(value: Any, skipped: Skipped) -> str | None:
    if value is None:
        skipped.nulls += 1
        return None
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            skipped.binary += 1
            return None
    if not value.strip("\0") or value.isspace():
        skipped.nulls += 1
        return None
    return str(value).replace("\0", "")


def _other(name: str) -> DataError:
    return DataError(f"{name} is not the file that the run was started with.")


def _no_parquet(name: str, why: str) -> DataError:
    return DataError(
        f"{name} is not a whole Parquet file, or its server sends other bytes than were asked "
        f"for: {why}."
    )


def decompressed(file: Any, codec: str) -> Any:
    """A readable file without its compression: pyarrow brings codecs that Python lacks."""
    return io.BufferedReader(_arrow().CompressedInputStream(file, codec), MIB)
