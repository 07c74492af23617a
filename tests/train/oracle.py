"""The same decoder in float64 numpy, forward and backward, with nothing quantised.

Written apart from `p2pnode.train.model`: from the formulas, with whole T x T attention matrices.
"""

from __future__ import annotations

import numpy as np

from p2pnode.config import ModelConfig
from p2pnode.train.layout import layout_of

EPS = 1e-5


def rotation(model: ModelConfig, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    half = model.head_dim // 2
    rate = 10_000.0 ** (-np.arange(half) / half)
    angle = np.arange(seq_len)[:, None] * rate
    return np.cos(angle), np.sin(angle)


def rms(x: np.ndarray, gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    inv = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return x * inv * gain, inv


def rms_backward(dy, x, gain, inv):
    n = x * inv
    d = dy * gain
    dx = (d - n * (d * n).mean(-1, keepdims=True)) * inv
    return dx, (dy * n).reshape(-1, x.shape[-1]).sum(0)


def rotate(x, cos, sin):
    """x [B, T, H, D]; pairs (i, i + D/2)."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def loss_and_gradient(model: ModelConfig, flat: np.ndarray, inputs, targets):
    """Mean token loss in nats and its gradient [P], both float64."""
    layout = layout_of(model)
    w = {t.name: flat[t.start : t.stop].reshape(t.shape) for t in layout.tensors}
    batch, seq_len = inputs.shape
    heads, dim = model.heads, model.head_dim
    cos, sin = rotation(model, seq_len)
    mask = np.tril(np.ones((seq_len, seq_len), bool))

    def split(y):
        return y.reshape(batch, seq_len, heads, dim)

    x = w["embed"][inputs]
    kept = []
    for i in range(model.layers):
        p = f"layers.{i}."
        h, inv = rms(x, w[p + "attn_norm"])
        q = rotate(split(h @ w[p + "q"].T), cos, sin)
        k = rotate(split(h @ w[p + "k"].T), cos, sin)
        v = split(h @ w[p + "v"].T)
        scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(dim)
        a = softmax(np.where(mask, scores, -np.inf))
        o = np.einsum("bhij,bjhd->bihd", a, v).reshape(x.shape)
        x1 = x + o @ w[p + "o"].T
        h2, inv2 = rms(x1, w[p + "ffn_norm"])
        gate, up = h2 @ w[p + "gate"].T, h2 @ w[p + "up"].T
        s = 1 / (1 + np.exp(-gate))
        hidden = gate * s * up
        kept.append((x, h, inv, q, k, v, a, o, x1, h2, inv2, gate, up, s, hidden))
        x = x1 + hidden @ w[p + "down"].T
    n, inv = rms(x, w["norm"])
    probabilities = softmax(n @ w["embed"].T)
    count = inputs.size
    picked = np.take_along_axis(probabilities, targets[..., None], -1)
    loss = -np.log(picked).sum() / count

    g = {}

    def matrix(dy, y):
        return dy.reshape(-1, dy.shape[-1]).T @ y.reshape(-1, y.shape[-1])

    dlogits = probabilities.copy()
    np.put_along_axis(dlogits, targets[..., None], picked - 1, -1)
    dlogits /= count
    g["embed"] = matrix(dlogits, n)
    dx, g["norm"] = rms_backward(dlogits @ w["embed"], x, w["norm"], inv)
    for i in reversed(range(model.layers)):
        p = f"layers.{i}."
        x, h, inv, q, k, v, a, o, x1, h2, inv2, gate, up, s, hidden = kept[i]
        g[p + "down"] = matrix(dx, hidden)
        dhidden = dx @ w[p + "down"]
        dup = dhidden * gate * s
        dgate = dhidden * up * s * (1 + gate * (1 - s))
        g[p + "gate"], g[p + "up"] = matrix(dgate, h2), matrix(dup, h2)
        dn, g[p + "ffn_norm"] = rms_backward(
            dgate @ w[p + "gate"] + dup @ w[p + "up"], x1, w[p + "ffn_norm"], inv2
        )
        dx = dx + dn
        g[p + "o"] = matrix(dx, o)
        do = split(dx @ w[p + "o"])
        dv = np.einsum("bhij,bihd->bjhd", a, do)
        da = np.einsum("bihd,bjhd->bhij", do, v)
        ds = a * (da - (da * a).sum(-1, keepdims=True)) / np.sqrt(dim)
        dq = rotate(np.einsum("bhij,bjhd->bihd", ds, k), cos, -sin).reshape(x.shape)
        dk = rotate(np.einsum("bhij,bihd->bjhd", ds, q), cos, -sin).reshape(x.shape)
        dv = dv.reshape(x.shape)
        g[p + "q"], g[p + "k"], g[p + "v"] = matrix(dq, h), matrix(dk, h), matrix(dv, h)
        dn, g[p + "attn_norm"] = rms_backward(
            dq @ w[p + "q"] + dk @ w[p + "k"] + dv @ w[p + "v"], x, w[p + "attn_norm"], inv
        )
        dx = dx + dn
    np.add.at(g["embed"], inputs.reshape(-1), dx.reshape(-1, model.width))
    return loss, np.concatenate([g[t.name].reshape(-1) for t in layout.tensors])
