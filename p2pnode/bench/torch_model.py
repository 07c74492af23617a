"""The same model in PyTorch, float32: what people would write today.

May import: config, train.arithmetic, train.layout; torch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from p2pnode.config import ModelConfig
from p2pnode.train.arithmetic import kernels
from p2pnode.train.layers import NORM_EPS
from p2pnode.train.layout import F32, layout_of
from p2pnode.train.model import ROPE_BASE, Tokens

Step = Callable[[], float]


def steps(
    model: ModelConfig, flat: F32, inputs: Tokens, targets: Tokens, compiled: bool
) -> dict[str, Step]:
    """Forward and backward of a batch [B, T]; each call returns the loss.

    Eager, and with torch.compile if `compiled`.
    """
    found = {"torch eager": _step(model, flat, inputs, targets, lambda f: f)}
    if compiled:
        found["torch.compile"] = _step(model, flat, inputs, targets, torch.compile)
    return found


def _step(
    model: ModelConfig,
    flat: F32,
    inputs: Tokens,
    targets: Tokens,
    wrap: Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]],
) -> Step:
    w = {
        t.name: torch.from_numpy(flat[t.start : t.stop].reshape(t.shape).copy()).requires_grad_()
        for t in layout_of(model).tensors
    }
    tables = kernels.rope_tables(model.seq_len, model.head_dim, ROPE_BASE)
    cos, sin = (torch.from_numpy(table.copy()) for table in tables)
    ids, goals = torch.from_numpy(inputs).long(), torch.from_numpy(targets).long().reshape(-1)
    batch, seq_len = inputs.shape

    def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), gain, NORM_EPS)

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(batch, seq_len, model.heads, model.head_dim).transpose(1, 2)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward() -> torch.Tensor:
        x = functional.embedding(ids, w["embed"])
        for i in range(model.layers):
            p = f"layers.{i}."
            h = norm(x, w[p + "attn_norm"])
            q, k, v = (heads(functional.linear(h, w[p + name])) for name in "qkv")
            mixed = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + functional.linear(mixed.transpose(1, 2).reshape(x.shape), w[p + "o"])
            h = norm(x, w[p + "ffn_norm"])
            gate = functional.silu(functional.linear(h, w[p + "gate"]))
            x = x + functional.linear(gate * functional.linear(h, w[p + "up"]), w[p + "down"])
        logits = functional.linear(norm(x, w["norm"]), w["embed"])
        return functional.cross_entropy(logits.view(-1, model.vocab), goals)

    run = wrap(forward)

    def step() -> float:
        for parameter in w.values():
            parameter.grad = None
        loss = run()
        loss.backward()
        return float(loss.item())

    return step
