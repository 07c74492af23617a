"""`eval`: how well a checkpoint predicts held-out text, or a text of one's own.

May import: texts, train, node_config, limits, errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path

import psutil

from p2pnode.errors import DataError
from p2pnode.limits import LIMITS, MIB
from p2pnode.node_config import TextChoice
from p2pnode.texts import text_of_resumed_run
from p2pnode.train.arithmetic import kernels
from p2pnode.train.evaluate import Batch, Score, evaluate, heldout_batches, text_batches
from p2pnode.train.files import read_texts
from p2pnode.train.generate import check_fits
from p2pnode.train.trained import Trained, open_trained

_TEXT_LIMITS = dataclasses.replace(LIMITS, data_bytes=64 * MIB)
"""A text of this size takes hours; nobody waits for a larger one."""


def evaluate_checkpoint(
    checkpoint: Path, data: str | None, *, floats: bool, reference: bool
) -> int:
    """Print loss and bits per byte. Raises CheckpointError, DataError and NonFiniteError."""
    trained = open_trained(checkpoint)
    check_fits(trained.tokenizer, trained.state.config)
    state = trained.state
    told, batches = _text(trained, data)
    print(f"{trained.path.name}: step {state.step} of {state.config.steps}")
    kernels.use_threads(psutil.cpu_count(logical=False) or 1)
    whole = sum(targets.size for _, targets in batches)
    score = Score()
    for score in evaluate(state, trained.tokenizer, batches, floats=floats, reference=reference):
        _show_progress(score, whole)
    print(f"{told}: {score.tokens:,} tokens, {score.bytes:,} bytes")
    print(f"loss           {score.nats_per_token:.4f} nats per token")
    print(f"bits per byte  {score.bits_per_byte:.4f}")
    if floats:
        loss = score.float_loss / score.tokens
        print(f"float32 loss   {loss:.4f} nats per token, what other tools compute")
    return 0


def _text(trained: Trained, data: str | None) -> tuple[str, list[Batch]]:
    """What is read, as a phrase, and the tokens. Raises DataError."""
    state, tokenizer = trained.state, trained.tokenizer
    dataset = None
    with contextlib.suppress(DataError):  # then it is another text
        folder = trained.path.parent
        dataset = text_of_resumed_run(TextChoice(data), state.config, folder, None)
    if dataset is not None:
        dataset.check(state.config)
        return "held-out text of the run", heldout_batches(dataset, state)
    if data is None:
        raise DataError(
            "This model was not trained on the built-in text. Give the text that it was trained "
            "on, whose held-out part is read then, or any other with --data."
        )
    texts = read_texts(data, _TEXT_LIMITS)
    documents = [part for raw in texts.contents for part in raw.decode().split("\0") if part]
    if not documents:
        raise DataError(f"{data!r} has no text in it.")
    return f"all of {data}", text_batches(tokenizer, documents, state)


def _show_progress(score: Score, whole: int) -> None:
    """On a terminal, one line that is written over."""
    if sys.stderr.isatty():
        end = "\n" if score.tokens == whole else ""
        text = f"\r{score.tokens * 100 // whole} %, loss {score.nats_per_token:.4f} so far"
        print(text, end=end, file=sys.stderr, flush=True)
