"""The two halves of a decoder layer and their gradients, on explicit kernels.

Index names: M = B * T tokens, K = width, H heads of D channels, F = ffn. Every activation is
float32 [M, ...], row m being token m % T of sequence m // T. Quantisation counts as the identity
in the gradients (straight-through).

May import: arithmetic, weights, layout.
"""

from __future__ import annotations

import dataclasses

from p2pnode.train.arithmetic import kernels
from p2pnode.train.layout import F32
from p2pnode.train.weights import Weights

NORM_EPS = 1e-5


@dataclasses.dataclass(frozen=True)
class Rotation:
    """Tables of the rotary embedding, each [T, D / 2]."""

    cos: F32
    sin: F32


@dataclasses.dataclass(frozen=True)
class AttentionKept:
    """What the backward pass of `attention` needs. x, normed, mixed: [M, K]; inv: [M], as
    `rmsnorm` gives it."""

    x: F32
    inv: F32
    normed: F32
    mixed: F32
    rotation: Rotation
    inner: kernels.AttentionSaved


@dataclasses.dataclass(frozen=True)
class FeedForwardKept:
    """The same of `feed_forward`. x, normed: [M, K]; inv: [M]; gate, up, hidden: [M, ffn]."""

    x: F32
    inv: F32
    normed: F32
    gate: F32
    up: F32
    hidden: F32


class Gradient:
    """Named views into a flat gradient vector [P], filled tensor by tensor."""

    def __init__(self, views: dict[str, F32]) -> None:
        self.views = views

    def put(self, name: str, value: F32) -> None:
        """A tensor's gradient, in the tensor's own shape."""
        self.views[name][:] = value


def linear(w: Weights, name: str, x: F32) -> F32:
    """x[M, K] times the matrix `name` [N, K], transposed -> [M, N]."""
    return w.ops.linear(x, w.forward(name))


def linears(w: Weights, names: tuple[str, ...], x: F32) -> list[F32]:
    """Several products of one left operand, which is quantised once."""
    left = w.ops.quantise_rows(x, kernels.INT8_LIMIT)
    return [w.ops.linear(left, w.forward(name)) for name in names]


def linear_backward(w: Weights, name: str, dy: F32, x: kernels.Quantised, g: Gradient) -> F32:
    """dy[M, N], and x[M, K] in 12 bits by columns -> dx[M, K]; the matrix's gradient goes to g."""
    matrix = w.backward(name)
    w.ops.linear_dw(dy, x, g.views[name])
    return w.ops.linear_dx(dy, matrix)


def attention(
    w: Weights, layer: str, x: F32, rotation: Rotation, batch: int
) -> tuple[F32, AttentionKept]:
    """x + o(attention(norm(x))), all [M, K]."""
    ops = w.ops
    normed, inv = ops.rmsnorm(x, w[f"{layer}.attn_norm"], NORM_EPS)
    q, k, v = linears(w, (f"{layer}.q", f"{layer}.k", f"{layer}.v"), normed)
    q = ops.rope(q, rotation.cos, rotation.sin)
    k = ops.rope(k, rotation.cos, rotation.sin)
    mixed, inner = ops.attention(q, k, v, batch, w.model.heads)
    out = ops.add(x, linear(w, f"{layer}.o", mixed))
    return out, AttentionKept(x, inv, normed, mixed, rotation, inner)


def attention_backward(w: Weights, layer: str, dout: F32, kept: AttentionKept, g: Gradient) -> F32:
    """dout[M, K] -> dx[M, K]."""
    ops = w.ops
    mixed = ops.quantise_cols(kept.mixed, kernels.INT12_LIMIT)
    dmixed = linear_backward(w, f"{layer}.o", dout, mixed, g)
    dq, dk, dv = ops.attention_backward(dmixed, kept.inner)
    dq = ops.rope_backward(dq, kept.rotation.cos, kept.rotation.sin)
    dk = ops.rope_backward(dk, kept.rotation.cos, kept.rotation.sin)
    normed = ops.quantise_cols(kept.normed, kernels.INT12_LIMIT)
    dnormed = linear_backward(w, f"{layer}.q", dq, normed, g)
    dnormed = ops.add(dnormed, linear_backward(w, f"{layer}.k", dk, normed, g))
    dnormed = ops.add(dnormed, linear_backward(w, f"{layer}.v", dv, normed, g))
    dx, dgain = ops.rmsnorm_backward(dnormed, kept.x, w[f"{layer}.attn_norm"], kept.inv)
    g.put(f"{layer}.attn_norm", dgain)
    return ops.add(dout, dx)


def feed_forward(w: Weights, layer: str, x: F32) -> tuple[F32, FeedForwardKept]:
    """x + down(silu(gate(norm(x))) * up(norm(x))), [M, K]."""
    ops = w.ops
    normed, inv = ops.rmsnorm(x, w[f"{layer}.ffn_norm"], NORM_EPS)
    gate, up = linears(w, (f"{layer}.gate", f"{layer}.up"), normed)
    hidden = ops.swiglu(gate, up)
    out = ops.add(x, linear(w, f"{layer}.down", hidden))
    return out, FeedForwardKept(x, inv, normed, gate, up, hidden)


def feed_forward_backward(
    w: Weights, layer: str, dout: F32, kept: FeedForwardKept, g: Gradient
) -> F32:
    """dout[M, K] -> dx[M, K]."""
    ops = w.ops
    hidden = ops.quantise_cols(kept.hidden, kernels.INT12_LIMIT)
    dhidden = linear_backward(w, f"{layer}.down", dout, hidden, g)
    dgate, dup = ops.swiglu_backward(dhidden, kept.gate, kept.up)
    normed = ops.quantise_cols(kept.normed, kernels.INT12_LIMIT)
    dnormed = linear_backward(w, f"{layer}.gate", dgate, normed, g)
    dnormed = ops.add(dnormed, linear_backward(w, f"{layer}.up", dup, normed, g))
    dx, dgain = ops.rmsnorm_backward(dnormed, kept.x, w[f"{layer}.ffn_norm"], kept.inv)
    g.put(f"{layer}.ffn_norm", dgain)
    return ops.add(dout, dx)
