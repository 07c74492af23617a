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
    found = {"torch eager": _step(TorchModel(model, flat), inputs, targets, lambda f: f)}
    if compiled:
        wrapped = _step(TorchModel(model, flat), inputs, targets, torch.compile)
        found["torch.compile"] = wrapped
    return found


class TorchModel:
    """The decoder with float32 parameters, by the names of our layout."""

    def __init__(self, model: ModelConfig, flat: F32) -> None:
        """flat [P]: the weights to begin with; copied."""
        self.model = model
        self.parameters = {
            t.name: torch.from_numpy(
                flat[t.start : t.stop].reshape(t.shape).copy()
            ).requires_grad_()
            for t in layout_of(model).tensors
        }
        tables = kernels.rope_tables(model.seq_len, model.head_dim, ROPE_BASE)
        self._cos, self._sin = (torch.from_numpy(table.copy()) for table in tables)

    def loss(self, ids: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
        """Mean loss of the tokens [B, T] int64 with T = seq_len; a scalar to differentiate."""
        w, model = self.parameters, self.model
        batch, seq_len = ids.shape

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.view(batch, seq_len, model.heads, model.head_dim).transpose(1, 2)

        x = functional.embedding(ids, w["embed"])
        for i in range(model.layers):
            p = f"layers.{i}."
            h = _norm(x, w[p + "attn_norm"])
            q, k, v = (heads(functional.linear(h, w[p + name])) for name in "qkv")
            mixed = functional.scaled_dot_product_attention(
                self._rotate(q), self._rotate(k), v, is_causal=True
            )
            x = x + functional.linear(mixed.transpose(1, 2).reshape(x.shape), w[p + "o"])
            h = _norm(x, w[p + "ffn_norm"])
            gate = functional.silu(functional.linear(h, w[p + "gate"]))
            x = x + functional.linear(gate * functional.linear(h, w[p + "up"]), w[p + "down"])
        logits = functional.linear(_norm(x, w["norm"]), w["embed"])
        return functional.cross_entropy(logits.view(-1, model.vocab), goals.reshape(-1))

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * self._cos - b * self._sin, b * self._cos + a * self._sin], -1)


def _norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), gain, NORM_EPS)


def _step(
    model: TorchModel,
    inputs: Tokens,
    targets: Tokens,
    wrap: Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]],
) -> Step:
    ids, goals = torch.from_numpy(inputs).long(), torch.from_numpy(targets).long()
    run = wrap(model.loss)

    def step() -> float:
        for parameter in model.parameters.values():
            parameter.grad = None
        loss = run(ids, goals)
        loss.backward()
        return float(loss.item())

    return step
