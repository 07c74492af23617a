"""The text of a run at this machine: found, and kept beside the checkpoints so that a resume finds
the same. Every function may take long: they run in the computing thread.

May import: train, sources, config, node_config, limits, errors.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from p2pnode.config import BYTES, RunConfig, RunOptions
from p2pnode.errors import DataError
from p2pnode.node_config import TextChoice
from p2pnode.sources.hub import tokenizer_path
from p2pnode.sources.listing import KNOWN, missing
from p2pnode.sources.proxied import DataProxy
from p2pnode.train import tokenizer as tokenizers
from p2pnode.train.arithmetic import kernels
from p2pnode.train.data import Dataset
from p2pnode.train.manifest import Manifest, parse_manifest
from p2pnode.train.open_data import Source, dataset_of_blob, open_dataset
from p2pnode.train.tables import Need
from p2pnode.train.tokenizer import Tokenizer, beside, from_json, open_tokenizer, padded, probe

CACHE = "text-cache"
"""Folder of encoded row groups, in the folder of the checkpoints."""


def check_choice(choice: TextChoice) -> None:
    """Raise DataError for a slip that this machine can see now, before anybody is asked to join and
    waits: a path that leads nowhere, a file that is no tokenizer."""
    data, tokenizer = choice.data, choice.tokenizer
    elsewhere = data is None or data in KNOWN or "://" in data or any(c in data for c in "*?[")
    if data is not None and not elsewhere and not os.path.exists(data):
        raise missing(data, local=True)
    if tokenizer is not None and (tokenizer.endswith(".json") or os.path.isfile(tokenizer)):
        _chosen(choice)


def text_of_new_run(choice: TextChoice, options: RunOptions, folder: Path) -> Dataset:
    """The text that the host's owner named, or the built-in one; of tables, as much as the run
    reads. Raises DataError, ConfigError."""
    tokenizer = _chosen(choice) or tokenizers.byte_tokenizer()
    run = options.config(arithmetic_version=1, gates_digest="0" * 64, data="0" * 64)
    need = Need(run.steps * run.slots * run.micro_batch, run.model.seq_len + 1, run.seed)
    return _keep(open_dataset(_source(choice, folder), None, tokenizer, need), folder)


def text_of_resumed_run(
    choice: TextChoice,
    run: RunConfig,
    folder: Path,
    resumed: Path | None,
    proxy: DataProxy | None = None,
) -> Dataset:
    """The same for a run that goes on from a checkpoint of its own, `resumed` (a file or
    folder; None: in `folder`). Raises DataError."""
    tokenizer = _tokenizer_here(choice, run, folder, resumed)
    if tokenizer is None:
        tokenizer = beside(run.tokenizer, folder)  # raises: it says what to do
    manifest = None
    for place in (folder, *(_folder_of(resumed))):
        manifest = manifest or _saved_manifest(place, run.data)
    length = run.model.seq_len + 1
    first = run.at(0)
    need = Need(first.steps * run.slots * run.micro_batch, length, run.seed)
    dataset = open_dataset(_source(choice, folder, proxy), manifest, tokenizer, need)
    if run.data != dataset.manifest.hash():
        raise DataError("The checkpoint was trained on other text; give the same --data as then.")
    return _keep(dataset, folder)


def text_here(
    choice: TextChoice, manifest: Manifest, run: RunConfig, folder: Path, proxy: DataProxy
) -> Dataset | None:
    """The text of another's run, if this machine has it or the signaling server serves it; None if
    it has to come from the others.
    Raises DataError if what the owner named is not it, or is encoded otherwise."""
    tokenizer = _tokenizer_here(choice, run, folder, None)
    if tokenizer is None:
        return None
    known = choice.data is not None or manifest.kind == "builtin" or manifest.source != ""
    if not known and (manifest.shared or proxy.offer is None):
        return None
    return _keep(open_dataset(_source(choice, folder, proxy), manifest, tokenizer), folder)


def text_from_blob(
    choice: TextChoice,
    manifest: Manifest,
    run: RunConfig,
    folder: Path,
    proxy: DataProxy,
    blob: bytes,
) -> Dataset:
    """The text of another's run from what members sent: the tokenizer file, then the text, unless
    that is too large. Raises DataError."""
    raw, text = blob[: manifest.tokenizer_bytes], blob[manifest.tokenizer_bytes :]
    tokenizer = from_json(raw) if run.tokenizer != BYTES else tokenizers.byte_tokenizer()
    if tokenizer.name != run.tokenizer:
        raise DataError("The tokenizer that was sent is not the run's.")
    if manifest.shared:  # then it is here, whatever the owner's source is like
        dataset = dataset_of_blob(manifest, text, tokenizer)
    else:
        dataset = open_dataset(_source(choice, folder, proxy), manifest, tokenizer)
    return _keep(dataset, folder)


def make_run_config(options: RunOptions, dataset: Dataset) -> RunConfig:
    """The configuration of a new run on this text."""
    tokenizer = dataset.tokenizer
    return options.config(
        arithmetic_version=kernels.ARITHMETIC_VERSION,
        gates_digest=kernels.gates_digest(),
        data=dataset.manifest.hash(),
        tokenizer=tokenizer.name,
        probe=probe(tokenizer) if tokenizer.file else "",
        vocabulary=padded(tokenizer.vocabulary),
    )


def _source(choice: TextChoice, folder: Path, proxy: DataProxy | None = None) -> Source:
    return Source(choice.data, choice.column, folder / CACHE, proxy=proxy)


def _chosen(choice: TextChoice) -> Tokenizer | None:
    if choice.tokenizer is None or choice.tokenizer == BYTES:
        return None
    return open_tokenizer(tokenizer_path(choice.tokenizer))


def _tokenizer_here(
    choice: TextChoice, run: RunConfig, folder: Path, resumed: Path | None
) -> Tokenizer | None:
    """The run's tokenizer, from what the owner named or beside checkpoints; None: not here."""
    if run.tokenizer == BYTES:
        return tokenizers.byte_tokenizer()
    chosen = _chosen(choice)
    if chosen is not None:
        if chosen.name != run.tokenizer:
            raise DataError("The tokenizer given with --tokenizer is not the run's; leave it out.")
        return chosen
    for place in (folder, *(_folder_of(resumed))):
        with contextlib.suppress(DataError):
            return beside(run.tokenizer, place)
    return None


def _folder_of(resumed: Path | None) -> tuple[Path, ...]:
    """Where the checkpoint that a run goes on from lies, if that is said."""
    if resumed is None:
        return ()
    return (resumed,) if resumed.is_dir() else (resumed.parent,)


def _manifest_name(digest: str) -> str:
    return f"manifest-{digest[:16]}.json"


def _saved_manifest(folder: Path, digest: str) -> Manifest | None:
    try:
        manifest = parse_manifest((folder / _manifest_name(digest)).read_bytes())
    except (OSError, DataError):
        return None  # then the text is looked at anew
    return manifest if manifest.hash() == digest else None


def _keep(dataset: Dataset, folder: Path) -> Dataset:
    """Leave manifest and tokenizer in the folder. Raises DataError if that does not work: a
    checkpoint without its tokenizer is of no use."""
    if dataset.manifest.kind == "builtin":
        return dataset
    files = {_manifest_name(dataset.manifest.hash()): dataset.manifest.canonical()}
    if dataset.tokenizer.file:
        files[tokenizers.file_name(dataset.tokenizer.name)] = dataset.tokenizer.file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, raw in files.items():
            path = folder / name
            if path.exists() and path.read_bytes() == raw:
                continue
            temporary = path.with_suffix(".tmp")
            temporary.write_bytes(raw)
            os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"Cannot write into {folder}: {error.strerror}.") from None
    return dataset
