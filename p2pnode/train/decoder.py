"""The model one token at a time, with a cache of keys and values; same bits as the full forward.

May import: layers, layout, model, weights.
"""

from __future__ import annotations

import numpy as np

from p2pnode.train import layers
from p2pnode.train.layout import F32
from p2pnode.train.model import rotation_for
from p2pnode.train.weights import Weights


class Decoder:
    """Feeds tokens and gives the logits of the next one.

    The cache holds seq_len positions. When it is full the last half of the text is fed anew from
    position 0, so generation can go on for ever.
    """

    def __init__(self, weights: Weights) -> None:
        model = weights.model
        self._weights = weights
        self._rotation = rotation_for(model)
        self._tokens: list[int] = []
        shape = (model.layers, model.seq_len, model.heads)
        self._keys = np.empty((*shape, model.head_dim), np.int8)
        self._values = np.empty_like(self._keys)
        self._key_scales = np.empty(shape, np.float32)
        self._value_scales = np.empty(shape, np.float32)

    def feed(self, token: int) -> F32:
        """Append a token; logits [V] of the one after it."""
        if len(self._tokens) == self._weights.model.seq_len:
            recent = self._tokens[-(len(self._tokens) // 2) :]
            self._tokens.clear()
            for old in recent:
                self.feed(old)
        self._tokens.append(token)
        w, ops = self._weights, self._weights.ops
        x = ops.embed(w["embed"], np.array([token], np.int32))
        for i in range(w.model.layers):
            x = self._attention(i, x)
            x, _ = layers.feed_forward(w, f"layers.{i}", x)
        normed, _ = ops.rmsnorm(x, w["norm"], layers.NORM_EPS)
        logits: F32 = layers.linear(w, "embed", normed)[0]
        return logits

    def _attention(self, i: int, x: F32) -> F32:
        """As `layers.attention` for the newest position: x[1, K] -> [1, K]."""
        w, ops, layer = self._weights, self._weights.ops, f"layers.{i}"
        at, n = len(self._tokens) - 1, len(self._tokens)
        cos, sin = self._rotation.cos[at:n], self._rotation.sin[at:n]
        normed, _ = ops.rmsnorm(x, w[f"{layer}.attn_norm"], layers.NORM_EPS)
        q, k, v = layers.linears(w, (f"{layer}.q", f"{layer}.k", f"{layer}.v"), normed)
        heads = w.model.heads
        k8, sk = ops.quantise_heads(ops.rope(k, cos, sin), heads)
        v8, sv = ops.quantise_heads(v, heads)
        self._keys[i, at], self._key_scales[i, at] = k8[0], sk[0]
        self._values[i, at], self._value_scales[i, at] = v8[0], sv[0]
        mixed = ops.attention_step(
            ops.rope(q, cos, sin),
            self._keys[i, :n],
            self._key_scales[i, :n],
            self._values[i, :n],
            self._value_scales[i, :n],
        )
        return ops.add(x, layers.linear(w, f"{layer}.o", mixed))
