"""The Llama-shaped decoder: token ids to logits, loss and gradient.

Pre-norm RMSNorm, rotary positions, SwiGLU, no biases, no dropout, the embedding tied to the output.

May import: arithmetic, layers, layout, weights, config.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from p2pnode.config import ModelConfig
from p2pnode.train import layers
from p2pnode.train.arithmetic import kernels
from p2pnode.train.layout import F32, layout_of
from p2pnode.train.weights import Weights

Tokens = NDArray[np.int32]
ROPE_BASE = 10_000


@functools.lru_cache(maxsize=4)
def rotation_for(model: ModelConfig) -> layers.Rotation:
    """The rotary tables of a model for all its positions."""
    cos, sin = kernels.rope_tables(model.seq_len, model.head_dim, ROPE_BASE)
    return layers.Rotation(cos.copy(), sin.copy())  # kernels would copy read-only ones each time


def logits(w: Weights, inputs: Tokens) -> F32:
    """inputs[B, T] with T <= seq_len -> logits [B * T, V]."""
    return _forward(w, inputs).logits


def loss(w: Weights, inputs: Tokens, targets: Tokens) -> int:
    """Summed token losses of [B, T] in units of 2**-24 nats."""
    value, _ = w.ops.cross_entropy(logits(w, inputs), targets.reshape(-1))
    return value


def loss_and_gradient(w: Weights, inputs: Tokens, targets: Tokens) -> tuple[int, F32]:
    """As `loss`, and the gradient of the mean over the B * T tokens, flat float32 [P].

    Raises kernels.NonFiniteInputError if a value that must be finite is not.
    """
    ops = w.ops
    run = _forward(w, inputs)
    value, dlogits = ops.cross_entropy(run.logits, targets.reshape(-1), in_place=True)

    layout = layout_of(w.model)
    flat: F32 = kernels.empty(layout.size, np.float32)
    g = layers.Gradient(layout.views(flat))
    normed = ops.quantise_cols(run.normed, kernels.INT12_LIMIT)
    dnormed = layers.linear_backward(w, "embed", dlogits, normed, g)
    dx, dgain = ops.rmsnorm_backward(dnormed, run.x, w["norm"], run.inv)
    g.put("norm", dgain)
    for i in reversed(range(w.model.layers)):
        attention, feed_forward = run.kept[i]
        dx = layers.feed_forward_backward(w, f"layers.{i}", dx, feed_forward, g)
        dx = layers.attention_backward(w, f"layers.{i}", dx, attention, g)
    # The tied gradient: the output's part is there already, the lookups are added to it.
    ops.embed_backward(dx, inputs.reshape(-1), g.views["embed"])
    return value, flat


class _Run:
    """What one forward pass keeps for the backward pass."""

    logits: F32
    x: F32
    inv: F32
    normed: F32

    def __init__(self) -> None:
        self.kept: list[tuple[layers.AttentionKept, layers.FeedForwardKept]] = []


def _forward(w: Weights, inputs: Tokens) -> _Run:
    batch, seq_len = inputs.shape
    tables = rotation_for(w.model)
    rotation = layers.Rotation(tables.cos[:seq_len], tables.sin[:seq_len])
    run = _Run()
    x = w.ops.embed(w["embed"], inputs.reshape(-1))
    for i in range(w.model.layers):
        x, attention = layers.attention(w, f"layers.{i}", x, rotation, batch)
        x, feed_forward = layers.feed_forward(w, f"layers.{i}", x)
        run.kept.append((attention, feed_forward))
    run.x = x
    run.normed, run.inv = w.ops.rmsnorm(x, w["norm"], layers.NORM_EPS)
    run.logits = layers.linear(w, "embed", run.normed)
    return run
