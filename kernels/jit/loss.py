"""Cross-entropy, equal to `reference.loss`.

May import: constants, errors, types, workspace, jit siblings.
"""

from __future__ import annotations

import numpy as np

from ..constants import LOSS_BOUND, LOSS_UNIT
from ..errors import NonFiniteInputError
from ..types import F32, I32
from ..workspace import empty
from .compile import kernel
from .lanes import lane_sum, pad_lanes
from .scalar import (
    INFINITY_BITS,
    LEAST_KEY,
    ONE,
    exp32,
    fold_lanes,
    from_key,
    log32,
    magnitude,
    order_key,
)
from .threads import spread

_LEAST_TOKENS = 64
"""How many are worth handing to another thread."""


@kernel
def _cross_entropy(logits, targets, inverse_tokens, row, losses, dlogits):
    """Losses of some tokens; False if a logit is not finite.

    inverse_tokens: 1 / all tokens. row float32 [V rounded up to lanes]: scratch. dlogits may be
    logits.
    """
    tokens, vocab = logits.shape
    for t in range(tokens):
        top, key = np.int32(0), LEAST_KEY
        for v in range(vocab):
            bits, k = magnitude(logits[t, v]), order_key(logits[t, v])
            top = bits if bits > top else top
            key = k if k > key else key
        if top >= INFINITY_BITS:
            return False
        peak = from_key(key)
        for v in range(vocab):
            row[v] = exp32(logits[t, v] - peak)
        total = lane_sum(row, 0, pad_lanes(row, vocab))
        target = targets[t]
        losses[t] = log32(total) - (logits[t, target] - peak)
        inverse = ONE / total
        for v in range(vocab):
            dlogits[t, v] = row[v] * inverse * inverse_tokens
        dlogits[t, target] = (row[target] * inverse - ONE) * inverse_tokens
    return True


@kernel
def _total(losses, wide):
    """Their sum in units of 2^-24, or -1 if it is out of bounds. wide float64 [16]: scratch."""
    for j in range(16):
        wide[j] = 0.0
    for t in range(losses.size):
        wide[t % 16] += np.float64(losses[t])
    loss_sum = fold_lanes(wide)
    if not loss_sum < LOSS_BOUND:
        return np.int64(-1)
    return np.int64(np.rint(loss_sum * LOSS_UNIT))


def cross_entropy(logits: F32, targets: I32, out: F32 | None = None) -> tuple[int, F32]:
    """-> loss of the slot in units of 2^-24, dlogits[M, V]."""
    dlogits: F32 = empty(logits.shape, np.float32) if out is None else out
    tokens, vocab = logits.shape
    losses = empty(tokens, np.float32)
    inverse_tokens = np.float32(1) / np.float32(tokens)

    def part(start: int, stop: int) -> bool:
        m = slice(start, stop)
        row = empty(-(-vocab // 16) * 16, np.float32)
        return bool(
            _cross_entropy(logits[m], targets[m], inverse_tokens, row, losses[m], dlogits[m])
        )

    if not spread(tokens, 1, part, least=_LEAST_TOKENS):
        raise NonFiniteInputError("a logit is NaN or infinite; the loss was refused.")
    loss = _total(losses, empty(16, np.float64))
    if loss < 0:
        raise NonFiniteInputError("the loss is too large to be counted; the logits diverge.")
    return int(loss), dlogits
