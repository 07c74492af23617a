"""Text from a trained state: the same text on every machine for the same seed.

May import: arithmetic, decoder, sampler, state, weights, errors.
"""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterator

from p2pnode.errors import NonFiniteError, UsageError
from p2pnode.train.arithmetic import kernels
from p2pnode.train.decoder import Decoder
from p2pnode.train.sampler import Sampler
from p2pnode.train.state import State
from p2pnode.train.weights import Weights

END = 0
"""The byte between documents: it stands before a prompt, and ends the text when it is drawn."""
_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Unicode categories that a terminal might obey instead of show."""


def generate(
    state: State,
    prompt: str,
    *,
    max_new: int,
    temperature: float = 0.8,
    top_k: int = 40,
    top_p: float = 1.0,
    seed: int = 0,
    reference: bool = False,
) -> Iterator[str]:
    """The text after `prompt`, up to max_new bytes of it, in pieces that are safe to print.

    The choices are those of `Sampler`. A character whose bytes were cut off by max_new is left
    out, so a shorter text is the beginning of a longer one. Raises UsageError; while it runs,
    NonFiniteError.
    """
    if max_new < 1:
        raise UsageError(f"{max_new} is no length; at least one byte can be made")
    ops = kernels.load(reference=reference)
    tokens = _tokens(ops, state, prompt, max_new, Sampler(ops, temperature, top_k, top_p, seed))
    return _pieces(tokens)


def _tokens(
    ops: kernels.Kernels, state: State, prompt: str, max_new: int, sampler: Sampler
) -> Iterator[int]:
    """What the model says after the prompt, without END."""
    model = state.config.model
    decoder = Decoder(Weights(ops, model, state.weights))
    text = prompt.encode("utf-8", "replace").replace(bytes([END]), b"")
    try:
        logits = decoder.feed(END)
        for token in text[-(model.seq_len - 1) :]:
            logits = decoder.feed(token)
        for position in range(max_new):
            token = sampler.pick(logits[:256], position)
            if token == END:
                break
            yield token
            if position + 1 < max_new:
                logits = decoder.feed(token)
    except kernels.NonFiniteInputError as error:
        raise NonFiniteError(f"The model cannot be computed: {error}") from None


def _pieces(tokens: Iterator[int]) -> Iterator[str]:
    """Whole characters as soon as they are there; bytes that are none become U+FFFD."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        piece = printable(utf8.decode(bytes([token])))
        if piece:
            yield piece


def printable(text: str) -> str:
    """The text with every character that could steer a terminal replaced, but \\n and \\t kept."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _UNSAFE else "\ufffd" for c in text
    )
