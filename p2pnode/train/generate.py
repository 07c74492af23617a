"""Text from a trained state: the same text on every machine for the same seed.

May import: arithmetic, decoder, sampler, state, tokenizer, weights, config, errors.
"""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterator

from p2pnode.config import RunConfig
from p2pnode.errors import DataError, UsageError
from p2pnode.train.arithmetic import kernels, refusals
from p2pnode.train.decoder import Decoder
from p2pnode.train.sampler import Sampler
from p2pnode.train.state import State
from p2pnode.train.tokenizer import Tokenizer
from p2pnode.train.weights import Weights

_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Unicode categories that a terminal might obey instead of show."""


def generate(
    state: State,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_new: int,
    temperature: float = 0.8,
    top_k: int = 40,
    top_p: float = 1.0,
    seed: int = 0,
    reference: bool = False,
    ops: kernels.Kernels | None = None,
) -> Iterator[str]:
    """The text after `prompt`, up to max_new tokens of it, in pieces that are safe to print.

    The tokenizer is the run's. The choices are those of `Sampler`; the separator of documents
    stands before the prompt, and ends the text when it is drawn. A character whose bytes were cut
    off by max_new is left out, so a shorter text is the beginning of a longer one. Raises
    UsageError and DataError; while it runs, NonFiniteError. `ops`: kernels that are loaded
    already; loading takes a second.
    """
    if max_new < 1:
        raise UsageError(f"{max_new} is no length; at least one token can be made.")
    check_fits(tokenizer, state.config)
    ops = ops or kernels.load(reference=reference)
    ids = prompt_ids(tokenizer, prompt, state.config.model.seq_len)
    sampler = Sampler(ops, temperature, top_k, top_p, seed)
    weights = Weights(ops, state.config.model, state.weights)
    return _pieces(tokenizer, ids[-1], _tokens(weights, tokenizer, ids, max_new, sampler))


def check_fits(tokenizer: Tokenizer, config: RunConfig) -> None:
    """Raise DataError unless this is the run's tokenizer and its ids are the model's."""
    if tokenizer.name != config.tokenizer:
        raise DataError("The tokenizer is not the one that the checkpoint was trained with.")
    if tokenizer.vocabulary > config.model.vocab:
        raise DataError(
            f"The tokenizer has {tokenizer.vocabulary} tokens, the model only {config.model.vocab}."
        )


def prompt_ids(tokenizer: Tokenizer, prompt: str, seq_len: int) -> list[int]:
    """What the model is fed before it speaks: the separator and the prompt's last tokens."""
    return [tokenizer.separator, *tokenizer.encode(prompt).tolist()[-(seq_len - 1) :]]


def _tokens(
    weights: Weights, tokenizer: Tokenizer, ids: list[int], max_new: int, sampler: Sampler
) -> Iterator[int]:
    """What the model says after `ids`, without the separator."""
    decoder = Decoder(weights)
    with refusals("The model cannot be computed"):
        for token in ids:
            logits = decoder.feed(token)
        for position in range(max_new):
            token = sampler.pick(logits[: tokenizer.vocabulary], position)
            if token == tokenizer.separator:
                break
            yield token
            if position + 1 < max_new:
                logits = decoder.feed(token)


def _pieces(tokenizer: Tokenizer, before: int, tokens: Iterator[int]) -> Iterator[str]:
    """Whole characters as soon as they are there; bytes that are none become U+FFFD."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        # Some tokenizers put a space between two tokens that neither of them has alone.
        new = tokenizer.decode([before, token])[len(tokenizer.decode([before])) :]
        piece = printable(utf8.decode(new))
        if piece:
            yield piece
        before = token


def printable(text: str) -> str:
    """The text with every character that could steer a terminal replaced, but \\n and \\t kept."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _UNSAFE else "\ufffd" for c in text
    )
