"""Generation: the same everywhere, harmless for a terminal, within its bounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from p2pnode.errors import UsageError
from p2pnode.train.arithmetic import kernels
from p2pnode.train.generate import END, _Sampler, generate, printable
from p2pnode.train.update import initial_state
from tests.train.helpers import micro_config
from tests.train.test_model import trained_like


@pytest.fixture(scope="module")
def state():
    config = micro_config()
    return dataclasses.replace(initial_state(config), weights=trained_like(config.model))


@pytest.fixture(scope="module")
def ops():
    return kernels.load(reference=True)


def text(state, **options):
    options = {"max_new": 40, "seed": 3, "reference": True} | options
    return "".join(generate(state, options.pop("prompt", "The "), **options))


def test_the_seed_decides(state):
    assert text(state) == text(state)
    assert len({text(state, seed=seed) for seed in range(5)}) == 5


def test_longer_text_begins_like_shorter_text(state):
    long, short = text(state, max_new=60), text(state, max_new=20)
    assert long.startswith(short.rstrip("\ufffd"))


def test_temperature_zero_is_greedy_and_tiny_ones_agree(state):
    greedy = text(state, temperature=0)
    assert greedy == text(state, temperature=0, seed=99)
    assert greedy == text(state, temperature=1e-30)
    assert greedy == text(state, temperature=1e-60)  # 0 in binary32
    assert greedy == text(state, top_k=1)


def test_long_prompts_keep_their_end(state):
    tail = "abcdefghijklmnop"
    length = state.config.model.seq_len - 1
    assert text(state, prompt="x" * 500 + tail) == text(state, prompt=tail[-length:])


def test_draws_follow_the_probabilities(ops):
    logits = np.full(256, -50, np.float32)
    logits[[65, 66, 67]] = np.log([0.5, 0.3, 0.2]).astype(np.float32)
    sampler = _Sampler(ops, 1.0, 0, 5)
    drawn = [sampler.pick(logits, i) for i in range(3_000)]
    for token, share in ((65, 0.5), (66, 0.3), (67, 0.2)):
        assert drawn.count(token) / 3_000 == pytest.approx(share, abs=0.03)
    only = _Sampler(ops, 1.0, 2, 5)
    assert {only.pick(logits, i) for i in range(200)} == {65, 66}


def test_equal_logits_rank_by_number(ops):
    assert _Sampler(ops, 0, 0, 1).pick(np.zeros(256, np.float32), 0) == 0
    flat = _Sampler(ops, 1.0, 3, 1)
    assert {flat.pick(np.zeros(256, np.float32), i) for i in range(100)} == {0, 1, 2}


def test_the_end_of_a_document_ends_the_text(state, monkeypatch):
    drawn = iter([72, 105, END, 33])
    monkeypatch.setattr(_Sampler, "pick", lambda self, logits, position: next(drawn))
    assert text(state) == "Hi"


def test_bytes_become_characters_and_halves_a_mark(state, monkeypatch):
    drawn = iter(["ä".encode()[0], "ä".encode()[1], 27, 91, 0xC3])
    monkeypatch.setattr(_Sampler, "pick", lambda self, logits, position: next(drawn))
    pieces = list(generate(state, "x", max_new=5, reference=True))
    assert pieces == ["ä", "\ufffd", "[", "\ufffd"]


def test_nothing_printed_steers_a_terminal():
    assert printable("a\tb\nc") == "a\tb\nc"
    for code in [*range(9), *range(11, 32), 127, 0x9B, 0x202E, 0x200B, 0x2028, 0xFEFF, 0xE000]:
        assert printable(chr(code)) == "\ufffd"


@pytest.mark.parametrize(
    "options",
    [
        {"max_new": 0},
        {"top_k": -1},
        {"seed": -1},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
    ],
)
def test_senseless_options_are_refused(state, options):
    with pytest.raises(UsageError):
        text(state, **options)
