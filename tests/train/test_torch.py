"""The oracle and the exact gradient against PyTorch's autograd (needs the `torch` extra)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from p2pnode.train import model
from p2pnode.train.arithmetic import kernels
from p2pnode.train.layout import layout_of
from p2pnode.train.weights import Weights
from tests.train import oracle
from tests.train.helpers import MICRO, cosine, tokens, trained_like


def norm(x, gain):
    return functional.rms_norm(x, (x.shape[-1],), gain, oracle.EPS)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def autograd(flat, inputs, targets):
    """Loss and flat gradient of the float model written with PyTorch's own layers."""
    leaf = torch.tensor(flat, requires_grad=True)
    w = {t.name: leaf[t.start : t.stop].view(t.shape) for t in layout_of(MICRO).tensors}
    batch, seq_len = inputs.shape
    cos, sin = (torch.tensor(table) for table in oracle.rotation(MICRO, seq_len))

    def heads(y):
        return y.view(batch, seq_len, MICRO.heads, MICRO.head_dim).transpose(1, 2)

    x = functional.embedding(torch.tensor(inputs).long(), w["embed"])
    for i in range(MICRO.layers):
        p = f"layers.{i}."
        h = norm(x, w[p + "attn_norm"])
        q, k, v = (heads(functional.linear(h, w[p + name])) for name in "qkv")
        o = functional.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + functional.linear(o.transpose(1, 2).reshape(x.shape), w[p + "o"])
        h = norm(x, w[p + "ffn_norm"])
        gate = functional.silu(functional.linear(h, w[p + "gate"]))
        x = x + functional.linear(gate * functional.linear(h, w[p + "up"]), w[p + "down"])
    logits = functional.linear(norm(x, w["norm"]), w["embed"])
    loss = functional.cross_entropy(
        logits.reshape(-1, MICRO.vocab), torch.tensor(targets).long().reshape(-1)
    )
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad.numpy()


def test_oracle_equals_autograd():
    flat = trained_like(MICRO).astype(np.float64)
    inputs, targets = tokens(MICRO)
    loss, gradient = oracle.loss_and_gradient(MICRO, flat, inputs, targets)
    torch_loss, torch_gradient = autograd(flat, inputs, targets)
    assert loss == pytest.approx(torch_loss, rel=1e-10)
    np.testing.assert_allclose(gradient, torch_gradient, rtol=1e-8, atol=1e-12)


def test_exact_gradient_points_where_autograd_does():
    flat = trained_like(MICRO, scale=0.1)
    inputs, targets = tokens(MICRO)
    w = Weights(kernels.load(reference=True), MICRO, flat)
    _, gradient = model.loss_and_gradient(w, inputs, targets)
    _, truth = autograd(flat.astype(np.float64), inputs, targets)
    assert cosine(gradient, truth) > 0.995
