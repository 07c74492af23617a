"""`eval`: how well a checkpoint predicts held-out text, or a text of one's own.

May import: texts, train, sources, node_config, limits, errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from p2pnode.errors import DataError, SourceAwayError
from p2pnode.limits import LIMITS, MIB
from p2pnode.node_config import TextChoice
from p2pnode.sources.listing import Listing, list_files
from p2pnode.texts import text_of_resumed_run
from p2pnode.train.arithmetic import kernels
from p2pnode.train.evaluate import Batch, Score, evaluate, heldout_batches, text_batches
from p2pnode.train.files import read_listing
from p2pnode.train.generate import check_fits
from p2pnode.train.open_data import builtin_manifest
from p2pnode.train.tables import check_files, documents, is_table
from p2pnode.train.trained import Trained, open_trained

_TEXT_LIMITS = dataclasses.replace(LIMITS, data_bytes=64 * MIB)
"""Files that are held in memory while they are read."""


def evaluate_checkpoint(
    checkpoint: Path,
    choice: TextChoice,
    *,
    most: int | None = None,
    floats: bool,
    reference: bool,
) -> int:
    """Print loss and bits per byte of the run's held-out text, or of a text that `choice` names, of
    which at least `most` tokens are read if there are as many. Raises CheckpointError, DataError
    and NonFiniteError."""
    trained = open_trained(checkpoint)
    check_fits(trained.tokenizer, trained.state.config)
    state = trained.state
    told, batches = _text(trained, choice)
    print(f"{trained.path.name}: step {state.step} of {state.config.steps}")
    kernels.use_threads(psutil.cpu_count(logical=False) or 1)
    score = Score()
    for score in evaluate(state, trained.tokenizer, batches, floats=floats, reference=reference):
        _show_progress(score)
        if most is not None and score.tokens >= most:
            told = told.replace("all of", "the beginning of")
            break
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{told}: {score.tokens:,} tokens, {score.bytes:,} bytes")
    print(f"loss           {score.nats_per_token:.4f} nats per token")
    print(f"bits per byte  {score.bits_per_byte:.4f}")
    if floats:
        loss = score.float_loss / score.tokens
        print(f"float32 loss   {loss:.4f} nats per token, what other tools compute")
    return 0


def _text(trained: Trained, choice: TextChoice) -> tuple[str, Iterable[Batch]]:
    """What is read, as a phrase, and the tokens. Raises DataError."""
    state = trained.state
    if choice.data is not None and state.config.data == builtin_manifest().hash():
        return _other_text(trained, choice)
    try:
        dataset = text_of_resumed_run(choice, state.config, trained.path.parent, None)
        dataset.check(state.config)
        if dataset.remote and choice.data is not None:  # its name and its cache are not enough
            with contextlib.suppress(SourceAwayError):
                check_files(dataset.manifest, list_files(choice.data))
        return "held-out text of the run", heldout_batches(dataset, state)
    except SourceAwayError:
        raise
    except DataError:  # it is another text
        if choice.data is None:
            raise DataError(
                "This model was not trained on the built-in text. Give the text that it was "
                "trained on, whose held-out part is read then, or any other with --data."
            ) from None
        return _other_text(trained, choice)


def _other_text(trained: Trained, choice: TextChoice) -> tuple[str, Iterable[Batch]]:
    assert choice.data is not None  # it was named
    texts = _documents(list_files(choice.data, _TEXT_LIMITS), choice.column)
    batches = text_batches(trained.tokenizer, texts, trained.state)
    first = next(batches, None)
    if first is None:
        raise DataError(f"{choice.data!r} has no text in it.")
    return f"all of {choice.data}", itertools.chain([first], batches)


def _documents(listing: Listing, column: str) -> Iterator[str]:
    """Documents of tables as they come, of other files from memory. Raises DataError."""
    if is_table(listing):
        yield from documents(listing, column, listing.skipped)
        return
    for raw in read_listing(listing, _TEXT_LIMITS, column).contents:
        yield from (part for part in raw.decode().split("\0") if part)


def _show_progress(score: Score) -> None:
    """On a terminal, one line that is written over."""
    if sys.stderr.isatty():
        text = f"\r{score.tokens:,} tokens, loss {score.nats_per_token:.4f} so far"
        print(text, end="", file=sys.stderr, flush=True)
