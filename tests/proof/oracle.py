"""Per-element operations as docs/ARITHMETIC.md states them, computed in integers (`binary32`).

Each check makes inputs on which rounding shows, asks a form of the operation, and counts answers
whose bits differ from the exact ones rounded where the page says so. May import: kernels, siblings.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import kernels
from kernels import constants as c
from kernels.types import Quantised

from .binary32 import B32, I64, power_of_two, where
from .inputs import F32, numbers

Check = Callable[[kernels.Kernels, int, int], tuple[int, int]]
"""(operations, seed, how many inputs about) -> (answers compared, answers that differ)."""
Tally = tuple[int, int]


def _compare(*pairs: tuple[F32, B32]) -> Tally:
    wrong = sum(int((f.reshape(-1).view(np.uint32) != b.bits.reshape(-1)).sum()) for f, b in pairs)
    return sum(found.size for found, _ in pairs), wrong


def exp(x: B32) -> B32:
    """ARITHMETIC.md, "Elementary functions"."""
    low, high = B32.of(c.EXP_LOW), B32.of(c.EXP_HIGH)
    bounded = where(x < high, x, high)
    bounded = where(bounded > low, bounded, low)
    bias = B32.of(c.ROUNDING_BIAS)
    n = (bounded * B32.of(c.LOG2_E) + bias) - bias
    r = bounded - n * B32.of(c.LN2_HIGH) - n * B32.of(c.LN2_LOW)
    y = B32.of(c.EXP_C5)
    for coefficient in (c.EXP_C4, c.EXP_C3, c.EXP_C2, c.EXP_C1, c.EXP_C0):
        y = y * r + B32.of(coefficient)
    y = y * (r * r) + r + B32.of(1.0)
    return where(x < low, B32.of(0.0), y * power_of_two(n.integers()))


def log(x: B32) -> B32:
    """The same, for positive normal numbers."""
    field = (x.bits >> np.uint32(23)).astype(np.int64)
    m = B32((x.bits & np.uint32(0x7FFFFF)) | np.uint32(126 << 23))  # in 0.5..1
    small = m < B32.of(c.SQRT_HALF)
    e = B32.of_integers(field - 126 - small)
    f = where(small, m + m, m) - B32.of(1.0)
    z = f * f
    y = B32.of(c.LOG_C[0])
    for coefficient in c.LOG_C[1:]:
        y = y * f + B32.of(coefficient)
    y = y * f * z + e * B32.of(c.LN2_LOW) - B32.of(0.5) * z
    return f + y + e * B32.of(c.LN2_HIGH)


def sigmoid(x: B32) -> B32:
    one = B32.of(1.0)
    return one / (one + exp(-x))


def _exponents(seed: int, count: int) -> F32:
    """Arguments of exp: any, and those next to where it changes to another power of two."""
    rng = np.random.default_rng(seed)
    steps = (rng.integers(-126, 127, count // 2) + 0.5) * np.log(2.0)
    near = steps.astype(np.float32).view(np.int32) + rng.integers(-2, 3, count // 2, np.int32)
    return np.concatenate([numbers(seed, count - count // 2, -40, 7), near.view(np.float32)])


def check_exp(ops: kernels.Kernels, seed: int, count: int) -> Tally:
    x = _exponents(seed, count)
    return _compare((ops.exp(x), exp(B32.of(x))))


def check_log(ops: kernels.Kernels, seed: int, count: int) -> Tally:
    wide = np.abs(numbers(seed, count // 2, -126, 127))
    near = np.abs(numbers(seed + 1, count - count // 2, -1, 0))
    x = np.concatenate([wide, near])
    x = np.where(x < np.float32(2.0**-126), np.float32(1.5), x)
    return _compare((ops.log(x), log(B32.of(x))))


def check_swiglu(ops: kernels.Kernels, seed: int, count: int) -> Tally:
    gate = _exponents(seed, count)[:, None]
    up, dh = (numbers(seed + i, count, -30, 30)[:, None] for i in (1, 2))
    g, u, d, one = B32.of(gate), B32.of(up), B32.of(dh), B32.of(1.0)
    s = sigmoid(g)
    dgate, dup = ops.swiglu_backward(dh, gate, up)
    return _compare(
        (ops.swiglu(gate, up), g * s * u),
        (dgate, d * u * (s * (one + g * (one - s)))),
        (dup, d * (g * s)),
    )


def check_rsqrt(ops: kernels.Kernels, seed: int, count: int) -> Tally:
    """The norm of rows of one value: inv = 1 / √(x² + ε)."""
    x, gain = numbers(seed, count, -40, 40)[:, None], np.float32([1.375])
    eps = np.float32(1e-5)
    y, inv = ops.rmsnorm(x, gain, float(eps))
    value = B32.of(x)
    expected = B32.of(1.0) / (value * value / B32.of(1.0) + B32.of(eps)).sqrt()
    return _compare((inv, expected), (y, value * expected * B32.of(gain)))


def check_quantise(ops: kernels.Kernels, seed: int, count: int) -> Tally:
    """Rows whose values lie next to half a unit, and rows with any values."""
    limit = (127, 2047)[seed % 2]
    rng = np.random.default_rng(seed)
    width = 256
    top = np.abs(numbers(seed, max(2, count // width), -110, 100))[:, None]
    top = np.where(top == 0, np.float32(1), top)
    halves = (rng.integers(-limit, limit, (top.size, width)) + 0.5) / limit
    x = (top * halves).astype(np.float32)
    x.view(np.int32)[:] += rng.integers(-2, 3, x.shape, dtype=np.int32)
    x[::2] = numbers(seed + 1, x[::2].size, -6, -1).reshape(x[::2].shape) * top[::2]
    x[:, 0] = top[:, 0]
    a = B32.of(np.max(np.abs(x), axis=1, keepdims=True))
    lim, zero = B32.of(float(limit)), B32.of(0.0)
    flushed = a < B32.of(2.0**-100)
    one = B32.of(1.0)
    scale = where(flushed, zero, a / lim)
    q = (B32.of(x) * where(flushed, zero, lim / where(flushed, one, a))).rint().integers()
    answers = (ops.quantise_rows(x, limit), ops.quantise_cols(np.ascontiguousarray(x.T), limit))
    wrong = 0
    for found in answers:
        values = found.q if found.by_rows else found.q.T
        wrong += int((values != q).sum()) + _compare((found.scale, scale))[1]
    return 2 * (q.size + scale.bits.size), wrong


def check_epilogue(ops: kernels.Kernels, seed: int, count: int) -> Tally:
    """Sums beyond 2²⁴, which must be rounded, times two scales; by the products for dX and dW."""
    rng = np.random.default_rng(seed)
    side, inner = max(2, int((count / 2) ** 0.5)), 600
    a, b = (rng.integers(-2047, 2048, (side, inner)).astype(np.int16) for _ in range(2))
    a[0], b[0] = 2047, 2047  # flushed on its way: 2047² · 600 is more than int32 holds
    rows, cols = numbers(seed, side, -50, 50), numbers(seed + 1, side, -50, 50)
    total = np.asarray(a.astype(np.float64) @ b.T.astype(np.float64))  # integers below 2**53
    assert np.abs(total).max() > 2**31
    expected = B32.of_integers(total.astype(np.int64)) * B32.of(rows)[:, None] * B32.of(cols)
    turned = [np.ascontiguousarray(operand.T) for operand in (a, b)]
    right = Quantised(turned[1], cols, 2047, by_rows=False)
    dx = ops.linear_dx(Quantised(a, rows, 2047, by_rows=True), right)
    dw = ops.linear_dw(Quantised(turned[0], rows, 2047, by_rows=False), right)
    return _compare((dx, expected), (dw, expected))


def check_grid(ops: kernels.Kernels, seed: int, count: int) -> Tally:
    exponent, slots = -int(np.random.default_rng(seed).integers(5, 40)), 1 + seed % 16
    limit = kernels.grid_limit(slots)
    g = numbers(seed, count, exponent - 4, exponent + 31)
    q, clamps, largest = ops.grid(g, exponent, limit)
    scaled = (B32.of(g) * power_of_two(np.int64(-exponent))).rint()
    bound = _at_most(limit)
    exact = np.clip(_wide(scaled), -bound, bound)
    mean = B32.of_integers(exact) * power_of_two(np.int64(exponent)) / B32.of(float(slots))
    size, wrong = _compare((ops.dequantise(q, exponent, slots), mean))
    wrong += int((q != exact).sum()) + (largest != np.abs(exact).max())
    return 2 * size + 2, wrong + (clamps != int((np.abs(_wide(scaled)) > bound).sum()))


def _wide(x: B32) -> I64:
    """Integers, those beyond 2**37 as 2**37."""
    far = abs(x) > B32.of(2.0**37)
    sign = np.where(x.negative, -1, 1)
    return np.where(far, sign << np.int64(37), where(far, B32.of(0.0), x).integers())


def _at_most(limit: int) -> int:
    """The largest integer of 24 bits, times a power of two, that is not above the limit."""
    drop = max(0, limit.bit_length() - 24)
    return limit >> drop << drop


def check_adam(ops: kernels.Kernels, seed: int, count: int) -> Tally:
    s = kernels.adam_scalars(
        lr=3e-3, beta1=0.9, beta2=0.95, beta1_power=0.9 ** (seed + 1),
        beta2_power=0.95 ** (seed + 1), eps=1e-8, weight_decay=0.1, clip=0.3 + 0.1 * (seed % 8),
    )  # fmt: skip
    w, m, g = (numbers(seed + i, count, -40, 4) for i in range(3))
    v = np.abs(numbers(seed + 3, count, -90, 8))
    new = ops.adam(w, m, v, g, s, [(0, count // 2, True), (count // 2, count, False)])
    decay = np.where(np.arange(count) < count // 2, s.weight_decay, np.float32(0))
    of = B32.of
    clipped = of(g) * of(s.clip)
    m2 = of(s.beta1) * of(m) + of(s.one_minus_beta1) * clipped
    v2 = of(s.beta2) * of(v) + of(s.one_minus_beta2) * clipped * clipped
    step = (m2 / of(s.c1)) / ((v2 / of(s.c2)).sqrt() + of(s.eps)) + of(decay) * of(w)
    return _compare((new[0], of(w) - of(s.lr) * step), (new[1], m2), (new[2], v2))


def check_rope(ops: kernels.Kernels, seed: int, count: int) -> Tally:
    half, length = 8, 32
    heads = max(1, count // (2 * half * length))
    x = numbers(seed, length * heads * 2 * half, -20, 20).reshape(length, -1)
    cos, sin = (np.array(table) for table in kernels.rope_tables(length, 2 * half))
    a, b = (B32.of(x.reshape(length, heads, 2, half)[:, :, i]) for i in (0, 1))
    u, v = B32.of(cos[:, None]), B32.of(sin[:, None])
    forward, backward = (
        f(x, cos, sin).reshape(length, heads, 2, half) for f in (ops.rope, ops.rope_backward)
    )
    return _compare(
        (forward[:, :, 0], a * u - b * v),
        (forward[:, :, 1], b * u + a * v),
        (backward[:, :, 0], a * u + b * v),
        (backward[:, :, 1], b * u - a * v),
    )


CHECKS: dict[str, Check] = {
    "exp": check_exp,
    "log": check_log,
    "swiglu": check_swiglu,
    "rsqrt": check_rsqrt,
    "quantise": check_quantise,
    "epilogue": check_epilogue,
    "grid": check_grid,
    "adam": check_adam,
    "rope": check_rope,
}


def differing(ops: kernels.Kernels, count: int, seeds: range) -> dict[str, tuple[int, int]]:
    """For every check (answers compared, answers that differ), over all seeds."""
    found = {}
    for name, check in CHECKS.items():
        tallies = [check(ops, seed, count) for seed in seeds]
        found[name] = (sum(size for size, _ in tallies), sum(wrong for _, wrong in tallies))
    return found
