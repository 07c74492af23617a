"""Small runs for the tests of the trainer, and text read as a node reads it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest

from p2pnode.config import OPTIMIZER_DEFAULTS, PRESETS, ModelConfig, RunConfig
from p2pnode.limits import LIMITS, Limits
from p2pnode.sources.listing import list_files
from p2pnode.sources.retry import PATIENCE, Patience
from p2pnode.train.arithmetic import kernels
from p2pnode.train.data import Dataset
from p2pnode.train.evidence import SlotEvidence
from p2pnode.train.files import Texts, read_listing
from p2pnode.train.layout import layout_of
from p2pnode.train.open_data import builtin_manifest, open_dataset
from p2pnode.train.sampler import Sampler
from p2pnode.train.trainer import Trainer

load_kernels = kernels.load
"""Loads them anew, with their gates: a second."""
loaded_once = functools.cache(load_kernels)
"""The same for every trainer, for tests that make many and do not touch their kernels."""

VOCAB = 256
MICRO = ModelConfig(vocab=256, width=16, layers=2, heads=2, ffn=24, seq_len=12)
"""The smallest model with every kind of tensor."""


def read_texts(
    spec: str, limits: Limits = LIMITS, column: str = "text", patience: Patience = PATIENCE
) -> Texts:
    """All files of `spec` (a path or an fsspec URL)."""
    return read_listing(list_files(spec, limits, patience), limits, column)


def run_config(preset: str = "nano", **changes: Any) -> RunConfig:
    """A configuration on the built-in text; `changes` replace fields."""
    p = PRESETS[preset]
    config = RunConfig(
        arithmetic_version=kernels.ARITHMETIC_VERSION,
        gates_digest=kernels.gates_digest(),
        data=builtin_manifest().hash(),
        tokenizer="bytes",
        model=p.model,
        seed=7,
        steps=p.steps,
        slots=p.slots,
        micro_batch=p.micro_batch,
        lr=p.lr,
        warmup=p.warmup,
        eval_every=10,
        eval_slots=2,
        **OPTIMIZER_DEFAULTS,
    )
    config = msgspec.structs.replace(config, **changes)
    config.check()
    return config


def micro_config(**changes: Any) -> RunConfig:
    """Four slots of a model with a few thousand parameters, for the reference kernels."""
    return run_config(
        **{"model": MICRO, "slots": 4, "micro_batch": 2, "steps": 20, "warmup": 2} | changes
    )


@dataclasses.dataclass
class SlotSet:
    """What a peer contributes: facts about its slots, and their sum."""

    evidence: list[SlotEvidence]
    sum: np.ndarray

    @property
    def max_abs(self) -> list[int]:
        return [max(column) for column in zip(*(e.max_abs for e in self.evidence), strict=True)]


def compute_set(trainer: Trainer, slots: Iterable[int] | None = None) -> SlotSet:
    """Some slots of the trainer's current step, or all."""
    slots = range(trainer.config.slots) if slots is None else slots
    evidence, gradients = zip(*(trainer.compute_slot(trainer.step, s) for s in slots), strict=True)
    return SlotSet(list(evidence), trainer.add(gradients))


def train(trainer: Trainer, steps: int, sets: list[list[int]] | None = None) -> list[float]:
    """Run some steps alone, each set computed apart; mean loss in nats of each step."""
    losses = []
    for step in range(trainer.step, trainer.step + steps):
        results = [compute_set(trainer, slots) for slots in sets or [None]]
        whole = SlotSet(
            [e for result in results for e in result.evidence],
            trainer.add([result.sum for result in results]),
        )
        trainer.apply(step, whole.sum, whole.max_abs, sum(e.checksum for e in whole.evidence))
        trainer.commit(step)
        tokens = sum(e.tokens for e in whole.evidence)
        losses.append(sum(e.loss for e in whole.evidence) / tokens / 2**24)
    return losses


def new_trainer(config: RunConfig, dataset: Dataset | None = None, **options: Any) -> Trainer:
    return Trainer(config, dataset or open_dataset(None), **options)


def trained_like(shape, seed=1, scale=0.2):
    """Weights large enough that every path of the gradient matters."""
    rng = np.random.default_rng(seed)
    flat = np.empty(layout_of(shape).size, np.float32)
    for t in layout_of(shape).tensors:
        noise = rng.standard_normal(t.stop - t.start)
        flat[t.start : t.stop] = 1 + 0.2 * noise if t.is_norm else scale * noise
    return flat


def tokens(shape, batch=2, seed=2):
    """Inputs and targets of a slot, [batch, T] each."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCAB, (batch, shape.seq_len + 1)).astype(np.int32)
    return ids[:, :-1].copy(), ids[:, 1:].copy()


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def picked_tokens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that any sampler draws from now on, oldest first."""
    picked: list[int] = []
    pick = Sampler.pick

    def noted(self, logits, position):
        picked.append(pick(self, logits, position))
        return picked[-1]

    monkeypatch.setattr(Sampler, "pick", noted)
    return picked
