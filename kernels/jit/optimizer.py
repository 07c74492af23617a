"""Gradient grid, average, norm and Adam, equal to `reference.optimizer`.

May import: constants, errors, reference.optimizer (its scalar helpers), types, workspace, jit
siblings.
"""

from __future__ import annotations

import numpy as np

from ..constants import FLAT_LANES
from ..errors import AccumulatorBoundError, NonFiniteInputError
from ..reference.optimizer import float_limit, power_of_two
from ..types import F32, I32, AdamScalars
from ..workspace import empty
from .compile import kernel
from .scalar import INFINITY_BITS, ZERO, magnitude

_INT32_MAX = np.int64(2**31 - 1)


@kernel
def _grid(g, factor, bound, q):
    """(how many were clamped, or -1 if one is not finite; largest |q|)."""
    top = np.int32(0)
    for i in range(g.size):
        bits = magnitude(g[i])
        top = bits if bits > top else top
    if top >= INFINITY_BITS:
        return np.int64(-1), np.int32(0)
    clamps, largest = np.int64(0), np.int32(0)
    for i in range(g.size):
        scaled = np.rint(g[i] * factor)
        clamps += np.int64(scaled > bound or scaled < -bound)
        scaled = bound if scaled > bound else scaled
        scaled = -bound if scaled < -bound else scaled
        value = np.int32(scaled)
        q[i] = value
        size = np.int32(-value) if value < 0 else value
        largest = size if size > largest else largest
    return clamps, largest


@kernel
def _grid_add(acc, q):
    """False, and nothing added, if a sum leaves +-(2^31 - 1)."""
    fits = True
    for i in range(acc.size):
        total = np.int64(acc[i]) + np.int64(q[i])
        fits &= (total <= _INT32_MAX) & (total >= -_INT32_MAX)
    if fits:
        for i in range(acc.size):
            acc[i] = np.int32(acc[i] + q[i])
    return fits


@kernel
def _dequantise(total, factor, slots, out):
    for i in range(total.size):
        out[i] = np.float32(total[i]) * factor / slots


@kernel
def _norm(g, lanes):
    for j in range(FLAT_LANES):
        lanes[j] = ZERO
    whole = g.size // FLAT_LANES * FLAT_LANES
    for i in range(0, whole, FLAT_LANES):
        for j in range(FLAT_LANES):
            lanes[j] = lanes[j] + g[i + j] * g[i + j]
    for j in range(g.size - whole):
        lanes[j] = lanes[j] + g[whole + j] * g[whole + j]
    width = FLAT_LANES // 2
    while width:
        for j in range(width):
            lanes[j] = lanes[j] + lanes[width + j]
        width //= 2
    return np.sqrt(lanes[0])


@kernel
def _adam(w, m, v, g, lr, b1, a1, b2, a2, c1, c2, eps, decay, clip, tops, w2, m2, v2):
    """One step; tops[7] gets the largest magnitude bits of w, g, m, v, new w, new m, new v."""
    tw, tg, tm, tv = np.int32(0), np.int32(0), np.int32(0), np.int32(0)
    nw, nm, nv = np.int32(0), np.int32(0), np.int32(0)
    for i in range(w.size):
        clipped = g[i] * clip
        first = b1 * m[i] + a1 * clipped
        second = b2 * v[i] + a2 * clipped * clipped
        update = (first / c1) / (np.sqrt(second / c2) + eps) + decay * w[i]
        new = w[i] - lr * update
        w2[i], m2[i], v2[i] = new, first, second
        bits = magnitude(w[i])
        tw = bits if bits > tw else tw
        bits = magnitude(g[i])
        tg = bits if bits > tg else tg
        bits = magnitude(m[i])
        tm = bits if bits > tm else tm
        bits = magnitude(v[i])
        tv = bits if bits > tv else tv
        bits = magnitude(new)
        nw = bits if bits > nw else nw
        bits = magnitude(first)
        nm = bits if bits > nm else nm
        bits = magnitude(second)
        nv = bits if bits > nv else nv
    tops[0], tops[1], tops[2], tops[3] = tw, tg, tm, tv
    tops[4], tops[5], tops[6] = nw, nm, nv


_NAMES = (
    "weight",
    "gradient",
    "first moment",
    "second moment",
    "new weight",
    "new first moment",
    "new second moment",
)


def grid(g: F32, exponent: int, limit: int) -> tuple[I32, int, int]:
    """-> q[n], clamps, largest |q|."""
    q: I32 = empty(g.size, np.int32)
    clamps, largest = _grid(g, power_of_two(-exponent), float_limit(limit), q)
    if clamps < 0:
        raise NonFiniteInputError("the gradient holds NaN or infinity; it was not put on the grid.")
    return q, int(clamps), int(largest)


def grid_add(acc: I32, q: I32) -> None:
    """acc += q, or AccumulatorBoundError."""
    if not _grid_add(acc, q):
        raise AccumulatorBoundError("the sum of gradients leaves int32; nothing was added.")


def dequantise(total: I32, exponent: int, slots: int) -> F32:
    """f32(total) * 2^exponent / f32(slots)."""
    out: F32 = empty(total.size, np.float32)
    _dequantise(total, power_of_two(exponent), np.float32(slots), out)
    return out


def norm(g: F32) -> np.float32:
    """Euclidean norm."""
    return np.float32(_norm(g, empty(FLAT_LANES, np.float32)))


def adam(
    w: F32, m: F32, v: F32, g: F32, s: AdamScalars, decays: bool, out: tuple[F32, F32, F32]
) -> None:
    """One Adam step of a contiguous stretch [n] into out = (w, m, v)."""
    decay = s.weight_decay if decays else ZERO
    tops = empty(7, np.int32)
    betas = (s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2)
    _adam(w, m, v, g, s.lr, *betas, s.c1, s.c2, s.eps, decay, s.clip, tops, *out)
    for name, top in zip(_NAMES, tops, strict=True):
        if top >= INFINITY_BITS:
            raise NonFiniteInputError(f"a {name} is NaN or infinite; the step was refused.")
