"""How well a state predicts a text: the exact loss, and that of its weights in plain float32.

May import: arithmetic, data, float_model, model, state, tokenizer, weights, windows, errors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

import numpy as np

from p2pnode.train import float_model, model
from p2pnode.train.arithmetic import kernels, refusals
from p2pnode.train.data import Dataset
from p2pnode.train.state import State
from p2pnode.train.tokenizer import Tokenizer
from p2pnode.train.weights import Weights
from p2pnode.train.windows import Tokens

Batch = tuple[Tokens, Tokens]
"""Inputs and targets, each int32 [B, T]."""

_LOSS_UNIT = 1 << 24


@dataclasses.dataclass(frozen=True)
class Score:
    """Losses summed over the tokens so far."""

    loss: int = 0
    """Of the exact arithmetic, in units of 2^-24 nats: the same number on every machine."""
    float_loss: float = 0.0
    """Of the plain float32 model, in nats; 0 if it was not asked for."""
    tokens: int = 0
    bytes: int = 0
    """UTF-8 bytes of the predicted tokens; the end of a document has none."""

    @property
    def nats_per_token(self) -> float:
        return self.loss / _LOSS_UNIT / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """What it would take to send the text with this model: comparable between tokenizers."""
        return self.loss / _LOSS_UNIT / math.log(2) / max(1, self.bytes)


def heldout_batches(dataset: Dataset, state: State) -> list[Batch]:
    """The fixed held-out set of the run that made `state`, as losses are told in training."""
    run = state.config
    return [dataset.heldout_slot(index, run) for index in range(run.eval_slots)]


def text_batches(tokenizer: Tokenizer, texts: Iterable[str], state: State) -> Iterator[Batch]:
    """All of some documents, cut into windows of seq_len tokens that are read one by one.

    A document begins and ends with the separator. Each token but the first is predicted once, from
    those before it in its window. Held are a document and what is left of those before it.
    """
    run = state.config
    length = run.model.seq_len
    most = run.micro_batch * length
    end = ids = np.array([tokenizer.separator], np.int32)
    for text in texts:
        ids = np.concatenate([ids, tokenizer.encode(text), end])
        while len(ids) > most:
            yield ids[:most].reshape(-1, length), ids[1 : most + 1].reshape(-1, length)
            ids = ids[most:]
    if whole := (len(ids) - 1) // length * length:
        yield ids[:whole].reshape(-1, length), ids[1 : whole + 1].reshape(-1, length)
        ids = ids[whole:]
    if len(ids) > 1:
        yield ids[:-1].reshape(1, -1), ids[1:].reshape(1, -1)


def evaluate(
    state: State,
    tokenizer: Tokenizer,
    batches: Iterable[Batch],
    *,
    floats: bool = False,
    reference: bool = False,
) -> Iterator[Score]:
    """The score after each batch. Raises NonFiniteError."""
    run = state.config
    weights = Weights(kernels.load(reference=reference), run.model, state.weights)
    score = Score()
    for inputs, targets in batches:
        with refusals("The model cannot be computed"):
            loss = model.loss(weights, np.ascontiguousarray(inputs), np.ascontiguousarray(targets))
        score = Score(
            score.loss + loss,
            score.float_loss + (_float_loss(state, inputs, targets) if floats else 0.0),
            score.tokens + targets.size,
            score.bytes + sum(len(tokenizer.decode(row)) for row in targets.tolist()),
        )
        yield score


def _float_loss(state: State, inputs: Tokens, targets: Tokens) -> float:
    """Summed over [B, T], in nats."""
    logits = float_model.logits(state.config.model, state.weights, inputs).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[np.arange(targets.size), targets.reshape(-1)]
    return float((np.log(np.exp(logits).sum(axis=1)) - picked).sum())
