"""Opening a dataset: from what the owner named, from the run's own source, or from a blob.

May import: corpus, data, files, manifest, tables, tokenizer, windows, sources, limits, errors.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from p2pnode.errors import DataError
from p2pnode.limits import LIMITS
from p2pnode.sources.listing import Listing, list_files
from p2pnode.sources.proxied import DataProxy, list_either
from p2pnode.sources.retry import PATIENCE, Patience
from p2pnode.sources.units import UnitFolder
from p2pnode.train import corpus, files, tables
from p2pnode.train.data import Dataset
from p2pnode.train.manifest import Encoded, FileEntry, Manifest
from p2pnode.train.tables import Need
from p2pnode.train.tokenizer import Tokenizer, byte_tokenizer
from p2pnode.train.windows import BuiltinText, HeldText, compact_dtype, id_bytes_of

BUILTIN = "builtin"


@dataclasses.dataclass(frozen=True)
class Source:
    """Where this machine has text: what `--data` and `--column` say, and how patient to be."""

    spec: str | None = None
    """None: what a run needs, or the built-in text."""
    column: str = "text"
    cache: Path | None = None
    """Folder for encoded row groups."""
    patience: Patience = PATIENCE
    proxy: DataProxy | None = None
    """To what the signaling server serves, for text whose manifest is known."""

    @property
    def folder(self) -> UnitFolder | None:
        """The same as an object."""
        return UnitFolder(self.cache) if self.cache is not None else None


def builtin_manifest() -> Manifest:
    """Manifest of the built-in text: one entry that stands for its first 64 sample passages."""
    return Manifest("builtin", (FileEntry("corpus", 64 * 2_048, corpus.fingerprint()),))


def open_dataset(
    source: Source | str | None,
    manifest: Manifest | None = None,
    tokenizer: Tokenizer | None = None,
    need: Need | None = None,
) -> Dataset:
    """The dataset that `source` names: `builtin`, a path, a pattern, or a URL.

    manifest: what it must be; then tables are not read yet. need: how much of tables is read
    (default: all). Raises DataError if it cannot be read, has no text, or is not the text of
    `manifest`.
    """
    source = source if isinstance(source, Source) else Source(source)
    tokenizer = tokenizer or byte_tokenizer()
    spec = source.spec
    if spec is None and manifest is not None and manifest.source:
        spec = manifest.source
    served = spec is None and _may_be_served(source, manifest)
    if (spec is None and not served) or spec == BUILTIN:
        if spec is None and manifest is not None and manifest.kind != "builtin":
            raise DataError("This run trains on files that are not here; give them with --data.")
        if tokenizer.file:
            raise DataError("The built-in text is read as bytes; a tokenizer needs --data.")
        dataset = Dataset(builtin_manifest(), BuiltinText(), tokenizer)
    else:
        listing = _listing(spec, source, manifest)
        if tables.is_table(listing):
            dataset = _open_table(listing, source, manifest, tokenizer, need)
        else:
            dataset = _open_files(listing, source.column, tokenizer)
    if manifest is not None and not dataset.matches(manifest):
        raise DataError(_difference(dataset.manifest, manifest))
    return dataset


def dataset_of_blob(manifest: Manifest, blob: bytes, tokenizer: Tokenizer | None = None) -> Dataset:
    """The dataset of a text received as one `Dataset.blob()`, without the tokenizer file before it.
    Raises DataError unless all hashes fit."""
    tokenizer = tokenizer or byte_tokenizer()
    if manifest.kind == "table":
        parts = tables.split_units(manifest, blob)
        units = tables.open_units(manifest, lambda unit: parts[unit], None)
        for unit in range(len(parts)):
            units.units.get(unit)  # raises if it is not what the manifest says
        return Dataset(manifest, units, tokenizer)
    contents = files.split_blob(manifest, blob)
    text, encoded, _ = _held(manifest, contents, tokenizer)
    _check_encoded(encoded, manifest)
    return Dataset(manifest, text, tokenizer, contents)


def _may_be_served(source: Source, manifest: Manifest | None) -> bool:
    """Whether the signaling server may have the text of this manifest."""
    if manifest is None or manifest.kind == "builtin" or source.proxy is None:
        return False
    return source.proxy.offer is not None


def _listing(spec: str | None, source: Source, manifest: Manifest | None) -> Listing:
    """The files of a source. Who makes the manifest takes nothing from the signaling server, which
    would then choose the text; afterwards all that it sends is compared with the manifest."""
    if spec is not None and (manifest is None or source.proxy is None):
        return list_files(spec, LIMITS, source.patience)
    assert manifest is not None
    assert source.proxy is not None
    sizes = {
        # Of lines of JSON, the manifest has the size of what is read from them.
        entry.name: entry.size if manifest.kind == "table" or entry.form == "text" else None
        for entry in manifest.files
    }
    return list_either(spec, sizes, source.proxy, LIMITS, source.patience)


def _open_table(
    listing: Listing,
    source: Source,
    manifest: Manifest | None,
    tokenizer: Tokenizer,
    need: Need | None,
) -> Dataset:
    skipped = listing.skipped
    if manifest is None:
        need = need or Need(2**62, 2, 0)
        manifest, skipped = tables.count(listing, source.column, tokenizer, need, source.folder)
    elif manifest.kind != "table":
        raise DataError(f"The run trains on {manifest.kind} text, --data gives tables.")
    fetch = tables.fetcher(manifest, listing, tokenizer)
    text = tables.open_units(manifest, fetch, source.folder)
    return Dataset(manifest, text, tokenizer, (), skipped)


def _open_files(listing: Listing, column: str, tokenizer: Tokenizer) -> Dataset:
    texts = files.read_listing(listing, LIMITS, column)
    text, encoded, removed = _held(texts.manifest, texts.contents, tokenizer)
    texts.skipped.nul_bytes = removed
    manifest = texts.manifest
    if encoded is not None:
        manifest = Manifest(
            "files",
            manifest.files,
            encoded=encoded,
            id_bytes=id_bytes_of(tokenizer.vocabulary),
            tokenizer_bytes=len(tokenizer.file),
        )
    contents = texts.contents if manifest.shared else ()  # no second copy of a large text
    return Dataset(manifest, text, tokenizer, contents, texts.skipped)


def _held(
    manifest: Manifest, contents: tuple[bytes, ...], tokenizer: Tokenizer
) -> tuple[HeldText, Encoded | None, int]:
    """Text in memory from the contents of its files, what its ids are unless they are bytes, and
    how many stray bytes 0 were removed."""
    nul = corpus.SEPARATOR
    removed = 0
    clean: list[bytes] = []
    for entry, raw in zip(manifest.files, contents, strict=True):
        stray = raw.count(nul) if entry.form == "text" else 0
        removed += stray
        clean.append(raw.replace(nul, b"") if stray else raw)
    if not tokenizer.file:
        return HeldText(np.frombuffer(nul.join(clean), np.uint8)), None, removed
    documents = (
        part.decode()
        for entry, raw in zip(manifest.files, clean, strict=True)
        for part in (raw.split(nul) if entry.form == "documents" else (raw,))
    )
    ids = tables.encode(documents, tokenizer)
    id_bytes = id_bytes_of(tokenizer.vocabulary)
    encoded = Encoded(len(ids) // id_bytes, hashlib.sha256(ids).hexdigest())
    return HeldText(np.frombuffer(ids, compact_dtype(id_bytes))), encoded, removed


def _check_encoded(ours: Encoded | None, manifest: Manifest) -> None:
    if ours != manifest.encoded:
        raise DataError(
            "The same text gives other tokens here than at the host: the versions of the package "
            "`tokenizers` differ. Install the same one on both machines."
        )


def _difference(ours: Manifest, theirs: Manifest) -> str:
    if ours.kind != theirs.kind:
        return f"The run trains on {theirs.kind} text, --data gives {ours.kind} text."
    if ours.kind == "builtin":
        return "The built-in text of this version is not that of the run; use the same version."
    here = {entry.name: entry.sha256 for entry in ours.files}
    there = {entry.name: entry.sha256 for entry in theirs.files}
    lacking = sum(name not in here for name in there)
    extra = sum(name not in there for name in here)
    changed = sum(here[name] != there[name] for name in here.keys() & there.keys())
    if not lacking + extra + changed:
        _check_encoded(ours.encoded, theirs)
    return (
        f"The files here are not those of the run: {lacking} are missing, {extra} are extra, "
        f"{changed} differ."
    )
