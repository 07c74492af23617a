"""The same model in plain float32, nothing quantised: what other tools make of its weights.

Its bits are nobody's promise (numpy's sums and exp differ between machines); it tells how far
exports can be from the exact arithmetic. May import: layers, layout, model, config.
"""

from __future__ import annotations

import numpy as np

from p2pnode.config import ModelConfig
from p2pnode.train.layers import NORM_EPS
from p2pnode.train.layout import F32, layout_of
from p2pnode.train.model import Tokens, rotation_for


def logits(model: ModelConfig, flat: F32, inputs: Tokens) -> F32:
    """inputs[B, T] with T <= seq_len -> logits [B * T, V]. flat: the weights [P]."""
    w = layout_of(model).views(flat)
    batch, length = inputs.shape
    tables = rotation_for(model)
    cos, sin = (table[:length, None, :] for table in (tables.cos, tables.sin))
    unseen = np.triu(np.ones((length, length), bool), 1)

    def heads(y: F32) -> F32:
        return y.reshape(batch, length, model.heads, model.head_dim)

    def rotated(y: F32) -> F32:
        a, b = np.split(y, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = w["embed"][inputs]
    for i in range(model.layers):
        p = f"layers.{i}."
        normed = _norm(x, w[p + "attn_norm"])
        q, k = (rotated(heads(normed @ w[p + name].T)) for name in "qk")
        v = heads(normed @ w[p + "v"].T)
        scores = np.einsum("bihd,bjhd->bhij", q, k) / np.float32(np.sqrt(model.head_dim))
        scores[:, :, unseen] = -np.inf
        a = np.exp(scores - scores.max(axis=-1, keepdims=True))
        a /= a.sum(axis=-1, keepdims=True)
        x = x + np.einsum("bhij,bjhd->bihd", a, v).reshape(x.shape) @ w[p + "o"].T
        normed = _norm(x, w[p + "ffn_norm"])
        gate = normed @ w[p + "gate"].T
        with np.errstate(over="ignore"):  # a gate far below 0 is divided by infinity
            hidden = gate / (1 + np.exp(-gate)) * (normed @ w[p + "up"].T)
        x = x + hidden @ w[p + "down"].T
    normed = _norm(x, w["norm"]).reshape(batch * length, model.width)
    result: F32 = normed @ w["embed"].T
    return result


def _norm(x: F32, gain: F32) -> F32:
    inverse: F32 = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(NORM_EPS))
    return x * inverse * gain
