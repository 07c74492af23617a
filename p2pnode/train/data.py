"""What text each slot reads: a pure function of (manifest, seed, step, slot).

The text is cut into disjoint windows of seq_len + 1 bytes. Some are held out for good; the others
are read in the order of a keyed permutation, a new one each epoch, so that no window comes twice in
an epoch and nothing but integers decides which comes when.

May import: corpus, files, manifest, permute, config, limits, errors.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2pnode.config import RunConfig
from p2pnode.errors import DataError
from p2pnode.limits import LIMITS, MIB
from p2pnode.train import corpus, files
from p2pnode.train.manifest import FileEntry, Manifest
from p2pnode.train.permute import mix64, permute

Tokens = NDArray[np.int32]
"""[B, T] token ids; the byte tokenizer's are the bytes themselves."""

BUILTIN = "builtin"
_HELDOUT_ONE_IN = 20
_HELDOUT_BYTES = 1 * MIB


class Text(Protocol):
    """A text cut into windows of `length` bytes, some of them held out."""

    def counts(self, length: int) -> tuple[int, int]:
        """Numbers of training and of held-out windows."""

    def training(self, index: int, length: int) -> bytes: ...

    def heldout(self, index: int, length: int) -> bytes: ...


class BuiltinText:
    """The procedural corpus; held-out passages have the numbers after the training ones."""

    def counts(self, length: int) -> tuple[int, int]:
        return corpus.PASSAGES, max(1, _HELDOUT_BYTES // length)

    def training(self, index: int, length: int) -> bytes:
        return corpus.passage(index, length)

    def heldout(self, index: int, length: int) -> bytes:
        return corpus.passage(corpus.PASSAGES + index, length)


class FileText:
    """Files joined by byte 0. Windows come in equal groups and the last of each is held out."""

    def __init__(self, contents: tuple[bytes, ...]) -> None:
        self.removed = sum(raw.count(corpus.SEPARATOR) for raw in contents)
        self._text = corpus.SEPARATOR.join(raw.replace(corpus.SEPARATOR, b"") for raw in contents)

    def counts(self, length: int) -> tuple[int, int]:
        windows = len(self._text) // length
        heldout = min(windows // _HELDOUT_ONE_IN, _HELDOUT_BYTES // length)
        return windows - heldout, heldout

    def training(self, index: int, length: int) -> bytes:
        total, heldout, group = self._groups(length)
        if index >= total - heldout:
            raise IndexError(index)
        skipped = min(index // (group - 1), heldout) if heldout else 0
        return self._window(index + skipped, length)

    def heldout(self, index: int, length: int) -> bytes:
        _, heldout, group = self._groups(length)
        if index >= heldout:
            raise IndexError(index)
        return self._window((index + 1) * group - 1, length)

    def _groups(self, length: int) -> tuple[int, int, int]:
        """All windows, held-out windows, windows of a group."""
        training, heldout = self.counts(length)
        total = training + heldout
        return total, heldout, total // heldout if heldout else total

    def _window(self, index: int, length: int) -> bytes:
        return self._text[index * length : (index + 1) * length]


class Dataset:
    """The text of a run with its manifest. Made by `open_dataset` or `from_blob`."""

    def __init__(
        self,
        manifest: Manifest,
        text: Text,
        contents: tuple[bytes, ...] = (),
        skipped: files.Skipped | None = None,
    ) -> None:
        self.manifest = manifest
        self.skipped = skipped or files.Skipped()
        self._text = text
        self._contents = contents

    @classmethod
    def from_blob(cls, manifest: Manifest, blob: bytes) -> Dataset:
        """A dataset from files received as one `blob()`. Raises DataError unless all hashes fit."""
        contents = files.split_blob(manifest, blob)
        return cls(manifest, FileText(contents), contents)

    @property
    def description(self) -> str:
        """One line for people."""
        if self.manifest.kind == "builtin":
            return "built-in English text"
        removed = self._text.removed if isinstance(self._text, FileText) else 0
        nuls = f", {removed} NUL bytes removed" if removed else ""
        return (
            f"{len(self.manifest.files)} files, {self.manifest.size} bytes "
            f"(left out: {self.skipped}{nuls})"
        )

    def matches(self, manifest: Manifest) -> bool:
        """True if this is exactly the text of `manifest`."""
        return self.manifest == manifest

    def check(self, run: RunConfig) -> None:
        """Raise DataError if this is not the run's text or too little for one step of it."""
        if run.tokenizer != "bytes" or run.model.vocab < 256:
            raise DataError("the byte tokenizer needs tokenizer `bytes` and a vocabulary of 256")
        if self.manifest.hash() != run.data:
            raise DataError(
                "The text here is not the text of the run: "
                f"its manifest is {self.manifest.hash()[:12]}, the run's is {run.data[:12]}."
            )
        training, heldout = self._text.counts(run.model.seq_len + 1)
        needed = run.slots * run.micro_batch
        if training < needed or heldout < 1:
            least = max(needed * _HELDOUT_ONE_IN // (_HELDOUT_ONE_IN - 1) + 1, _HELDOUT_ONE_IN)
            raise DataError(
                f"The text is too small: {self.manifest.size} bytes; one step of this run reads "
                f"{needed} pieces of {run.model.seq_len + 1} bytes, so at least "
                f"{least * (run.model.seq_len + 1)} bytes are needed."
            )

    def slot(self, step: int, slot: int, run: RunConfig) -> tuple[Tokens, Tokens]:
        """Inputs and targets of one training slot, each int32 [micro_batch, seq_len]."""
        length = run.model.seq_len + 1
        training, _ = self._text.counts(length)
        first = (step * run.slots + slot) * run.micro_batch
        pieces = []
        for position in range(first, first + run.micro_batch):
            epoch, index = divmod(position, training)
            key = mix64(run.seed ^ mix64(epoch))
            pieces.append(self._text.training(permute(index, training, key), length))
        return _tokens(pieces)

    def heldout_slot(self, index: int, run: RunConfig) -> tuple[Tokens, Tokens]:
        """Inputs and targets of held-out slot `index`, as `slot`; short texts come round again."""
        length = run.model.seq_len + 1
        _, heldout = self._text.counts(length)
        first = index * run.micro_batch
        return _tokens(
            [self._text.heldout((first + i) % heldout, length) for i in range(run.micro_batch)]
        )

    def blob(self) -> bytes:
        """All files, concatenated in manifest order, for a peer that lacks them. DataError if the
        text is built in or larger than is transferred."""
        if self.manifest.kind == "builtin":
            raise DataError("the built-in text is made by each node, not transferred")
        if self.manifest.size > LIMITS.shared_data_bytes:
            raise DataError(
                f"The text has {self.manifest.size} bytes; at most {LIMITS.shared_data_bytes} are "
                "sent to peers. Copy the files to the other machines and give --data there."
            )
        return b"".join(self._contents)


def _tokens(pieces: list[bytes]) -> tuple[Tokens, Tokens]:
    ids = np.frombuffer(b"".join(pieces), np.uint8).reshape(len(pieces), -1).astype(np.int32)
    return np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])


def builtin_manifest() -> Manifest:
    """Manifest of the built-in text: one entry that stands for its first 64 sample passages."""
    return Manifest("builtin", (FileEntry("corpus", 64 * 2_048, corpus.fingerprint()),))


def open_dataset(spec: str | None, manifest: Manifest | None = None) -> Dataset:
    """The dataset `spec` names: `builtin`, a path or an fsspec URL; None is what the manifest
    needs, or the built-in text.

    Raises DataError if it cannot be read, has no text, or is not the text of `manifest`.
    """
    if spec is None or spec == BUILTIN:
        if spec is None and manifest is not None and manifest.kind == "files":
            raise DataError("This run trains on files that are not here; give them with --data.")
        dataset = Dataset(builtin_manifest(), BuiltinText())
    else:
        texts = files.read_texts(spec)
        shared = texts.manifest.size <= LIMITS.shared_data_bytes
        contents = texts.contents if shared else ()  # no second copy in memory of a large text
        dataset = Dataset(texts.manifest, FileText(texts.contents), contents, texts.skipped)
    if manifest is not None and not dataset.matches(manifest):
        raise DataError(_difference(dataset.manifest, manifest))
    return dataset


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
    return (
        f"The files here are not those of the run: {lacking} are missing, {extra} are extra, "
        f"{changed} differ."
    )
