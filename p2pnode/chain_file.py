"""The chain of records that the checkpoints in an output folder were made under.

After a restart it tells which of them still count: a node that was away while the group went back
to an older state must not bring a later one. The file is only memory; whoever reads one verifies it
(`protocol.chain.open_chain`). May import: private_file.
"""

from __future__ import annotations

from pathlib import Path

from p2pnode.private_file import read_private, write_private

MAX_BYTES = 1024 * 1024
"""A full chain fits."""


class ChainFile:
    """`out`/records, one file a folder: one node at a time writes there (see folder_lock)."""

    def __init__(self, out: Path) -> None:
        self.path = out / "records"

    def load(self) -> bytes | None:
        """The encoded chain as it was saved, unchecked; None if there is none."""
        return read_private(self.path, MAX_BYTES)

    def save(self, encoded: bytes) -> None:
        """Raises OSError."""
        write_private(self.path, encoded)
