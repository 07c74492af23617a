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


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One text: a file's path relative to the folder (`/` between parts), bytes, SHA-256."""

    name: Annotated[str, Meta(min_length=1, max_length=1_024)]
    size: Annotated[int, Meta(ge=1, le=2**53)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a run. Files are sorted by the UTF-8 bytes of their names, without doubles."""

    kind: Literal["builtin", "files"]
    files: Annotated[tuple[FileEntry, ...], Meta(min_length=1, max_length=LIMITS.data_files)]

    def canonical(self) -> bytes:
        """The one JSON form (sorted keys, no spaces)."""
        return msgspec.json.encode(self, order="sorted")

    def hash(self) -> str:
        """SHA-256 of the canonical form, 64 hex digits: `RunConfig.data`."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all texts together."""
        return sum(entry.size for entry in self.files)

    def check(self) -> None:
        """Raise DataError if names are out of order, double, or not plain relative paths."""
        names = [entry.name.encode("utf-8", "surrogatepass") for entry in self.files]
        if any(a >= b for a, b in itertools.pairwise(names)):
            raise DataError("the data manifest is not sorted by name, or names a file twice")
        for entry in self.files:
            parts = entry.name.split("/")
            if any(part in ("", ".", "..") for part in parts) or not entry.name.isprintable():
                raise DataError(f"the data manifest has an unusable file name: {entry.name!a}")


def parse_manifest(raw: bytes) -> Manifest:
    """Decode and check a manifest from a peer. Raises DataError with a sentence."""
    if len(raw) > LIMITS.manifest_bytes:
        raise DataError(
            f"the data manifest has {len(raw)} bytes; at most {LIMITS.manifest_bytes} are read"
        )
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise DataError(f"not a data manifest: {told(error)}") from None
    manifest.check()
    return manifest
