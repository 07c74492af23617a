"""Text from a trained state: the same text on every machine for the same seed.

May import: arithmetic, decoder, layout, state, weights, errors.
"""

from __future__ import annotations

import codecs
import math
import unicodedata
from collections.abc import Iterator

import numpy as np

from p2pnode.errors import UsageError
from p2pnode.train.arithmetic import kernels
from p2pnode.train.decoder import Decoder
from p2pnode.train.layout import F32
from p2pnode.train.state import State
from p2pnode.train.weights import Weights

END = 0
"""The byte between documents: it stands before a prompt, and ends the text when it is drawn."""
_WEIGHT_ONE = np.float32(1 << 30)
_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Unicode categories that a terminal might obey instead of show."""


def generate(
    state: State,
    prompt: str,
    *,
    max_new: int,
    temperature: float = 0.8,
    top_k: int = 40,
    seed: int = 0,
    reference: bool = False,
) -> Iterator[str]:
    """Up to max_new further bytes of text after `prompt`, in pieces that are safe to print.

    temperature 0 always takes the likeliest byte; top_k 0 draws from all. Raises UsageError.
    """
    if max_new < 1 or top_k < 0 or not 0 <= seed < 2**63:
        raise UsageError("the length must be at least 1, top-k and the seed not negative")
    if not (math.isfinite(temperature) and 0 <= temperature <= 100):
        raise UsageError(f"the temperature is {temperature}; it must lie between 0 and 100")
    ops = kernels.load(reference=reference)
    return _pieces(ops, state, prompt, max_new, _Sampler(ops, temperature, top_k, seed))


def _pieces(
    ops: kernels.Kernels, state: State, prompt: str, max_new: int, sampler: _Sampler
) -> Iterator[str]:
    model = state.config.model
    decoder = Decoder(Weights(ops, model, state.weights))
    text = prompt.encode("utf-8", "replace").replace(bytes([END]), b"")
    logits = decoder.feed(END)
    for token in text[-(model.seq_len - 1) :]:
        logits = decoder.feed(token)
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    for position in range(max_new):
        token = sampler.pick(logits, position)
        if token == END:
            break
        piece = printable(utf8.decode(bytes([token])))
        if piece:
            yield piece
        if position + 1 < max_new:
            logits = decoder.feed(token)
    rest = printable(utf8.decode(b"", final=True))
    if rest:
        yield rest


class _Sampler:
    """Draws by integers: counter-based random numbers against integer weights."""

    def __init__(self, ops: kernels.Kernels, temperature: float, top_k: int, seed: int) -> None:
        self._ops = ops
        self._temperature = np.float32(temperature)
        self._top_k = top_k
        self._seed = seed

    def pick(self, logits: F32, position: int) -> int:
        """A token for logits [V]; equal logits rank by token number."""
        order = np.argsort(-logits[:256], kind="stable")
        if self._top_k:
            order = order[: self._top_k]
        if self._temperature == 0:
            return int(order[0])
        with np.errstate(over="ignore"):
            lowered = (logits[order] - logits[order[0]]) / self._temperature
        weights = [int(x) for x in self._ops.exp(lowered) * _WEIGHT_ONE]
        draw = int(kernels.random_u64(self._seed, "generate", position)[0])
        point = (draw * sum(weights)) >> 64
        for token, weight in zip(order.tolist(), weights, strict=True):
            point -= weight
            if point < 0:
                return int(token)
        raise AssertionError("the point lies below the sum of the weights")


def printable(text: str) -> str:
    """The text with every character that could steer a terminal replaced, but \\n and \\t kept."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _UNSAFE else "\ufffd" for c in text
    )
