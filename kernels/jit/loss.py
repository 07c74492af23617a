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


@kernel
def _cross_entropy(logits, targets, row, wide, dlogits):
    """Loss in units of 2^-24, -1 if a logit is not finite, -2 if the loss is out of bounds.

    row float32 [V rounded up to lanes], wide float64 [16]: scratch. dlogits may be logits.
    """
    tokens, vocab = logits.shape
    inverse_tokens = ONE / np.float32(tokens)
    for j in range(16):
        wide[j] = 0.0
    for t in range(tokens):
        top, key = np.int32(0), LEAST_KEY
        for v in range(vocab):
            bits, k = magnitude(logits[t, v]), order_key(logits[t, v])
            top = bits if bits > top else top
            key = k if k > key else key
        if top >= INFINITY_BITS:
            return np.int64(-1)
        peak = from_key(key)
        for v in range(vocab):
            row[v] = exp32(logits[t, v] - peak)
        total = lane_sum(row, 0, pad_lanes(row, vocab))
        target = targets[t]
        loss = log32(total) - (logits[t, target] - peak)
        wide[t % 16] += np.float64(loss)
        inverse = ONE / total
        for v in range(vocab):
            dlogits[t, v] = row[v] * inverse * inverse_tokens
        dlogits[t, target] = (row[target] * inverse - ONE) * inverse_tokens
    loss_sum = fold_lanes(wide)
    if not loss_sum < LOSS_BOUND:
        return np.int64(-2)
    return np.int64(np.rint(loss_sum * LOSS_UNIT))


def cross_entropy(logits: F32, targets: I32, out: F32 | None = None) -> tuple[int, F32]:
    """-> loss of the slot in units of 2^-24, dlogits[M, V]."""
    dlogits: F32 = empty(logits.shape, np.float32) if out is None else out
    row = empty(-(-logits.shape[1] // 16) * 16, np.float32)
    loss = _cross_entropy(logits, targets, row, empty(16, np.float64), dlogits)
    if loss == -2:
        raise NonFiniteInputError("the loss is too large to be counted; the logits diverge.")
    if loss < 0:
        raise NonFiniteInputError("a logit is NaN or infinite; the loss was refused.")
    return int(loss), dlogits
