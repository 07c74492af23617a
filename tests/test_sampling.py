"""Samples while training: the text that `generate` gives, made in no hurry."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from p2pnode import sampling
from p2pnode.sampling import Samples
from p2pnode.train import tokenizer as tokenizers
from p2pnode.train.generate import generate
from p2pnode.ui.events import Event, Sample, Warn
from p2pnode.worker import Urgency, Worker
from tests.harness.jobs import Bench

SECONDS = 60.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


async def test_a_sample_is_what_generate_gives(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "TOKENS", 12)
    bench = Bench(tmp_path)
    bench.jobs._keeper._sample_every = 2
    assert bench.advance(1).sample is None
    copy = bench.advance(2).sample
    before = copy.weights.copy()
    tokenizer = tokenizers.beside(copy.config.tokenizer, tmp_path)
    expected = "Once" + "".join(generate(bench.trainer.committed, tokenizer, "Once", max_new=12))
    shown: list[Event] = []
    ops = bench.trainer.kernels
    samples = Samples(tmp_path, "Once", worker=worker, show=shown.append)
    ran: list[str] = []

    async def others() -> None:
        """What training does meanwhile goes first."""
        while not shown:
            await worker.submit(Urgency.COMPUTE, lambda: ran.append("slot"))

    taking = asyncio.gather(samples.take(copy, ops), samples.take(copy, ops), others())
    await asyncio.wait_for(taking, SECONDS)
    assert shown == [Sample(step=2, text=expected)], "the second was left out"
    assert len(ran) > 12, "a token at a time"
    bench.advance(3), bench.advance(4)
    assert np.array_equal(copy.weights, before), "its arrays are its own"
    assert copy.m.size == 0


async def test_a_sample_that_cannot_be_made_is_a_warning(worker: Worker, tmp_path: Path) -> None:
    trainer = Bench(tmp_path).trainer
    state, ops = trainer.committed, trainer.kernels
    other = msgspec.structs.replace(state.config, tokenizer="f" * 64)
    shown: list[Event] = []
    samples = Samples(tmp_path, "x", worker=worker, show=shown.append)
    await asyncio.wait_for(samples.take(dataclasses.replace(state, config=other), ops), SECONDS)
    assert [type(event) for event in shown] == [Warn]
    await asyncio.wait_for(samples.take(state, ops), SECONDS)
    assert isinstance(shown[1], Sample), "the next one is not held up by it"
