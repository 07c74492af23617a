"""The next token, drawn from logits by integers: the same on every machine for the same seed.

May import: arithmetic, layout, errors.
"""

from __future__ import annotations

import math

import numpy as np

from p2pnode.errors import NonFiniteError, UsageError
from p2pnode.train.arithmetic import kernels
from p2pnode.train.layout import F32

WEIGHT_ONE = 1 << 30
"""The weight of the likeliest token; another's is this times exp of how far its logit is below."""
SHARE_ONE = 1 << 32
"""top_p is counted in units of 1 / this."""


class Sampler:
    """Temperature, then the top_k likeliest, then the fewest of them that hold a share top_p.

    Logits are divided by the temperature in binary32 and go through the kernels' own exp; from
    there on everything is integers, and the draw is a counter-based random number.
    """

    def __init__(
        self, ops: kernels.Kernels, temperature: float, top_k: int, top_p: float, seed: int
    ) -> None:
        """temperature 0 always takes the likeliest token; top_k 0 and top_p 1 leave all in.

        Raises UsageError.
        """
        if not (math.isfinite(temperature) and 0 <= temperature <= 100):
            raise UsageError(f"The temperature is {temperature}; it must lie between 0 and 100.")
        if top_k < 0:
            raise UsageError(f"Top-k is {top_k}; it must be a number of tokens, or 0 for all.")
        if not 0 < top_p <= 1:
            raise UsageError(f"Top-p is {top_p}; it must be a share above 0, at most 1.")
        if not 0 <= seed < 2**63:
            raise UsageError(f"The seed is {seed}; it must lie between 0 and 2^63 - 1.")
        self._ops = ops
        self._temperature = np.float32(temperature)
        self._top_k = top_k
        self._share = int(top_p * SHARE_ONE)
        self._seed = seed

    def pick(self, logits: F32, position: int) -> int:
        """A token for logits [V]; equal logits rank by token number. `position` counts draws.

        Raises NonFiniteError.
        """
        if not np.isfinite(logits).all():
            raise NonFiniteError(
                "The model's answer is NaN or infinite: its weights are too large."
            )
        order = np.argsort(-logits, kind="stable")
        if self._top_k:
            order = order[: self._top_k]
        if self._temperature == 0:
            return int(order[0])
        with np.errstate(over="ignore"):
            lowered = (logits[order] - logits[order[0]]) / self._temperature
        weights = (self._ops.exp(lowered) * np.float32(WEIGHT_ONE)).astype(np.int64)
        cumulated = np.cumsum(weights)
        # The shortest beginning that holds the share; at least one token, since the first weighs 1.
        wanted = (int(cumulated[-1]) * self._share) >> 32
        stop = int(np.searchsorted(cumulated, wanted)) + 1
        draw = int(kernels.random_u64(self._seed, "generate", position)[0])
        point = (draw * int(cumulated[stop - 1])) >> 64
        return int(order[np.searchsorted(cumulated[:stop], point, side="right")])
