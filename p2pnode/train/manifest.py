"""The data manifest: what text a run trains on, as names, sizes and content hashes.

May import: limits, errors.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from p2pnode.errors import DataError, told
from p2pnode.limits import LIMITS

Hex64 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file: its path relative to the folder (`/` between parts), bytes, SHA-256.

    Of a text, both are of what is read from it; of a table, `size` is of the file and `sha256` of
    its footer.
    """

    name: Annotated[str, Meta(min_length=1, max_length=1_024)]
    size: Annotated[int, Meta(ge=1, le=2**53)]
    sha256: Hex64
    form: Literal["text", "documents"] = "text"
    """`documents`: byte 0 stands between the documents of the file."""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A row group of a table, by what its column gives under the run's tokenizer."""

    file: Annotated[int, Meta(ge=0, lt=LIMITS.data_files)]
    """Position in `Manifest.files`."""
    index: Annotated[int, Meta(ge=0, lt=2**31)]
    """Which row group of the file."""
    rows: Annotated[int, Meta(ge=1, le=2**31)]
    tokens: Annotated[int, Meta(ge=1, le=LIMITS.group_bytes)]
    sha256: Hex64
    """Of the ids, each `Manifest.id_bytes` bytes, little-endian, unsigned; every document is ended
    by the separator."""


class Encoded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a text in files becomes under a tokenizer that is not bytes: as of a Group."""

    tokens: Annotated[int, Meta(ge=1, le=2 * LIMITS.data_bytes)]
    sha256: Hex64


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The text of a run. Files are sorted by the UTF-8 bytes of their names, without doubles."""

    kind: Literal["builtin", "files", "table"]
    files: Annotated[tuple[FileEntry, ...], Meta(min_length=1, max_length=LIMITS.data_files)]
    encoded: Encoded | None = None
    column: Annotated[str, Meta(max_length=256)] = ""
    """Of tables: where the text is."""
    groups: Annotated[tuple[Group, ...], Meta(max_length=LIMITS.data_groups)] = ()
    """Row groups that the run reads, ascending by (file, index)."""
    id_bytes: Literal[1, 2, 4] = 1
    """Of tables, and of what is `encoded`: size of a token id."""
    source: Annotated[str, Meta(pattern=r"^(hf://[!-~]{1,1000})?$")] = ""
    """Where members may read a table themselves; hub addresses only (see THREATS)."""
    tokenizer_bytes: Annotated[int, Meta(ge=0, le=LIMITS.tokenizer_bytes)] = 0
    """Size of the tokenizer file, which is sent before the text; 0 for bytes."""

    def canonical(self) -> bytes:
        """The one JSON form (sorted keys, no spaces)."""
        return msgspec.json.encode(self, order="sorted")

    def hash(self) -> str:
        """SHA-256 of the canonical form, 64 hex digits: `RunConfig.data`."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes that hold the text: the files', or those of the ids of a table's row groups."""
        if self.kind == "table":
            return sum(self.id_bytes * group.tokens for group in self.groups)
        return sum(entry.size for entry in self.files)

    @property
    def held_bytes(self) -> int:
        """Bytes of it that are in memory at the same time."""
        if self.kind == "table":
            return min(self.size, LIMITS.token_memory_bytes)
        ids = self.id_bytes * self.encoded.tokens if self.encoded is not None else 0
        return self.size + ids

    @property
    def shared(self) -> bool:
        """Whether the text is small enough to be handed to members that lack it."""
        return self.kind != "builtin" and self.size <= LIMITS.shared_data_bytes

    @property
    def blob_size(self) -> int:
        """Bytes that are handed to such members: tokenizer file, then text."""
        return self.tokenizer_bytes + (self.size if self.shared else 0)

    def check(self) -> None:
        """Raise DataError if names are out of order, double, or not plain relative paths."""
        names = [entry.name.encode("utf-8", "surrogatepass") for entry in self.files]
        if any(a >= b for a, b in itertools.pairwise(names)):
            raise DataError("The data manifest is not sorted by name, or names a file twice.")
        for entry in self.files:
            parts = entry.name.split("/")
            if any(part in ("", ".", "..") for part in parts) or not entry.name.isprintable():
                raise DataError(f"The data manifest has an unusable file name: {entry.name!a}.")
        places = [(group.file, group.index) for group in self.groups]
        if any(a >= b for a, b in itertools.pairwise(places)):
            raise DataError("The data manifest names a row group twice, or out of order.")
        if bool(self.groups) != (self.kind == "table") or any(
            file >= len(self.files) for file, _ in places
        ):
            raise DataError("The data manifest names row groups that its files do not have.")


def parse_manifest(raw: bytes) -> Manifest:
    """Decode and check a manifest from a peer. Raises DataError with a sentence."""
    if len(raw) > LIMITS.manifest_bytes:
        raise DataError(
            f"The data manifest has {len(raw)} bytes; at most {LIMITS.manifest_bytes} are read."
        )
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise DataError(f"Not a data manifest: {told(error)}.") from None
    manifest.check()
    return manifest
