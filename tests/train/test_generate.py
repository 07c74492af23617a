"""Generation: the same everywhere, harmless for a terminal, within its bounds."""

from __future__ import annotations

import codecs
import dataclasses
import json

import msgspec
import pytest

from p2pnode.errors import DataError, NonFiniteError, UsageError
from p2pnode.train.generate import generate, printable
from p2pnode.train.sampler import Sampler
from p2pnode.train.tokenizer import byte_tokenizer, from_json
from p2pnode.train.update import initial_state
from tests.train.helpers import MICRO, micro_config, picked_tokens, trained_like
from tests.train.tokenizers import bpe, sentencepiece


@pytest.fixture(scope="module")
def state():
    config = micro_config()
    return dataclasses.replace(initial_state(config), weights=trained_like(config.model))


def text(state, **options):
    options = {"max_new": 40, "seed": 3, "reference": True} | options
    return "".join(generate(state, byte_tokenizer(), options.pop("prompt", "The "), **options))


def test_the_seed_decides(state):
    assert text(state) == text(state)
    assert len({text(state, seed=seed) for seed in range(5)}) == 5


def test_longer_text_begins_like_shorter_text(state):
    long, short = text(state, max_new=60), text(state, max_new=20)
    assert long.startswith(short)


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


def test_the_end_of_a_document_ends_the_text(state, monkeypatch):
    drawn = iter([72, 105, byte_tokenizer().separator, 33])
    monkeypatch.setattr(Sampler, "pick", lambda self, logits, position: next(drawn))
    assert text(state) == "Hi"


def test_bytes_become_characters_and_what_is_none_a_mark(state, monkeypatch):
    drawn = iter(["ä".encode()[0], "ä".encode()[1], 27, 91, 0xC3, 65, 0xE2, 0x82])
    monkeypatch.setattr(Sampler, "pick", lambda self, logits, position: next(drawn))
    pieces = list(generate(state, byte_tokenizer(), "x", max_new=8, reference=True))
    assert pieces == ["ä", "\ufffd", "[", "\ufffdA"]  # the cut-off end is left out


def test_nothing_printed_steers_a_terminal():
    assert printable("a\tb\nc") == "a\tb\nc"
    for code in [*range(9), *range(11, 32), 127, 0x9B, 0x202E, 0x200B, 0x2028, 0xFEFF, 0xE000]:
        assert printable(chr(code)) == "\ufffd"


@pytest.mark.parametrize(
    "options",
    [
        {"max_new": 0},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_p": float("nan")},
        {"seed": -1},
        {"seed": 2**63},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
    ],
)
def test_senseless_options_are_refused(state, options):
    with pytest.raises(UsageError):
        text(state, **options)


def test_weights_that_give_no_numbers_are_a_sentence(state):
    weights = state.weights.copy()
    state.layout.views(weights)["norm"][:] = 3e38
    absurd = dataclasses.replace(state, weights=weights)
    with pytest.raises(NonFiniteError):
        text(absurd)


def with_tokenizer(raw, pad=128):
    """A tokenizer and a small state with a vocabulary that is padded for it."""
    tokenizer = from_json(raw)
    vocab = -(-tokenizer.vocabulary // pad) * pad
    model = msgspec.structs.replace(MICRO, vocab=vocab)
    config = micro_config(model=model, tokenizer=tokenizer.name)
    return tokenizer, dataclasses.replace(initial_state(config), weights=trained_like(model))


@pytest.mark.parametrize("raw", [bpe(), sentencepiece()], ids=["bpe", "sentencepiece"])
def test_pieces_are_the_text_of_the_tokens(raw, monkeypatch):
    """Whatever the kind of tokenizer: pieces join to what it says of all tokens together."""
    tokenizer, state = with_tokenizer(raw)
    picked = picked_tokens(monkeypatch)
    prompt = "the mill"
    pieces = list(generate(state, tokenizer, prompt, max_new=60, seed=1, reference=True))
    drawn = [token for token in picked if token != tokenizer.separator]
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(tokenizer.decode(drawn))
    assert "".join(pieces) == printable(whole)
    assert len(pieces) > 5
    assert max(picked) < tokenizer.vocabulary  # never one of the padding


def test_words_of_a_tokenizer_without_bytes_keep_their_spaces(monkeypatch):
    raw = json.dumps(
        {
            "model": {
                "type": "WordPiece",
                "vocab": {"[UNK]": 0, "[SEP]": 1, "mill": 2, "##er": 3, "the": 4},
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
            },
            "pre_tokenizer": {"type": "Whitespace"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        }
    ).encode()
    tokenizer, state = with_tokenizer(raw)
    drawn = iter([2, 3, 4, 2, 1])
    monkeypatch.setattr(Sampler, "pick", lambda self, logits, position: next(drawn))
    assert "".join(generate(state, tokenizer, "the", max_new=9, reference=True)) == (
        " miller the mill"
    )


def test_the_wrong_tokenizer_is_refused(state):
    tokenizer, other = with_tokenizer(bpe())
    with pytest.raises(DataError, match="not the one"):
        generate(state, tokenizer, "x", max_new=1)
    small = msgspec.structs.replace(other.config, model=msgspec.structs.replace(MICRO, vocab=256))
    with pytest.raises(DataError, match="only 256"):
        generate(dataclasses.replace(other, config=small), tokenizer, "x", max_new=1)
