"""`tokenizer train`: a vocabulary made from a text, for `--tokenizer`.

May import: train, sources, limits, errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from p2pnode.errors import DataError, UsageError
from p2pnode.limits import LIMITS, MIB
from p2pnode.sources.listing import Listing, Skipped, list_files
from p2pnode.train.files import read_listing
from p2pnode.train.tables import TableReader, is_table, places
from p2pnode.train.tokenizer import cut, from_json, padded
from p2pnode.train.vocabulary import train

READ_BYTES = 64 * MIB
"""Text that a vocabulary is made from: more hardly changes it. Takes up to 1 GB of memory."""


def train_tokenizer(out: Path, data: str, column: str, size: int, *, force: bool) -> int:
    """Write a tokenizer.json. Raises DataError, UsageError."""
    if out.exists() and not force:
        raise UsageError(f"{out} is there already; --force replaces it.")
    listing = list_files(data, LIMITS)
    texts = _table_texts(listing, column) if is_table(listing) else _texts(listing, column)
    tokenizer = from_json(train(_at_most(texts, READ_BYTES), size))
    temporary = out.with_name(out.name + ".tmp")
    try:
        temporary.write_bytes(tokenizer.file)
        os.replace(temporary, out)
    except OSError as error:
        raise DataError(f"Cannot write {out}: {error.strerror}.") from None
    print(
        f"{out}: {tokenizer.vocabulary} tokens; a model's vocabulary is "
        f"{padded(tokenizer.vocabulary)} with it"
    )
    return 0


def _texts(listing: Listing, column: str) -> Iterator[str]:
    for raw in read_listing(listing, LIMITS, column).contents:
        for document in raw.decode().split("\0"):
            yield from cut(document)


def _table_texts(listing: Listing, column: str) -> Iterator[str]:
    reader = TableReader(listing, column, {})
    for name, group in places(reader, listing, seed=0):
        for text in reader.table(name).texts(group, Skipped()):
            yield from cut(text)


def _at_most(texts: Iterator[str], most: int) -> Iterator[str]:
    """Texts of about `most` bytes. Raises DataError if there are none."""
    left = most
    for text in texts:
        yield text
        left -= len(text.encode())
        if left <= 0:
            return
    if left == most:
        raise DataError("There is no text to make a vocabulary from.")
