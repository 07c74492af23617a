"""Cross-entropy. May import: constants, errors, types, siblings."""

from __future__ import annotations

import numpy as np

from .. import constants as c
from ..errors import NonFiniteInputError
from ..types import F32, I32
from .elementary import exp, log
from .order import all_finite, from_total_order, integer_max, lane_sum, total_order


def cross_entropy(logits: F32, targets: I32, out: F32 | None = None) -> tuple[int, F32]:
    """logits[M, V], targets[M] -> (loss summed over the M tokens in units of 2^-24, dlogits).

    dlogits[M, V] is the gradient of the mean over the M tokens. Token losses are binary32; they
    are summed in binary64 (16 lanes) and rounded once to the unit. out: for dlogits; may be logits.
    """
    if not all_finite(logits):
        raise NonFiniteInputError("a logit is NaN or infinite; the loss was refused.")
    rows = np.arange(logits.shape[0])
    peak = from_total_order(integer_max(total_order(logits), 1))
    shifted = logits - peak[:, None]
    e = exp(shifted)
    total = lane_sum(e)
    losses = log(total) - shifted[rows, targets]
    loss = lane_sum(losses.astype(np.float64))
    if not loss < c.LOSS_BOUND:
        raise NonFiniteInputError("the loss is too large to be counted; the logits diverge.")
    p = e * (c.ONE / total)[:, None]
    p[rows, targets] = p[rows, targets] - c.ONE
    dlogits = p * (c.ONE / np.float32(logits.shape[0]))
    if out is not None:
        out[:] = dlogits
    return int(np.rint(loss * c.LOSS_UNIT)), dlogits if out is None else out
