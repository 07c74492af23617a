"""What text each slot reads: a pure function of (manifest, tokenizer, seed, step, slot).

The text is cut into disjoint windows of seq_len + 1 tokens. Some are held out for good; the others
are read in the order of a keyed permutation, a new one each epoch, so that no window comes twice in
an epoch and nothing but integers decides which comes when.

May import: corpus, files, manifest, permute, tables, tokenizer, windows, sources, config, limits,
errors.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from p2pnode.config import RunConfig
from p2pnode.errors import DataError, SourceAwayError
from p2pnode.limits import LIMITS
from p2pnode.sources.listing import Listing, Skipped, list_files
from p2pnode.sources.proxied import DataProxy, list_either
from p2pnode.sources.retry import PATIENCE, Patience
from p2pnode.sources.units import UnitFolder
from p2pnode.train import corpus, files, tables
from p2pnode.train.manifest import Encoded, FileEntry, Manifest
from p2pnode.train.permute import mix64
from p2pnode.train.tables import Need
from p2pnode.train.tokenizer import Tokenizer, byte_tokenizer, probe
from p2pnode.train.windows import (
    BuiltinText,
    HeldText,
    Text,
    Tokens,
    UnitText,
    compact_dtype,
    id_bytes_of,
    token_hash,
)

BUILTIN = "builtin"
_LEAST_WINDOWS = 20
"""Of so many, one is held out."""
_AHEAD_STEPS = 64
"""Steps whose text is fetched ahead: minutes, for what takes seconds to come."""


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


class Dataset:
    """The text of a run with its manifest. Made by `open_dataset` or `from_blob`."""

    def __init__(
        self,
        manifest: Manifest,
        text: Text,
        tokenizer: Tokenizer,
        contents: tuple[bytes, ...] = (),
        skipped: Skipped | None = None,
    ) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.skipped = skipped or Skipped()
        self._text = text
        self._contents = contents

    @classmethod
    def from_blob(
        cls, manifest: Manifest, blob: bytes, tokenizer: Tokenizer | None = None
    ) -> Dataset:
        """A dataset from a text received as one `blob()`, without the tokenizer file before it.
        Raises DataError unless all hashes fit."""
        tokenizer = tokenizer or byte_tokenizer()
        if manifest.kind == "table":
            parts = tables.split_units(manifest, blob)
            text = tables.open_units(manifest, lambda unit: parts[unit], None)
            for unit in range(len(parts)):
                text.units.get(unit)  # raises if it is not what the manifest says
            return cls(manifest, text, tokenizer)
        contents = files.split_blob(manifest, blob)
        text_, encoded, _ = _held(manifest, contents, tokenizer)
        _check_encoded(encoded, manifest)
        return cls(manifest, text_, tokenizer, contents)

    @property
    def description(self) -> str:
        """One line for people."""
        if self.manifest.kind == "builtin":
            return "built-in English text"
        left_out = f"left out: {self.skipped}"
        if self.manifest.kind == "table":
            groups = self.manifest.groups
            return (
                f"{len(groups)} row groups of {len(self.manifest.files)} files, "
                f"{sum(group.rows for group in groups)} rows, "
                f"{sum(group.tokens for group in groups)} tokens ({left_out})"
            )
        encoded = self.manifest.encoded
        tokens = f", {encoded.tokens} tokens" if encoded is not None else ""
        return f"{len(self.manifest.files)} files, {self.manifest.size} bytes{tokens} ({left_out})"

    def matches(self, manifest: Manifest) -> bool:
        """True if this is exactly the text of `manifest`."""
        return self.manifest == manifest

    def check(self, run: RunConfig) -> None:
        """Raise DataError if this is not the run's text or too little for one step of it."""
        if run.tokenizer != self.tokenizer.name or run.model.vocab < self.tokenizer.vocabulary:
            raise DataError(
                f"The run reads text with another tokenizer than the one here "
                f"({run.tokenizer[:12]}, not {self.tokenizer.name[:12]}), or has too small a "
                f"vocabulary for it ({run.model.vocab}, of {self.tokenizer.vocabulary} tokens)."
            )
        if run.probe and run.probe != probe(self.tokenizer):
            raise DataError(
                "The tokenizer encodes otherwise here than at the host: the versions of the "
                "package `tokenizers` differ. Install the same one on both machines."
            )
        if self.manifest.hash() != run.data:
            raise DataError(
                "The text here is not the text of the run: "
                f"its manifest is {self.manifest.hash()[:12]}, the run's is {run.data[:12]}."
            )
        training, heldout = self._text.counts(run.model.seq_len + 1)
        needed = run.slots * run.micro_batch
        if training < needed or heldout < 1:
            least = max(needed * _LEAST_WINDOWS // (_LEAST_WINDOWS - 1) + 1, _LEAST_WINDOWS)
            tokens = least * (run.model.seq_len + 1)
            raise DataError(
                f"The text is too small: {self.manifest.size} bytes; one step of this run reads "
                f"{needed} pieces of {run.model.seq_len + 1} tokens, so at least {tokens} tokens "
                "are needed (with the byte tokenizer, bytes)."
            )

    # Slots

    def slot(self, step: int, slot: int, run: RunConfig) -> tuple[Tokens, Tokens]:
        """Inputs and targets of one training slot, each int32 [micro_batch, seq_len].

        Raises DataError, SourceAwayError if the text is not here and cannot be had now.
        """
        length = run.model.seq_len + 1
        return _slot([self._text.training(i, length) for i in self._windows(step, slot, run)])

    def heldout_slot(self, index: int, run: RunConfig) -> tuple[Tokens, Tokens]:
        """Inputs and targets of held-out slot `index`, as `slot`; short texts come round again."""
        length = run.model.seq_len + 1
        _, heldout = self._text.counts(length)
        first = index * run.micro_batch
        return _slot(
            [self._text.heldout((first + i) % heldout, length) for i in range(run.micro_batch)]
        )

    def token_hash(self, step: int, slot: int, run: RunConfig) -> bytes | None:
        """Of a training slot (see `windows.token_hash`); None if its text is not here now. Raises
        DataError."""
        try:
            return token_hash(*self.slot(step, slot, run))
        except SourceAwayError:
            return None

    def check_intact(self) -> None:
        """Raise DataError if the text in memory is not what was read any more."""
        if not self._text.intact():
            raise DataError(
                "The run's text has changed in this machine's memory, which is damaged. The others "
                "go on without it; have its memory tested before it takes part again."
            )

    def _windows(self, step: int, slot: int, run: RunConfig) -> list[int]:
        """The training windows of a slot."""
        length = run.model.seq_len + 1
        training, _ = self._text.counts(length)
        first = (step * run.slots + slot) * run.micro_batch
        found = []
        for position in range(first, first + run.micro_batch):
            epoch, index = divmod(position, training)
            found.append(self._text.place(index, length, _key(run, epoch)))
        return found

    # Text that is fetched while the run goes on

    def prepare(self, run: RunConfig) -> None:
        """Fetch what has to be here before the first step: the held-out text. Raises DataError,
        SourceAwayError."""
        if isinstance(self._text, UnitText) and run.eval_every:
            windows = run.eval_slots * run.micro_batch
            units = self._text.heldout_units(windows, run.model.seq_len + 1)
            self._text.units.keep(units)
            for unit in units:
                self._text.units.get(unit)

    def fetch_ahead(self, step: int, run: RunConfig) -> None:
        """Fetch in the background what this step and the next ones may need. Returns at once."""
        if not isinstance(self._text, UnitText):
            return
        last = max(step, min(step + _AHEAD_STEPS, run.steps - 1))
        self._text.units.want(self._units(step, last, run))

    @property
    def remote(self) -> bool:
        """Whether text is fetched while the run goes on."""
        return isinstance(self._text, UnitText)

    def lacks(self, step: int, run: RunConfig) -> bool:
        """Whether some text that this step may need is not here yet. Answers at once, after a
        `fetch_ahead` of the step."""
        text = self._text
        if not isinstance(text, UnitText):
            return False
        return any(not text.units.has(unit) for unit in self._units(step, step, run))

    def _units(self, first_step: int, last_step: int, run: RunConfig) -> list[int]:
        """Units that these steps may need, soonest first."""
        assert isinstance(self._text, UnitText)
        length = run.model.seq_len + 1
        training, _ = self._text.counts(length)
        windows = run.slots * run.micro_batch
        first = first_step * windows
        last = (last_step + 1) * windows - 1
        found: dict[int, None] = {}
        for epoch in range(first // training, last // training + 1):
            start = max(first - epoch * training, 0)
            stop = min(last - epoch * training, training - 1)
            found |= dict.fromkeys(self._text.units_of(start, stop, length, _key(run, epoch)))
            if len(found) == len(self.manifest.groups):
                break  # all there is
        return list(found)

    @property
    def problem(self) -> str:
        """Why text that is fetched ahead does not come; empty if it does."""
        return self._text.units.problem if isinstance(self._text, UnitText) else ""

    def in_run(self, notify: Callable[[], object] | None) -> None:
        """From now on `slot` waits for no source: it raises SourceAwayError for text that was not
        fetched ahead, and `notify` is called, in any thread, when text has come or could not be
        had. None: the run is over, nothing is fetched ahead any more."""
        if isinstance(self._text, UnitText):
            self._text.units.in_run(notify)

    # Handing it on

    def blob(self) -> bytes:
        """The tokenizer file, then the text unless that is too large, for a peer that lacks them:
        files in manifest order, or ids of row groups. DataError if there is nothing to send."""
        if self.manifest.kind == "builtin":
            raise DataError("the built-in text is made by each node, not transferred")
        if not self.manifest.blob_size:
            raise DataError(
                f"The text has {self.manifest.size} bytes; at most {LIMITS.shared_data_bytes} are "
                "sent to peers. Copy the files to the other machines and give --data there."
            )
        parts = [self.tokenizer.file]
        if self.manifest.shared:
            if isinstance(self._text, UnitText):
                parts += [self._text.units.get(i) for i in range(len(self.manifest.groups))]
            else:
                parts += self._contents
        return b"".join(parts)


def _key(run: RunConfig, epoch: int) -> int:
    return mix64(run.seed ^ mix64(epoch))


def _slot(windows: list[Tokens]) -> tuple[Tokens, Tokens]:
    ids = np.stack(windows)
    return np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])


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
