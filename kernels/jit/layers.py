"""exp, log, norm, rotary embedding, SwiGLU, residual and embedding, equal to the reference.

May import: types, workspace, jit siblings.
"""

from __future__ import annotations

import numpy as np

from ..types import F32, I32
from ..workspace import empty
from .compile import kernel
from .scalar import ONE, ZERO, clear_lanes, exp32, fold_lanes, log32
from .threads import share


def _like(x: F32) -> F32:
    out: F32 = empty(x.shape, np.float32)
    return out


@kernel
def _exp(x, out):
    for i in range(x.size):
        out[i] = exp32(x[i])


@kernel
def _log(x, out):
    for i in range(x.size):
        out[i] = log32(x[i])


@kernel
def _rmsnorm(x, gain, eps, lanes, y, inv):
    width = x.shape[1]
    whole = width // 16 * 16
    for i in range(x.shape[0]):
        clear_lanes(lanes)
        for k in range(0, whole, 16):
            for j in range(16):
                lanes[j] = lanes[j] + x[i, k + j] * x[i, k + j]
        for j in range(width - whole):
            lanes[j] = lanes[j] + x[i, whole + j] * x[i, whole + j]
        r = ONE / np.sqrt(fold_lanes(lanes) / np.float32(width) + eps)
        inv[i] = r
        for k in range(width):
            y[i, k] = x[i, k] * r * gain[k]


@kernel
def _rmsnorm_backward(dy, x, gain, inv, lanes, dx, dgain):
    width = x.shape[1]
    whole = width // 16 * 16
    for k in range(width):
        dgain[k] = ZERO
    for i in range(x.shape[0]):
        r = inv[i]
        clear_lanes(lanes)
        for k in range(0, whole, 16):
            for j in range(16):
                n = k + j
                lanes[j] = lanes[j] + (dy[i, n] * gain[n]) * (x[i, n] * r)
        for j in range(width - whole):
            n = whole + j
            lanes[j] = lanes[j] + (dy[i, n] * gain[n]) * (x[i, n] * r)
        along = fold_lanes(lanes) / np.float32(width)
        for k in range(width):
            normed = x[i, k] * r
            dx[i, k] = (dy[i, k] * gain[k] - normed * along) * r
            dgain[k] = dgain[k] + dy[i, k] * normed


@kernel
def _rope(x, cos, sin, out):
    seq_len, half = cos.shape
    for m in range(x.shape[0]):
        position = m % seq_len
        for first in range(0, x.shape[1], 2 * half):
            for i in range(half):
                a, b = x[m, first + i], x[m, first + half + i]
                out[m, first + i] = a * cos[position, i] - b * sin[position, i]
                out[m, first + half + i] = b * cos[position, i] + a * sin[position, i]


@kernel
def _rope_backward(dy, cos, sin, out):
    seq_len, half = cos.shape
    for m in range(dy.shape[0]):
        position = m % seq_len
        for first in range(0, dy.shape[1], 2 * half):
            for i in range(half):
                a, b = dy[m, first + i], dy[m, first + half + i]
                out[m, first + i] = a * cos[position, i] + b * sin[position, i]
                out[m, first + half + i] = b * cos[position, i] - a * sin[position, i]


@kernel
def _swiglu(gate, up, out):
    for m in range(gate.shape[0]):
        for k in range(gate.shape[1]):
            g = gate[m, k]
            out[m, k] = g * (ONE / (ONE + exp32(-g))) * up[m, k]


@kernel
def _swiglu_backward(dh, gate, up, dgate, dup):
    for m in range(gate.shape[0]):
        for k in range(gate.shape[1]):
            g = gate[m, k]
            sigmoid = ONE / (ONE + exp32(-g))
            slope = sigmoid * (ONE + g * (ONE - sigmoid))
            dgate[m, k] = dh[m, k] * up[m, k] * slope
            dup[m, k] = dh[m, k] * (g * sigmoid)


@kernel
def _add(a, b, out):
    for m in range(a.shape[0]):
        for k in range(a.shape[1]):
            out[m, k] = a[m, k] + b[m, k]


@kernel
def _embed(table, ids, out):
    for m in range(ids.size):
        for k in range(table.shape[1]):
            out[m, k] = table[ids[m], k]


@kernel
def _embed_backward(dy, ids, dtable):
    for m in range(ids.size):
        for k in range(dy.shape[1]):
            dtable[ids[m], k] = dtable[ids[m], k] + dy[m, k]


def exp(x: F32) -> F32:
    """e^x."""
    out = _like(x)
    _exp(x, out)
    return out


def log(x: F32) -> F32:
    """Natural logarithm."""
    out = _like(x)
    _log(x, out)
    return out


def rmsnorm(x: F32, gain: F32, eps: np.float32) -> tuple[F32, F32]:
    """-> y[M, K], inv[M]."""
    y, inv = _like(x), empty(x.shape[0], np.float32)
    share(x.shape, lambda m: _rmsnorm(x[m], gain, eps, empty(16, np.float32), y[m], inv[m]))
    return y, inv


def rmsnorm_backward(dy: F32, x: F32, gain: F32, inv: F32) -> tuple[F32, F32]:
    """-> dx[M, K], dgain[K]."""
    dx, dgain = _like(x), _like(gain)
    _rmsnorm_backward(dy, x, gain, inv, empty(16, np.float32), dx, dgain)
    return dx, dgain


def rope(x: F32, cos: F32, sin: F32) -> F32:
    """Rotated x[M, H*D]."""
    out = _like(x)
    share(x.shape, lambda m: _rope(x[m], cos, sin, out[m]), unit=len(cos))
    return out


def rope_backward(dy: F32, cos: F32, sin: F32) -> F32:
    """dy[M, H*D] rotated back."""
    out = _like(dy)
    share(dy.shape, lambda m: _rope_backward(dy[m], cos, sin, out[m]), unit=len(cos))
    return out


def swiglu(gate: F32, up: F32) -> F32:
    """silu(gate) * up."""
    out = _like(gate)
    share(gate.shape, lambda m: _swiglu(gate[m], up[m], out[m]))
    return out


def swiglu_backward(dh: F32, gate: F32, up: F32) -> tuple[F32, F32]:
    """-> dgate, dup."""
    dgate, dup = _like(gate), _like(gate)
    share(gate.shape, lambda m: _swiglu_backward(dh[m], gate[m], up[m], dgate[m], dup[m]))
    return dgate, dup


def add(a: F32, b: F32) -> F32:
    """a + b."""
    out = _like(a)
    share(a.shape, lambda m: _add(a[m], b[m], out[m]))
    return out


def embed(table: F32, ids: I32) -> F32:
    """Rows of the table."""
    out: F32 = empty((ids.size, table.shape[1]), np.float32)
    _embed(table, ids, out)
    return out


def embed_backward(dy: F32, ids: I32, dtable: F32) -> None:
    """Scatter-add in ascending token order."""
    _embed_backward(dy, ids, dtable)
