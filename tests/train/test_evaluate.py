"""Losses of texts: every token once, the run's own held-out set, and floats nearby."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np
import pytest

from p2pnode.errors import NonFiniteError
from p2pnode.train.evaluate import Score, evaluate, heldout_batches, text_batches
from p2pnode.train.open_data import open_dataset
from p2pnode.train.tokenizer import byte_tokenizer, from_json, padded
from p2pnode.train.update import initial_state
from tests.train.helpers import MICRO, micro_config, new_trainer, trained_like
from tests.train.tokenizers import bpe


@pytest.fixture(scope="module")
def state():
    config = micro_config()
    return dataclasses.replace(initial_state(config), weights=trained_like(config.model))


def last(state, batches, **options):
    return list(evaluate(state, byte_tokenizer(), batches, reference=True, **options))[-1]


@pytest.mark.parametrize("size", [1, 11, 12, 13, 23, 24, 25, 47, 100])
def test_each_token_is_predicted_once_from_those_before_it(state, size):
    text = bytes(65 + i % 26 for i in range(size)).decode()
    batches = list(text_batches(byte_tokenizer(), [text], state))
    stream = [0, *text.encode(), 0]
    targets = np.concatenate([t.reshape(-1) for _, t in batches]).tolist()
    inputs = np.concatenate([i.reshape(-1) for i, _ in batches]).tolist()
    assert targets == stream[1:]
    assert inputs == stream[:-1]
    assert all(i.shape == t.shape and i.shape[1] <= MICRO.seq_len for i, t in batches)
    assert all(len(i) <= state.config.micro_batch for i, _ in batches)


def test_documents_are_parted_by_the_separator(state):
    batches = list(text_batches(byte_tokenizer(), ["ab", "c"], state))
    assert np.concatenate([t.reshape(-1) for _, t in batches]).tolist() == [97, 98, 0, 99, 0]
    score = last(state, batches)
    assert (score.tokens, score.bytes) == (5, 3)


def test_the_split_into_batches_changes_no_bit(state):
    text = "Some text that is longer than a window. " * 5
    batches = list(text_batches(byte_tokenizer(), [text], state))
    single = [(i[k : k + 1], t[k : k + 1]) for i, t in batches for k in range(len(i))]
    assert len(single) > len(batches)
    assert last(state, batches).loss == last(state, single).loss


def test_heldout_loss_is_the_one_that_training_tells():
    config = micro_config()
    trainer = new_trainer(config, reference=True)
    told = trainer.heldout_loss()
    score = last(initial_state(config), heldout_batches(open_dataset(None), initial_state(config)))
    assert (score.loss, score.tokens) == (told.loss, told.tokens)
    assert score.bits_per_byte == pytest.approx(8, abs=0.1)  # knows nothing yet


def test_units():
    score = Score(loss=3 * 2**24, tokens=4, bytes=6)
    assert score.nats_per_token == 0.75
    assert score.bits_per_byte == pytest.approx(0.5 / math.log(2))


def test_bytes_of_tokens_are_those_of_the_text():
    tokenizer = from_json(bpe())
    model = msgspec.structs.replace(MICRO, vocab=padded(tokenizer.vocabulary))
    config = micro_config(model=model, tokenizer=tokenizer.name)
    state = initial_state(config)
    text = "The river ran past the old mill. Grüße 漢字!"
    batches = list(text_batches(tokenizer, [text], state))
    score = list(evaluate(state, tokenizer, batches, reference=True))[-1]
    assert score.bytes == len(text.encode())
    assert score.tokens == len(tokenizer.encode(text)) + 1 < score.bytes


def test_floats_are_near(state):
    batches = list(text_batches(byte_tokenizer(), ["Some text to be predicted. " * 4], state))
    score = last(state, batches, floats=True)
    assert score.float_loss / score.tokens == pytest.approx(score.nats_per_token, rel=0.05)
    assert last(state, batches).float_loss == 0


def test_weights_that_give_no_numbers_are_a_sentence(state):
    weights = state.weights.copy()
    state.layout.views(weights)["norm"][:] = 3e38
    with pytest.raises(NonFiniteError):
        last(
            dataclasses.replace(state, weights=weights),
            text_batches(byte_tokenizer(), ["x"], state),
        )
