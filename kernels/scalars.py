"""Numbers computed once a step or once a run, in Python integers or binary64. One form only.

Uses + - * / on binary64 and nothing else; cosines, sines and roots come from big integers and
are rounded once, to nearest even. May import: types, numpy.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from .types import F32, AdamScalars

_BITS = 256
"""Fraction bits of the fixed-point numbers below; results need at most 53 + a margin."""
_GUARD = 64
"""Bits that may be wrong after the longest computation here; rounding checks that they decide
nothing."""

EXPONENT_LOW, EXPONENT_HIGH = -100, 20
LOWER_AFTER = 16
"""Steps in a row with spare headroom before a grid exponent falls by one."""


def round_fixed(value: int, digits: int) -> float:
    """value * 2^-256 rounded to `digits` significant bits, to nearest; exact as a float.

    value is known to within 2^64, or is exactly 0; ArithmeticError if the error could decide the
    rounding (it lies that close to a tie).
    """
    if value == 0:
        return 0.0
    low = _round_exact(value - (1 << _GUARD), digits)
    if low != _round_exact(value + (1 << _GUARD), digits):
        raise ArithmeticError("fixed-point precision does not decide the rounding")
    return low


def _round_exact(value: int, digits: int) -> float:
    magnitude = abs(value)
    drop = magnitude.bit_length() - digits
    if drop > 0:
        magnitude = (magnitude + (1 << (drop - 1))) >> drop
    rounded = math.ldexp(magnitude, max(drop, 0) - _BITS)
    return -rounded if value < 0 else rounded


@functools.lru_cache(maxsize=1)
def pi_fixed() -> int:
    """pi * 2^256 by Machin's formula, 16 atan(1/5) - 4 atan(1/239)."""

    def atan_inverse(n: int) -> int:
        term = (1 << (_BITS + _GUARD)) // n
        total, k, square = term, 1, n * n
        while term:
            term //= -square
            k += 2
            total += term // k
        return total

    return (16 * atan_inverse(5) - 4 * atan_inverse(239)) >> _GUARD


def cos_sin_fixed(angle: int) -> tuple[int, int]:
    """(cos, sin) * 2^256 of angle * 2^-256, 0 <= angle <= 4 * 2^256, by Taylor series."""
    cos, sin, term, k = 0, 0, 1 << _BITS, 0
    while term:
        sign = -1 if k & 2 else 1
        if k & 1:
            sin += sign * term
        else:
            cos += sign * term
        k += 1
        term = ((term * angle) >> _BITS) // k
    return cos, sin


def cosine_of_pi(numerator: int, denominator: int) -> float:
    """cos(pi * numerator / denominator), 0 <= numerator <= denominator, correctly rounded."""
    if not 0 <= numerator <= denominator or denominator < 1:
        raise ValueError("the fraction must lie in 0..1")
    if 2 * numerator == denominator:
        return 0.0
    cos, _ = cos_sin_fixed(pi_fixed() * numerator // denominator)
    return round_fixed(cos, 53)


def integer_root(value: int, degree: int) -> int:
    """Largest r with r^degree <= value, by Newton's method from above."""
    if value < 1:
        return 0
    root = 1 << -(-value.bit_length() // degree)
    while True:
        better = ((degree - 1) * root + value // root ** (degree - 1)) // degree
        if better >= root:
            return root
        root = better


@functools.lru_cache(maxsize=8)
def rope_tables(seq_len: int, head_dim: int, base: int = 10_000) -> tuple[F32, F32]:
    """cos and sin of position * base^(-2i/head_dim), each float32 (seq_len, head_dim/2).

    Every entry is correctly rounded. The arrays are cached and read-only; use them as they are.
    """
    if head_dim < 2 or head_dim % 2 or seq_len < 1 or base < 2:
        raise ValueError("rope needs seq_len >= 1, an even head_dim >= 2 and base >= 2")
    cos = np.empty((seq_len, head_dim // 2), np.float32)
    sin = np.empty_like(cos)
    for i in range(head_dim // 2):
        shared = math.gcd(2 * i, head_dim)
        power, degree = 2 * i // shared, head_dim // shared
        step = integer_root((1 << (_BITS * degree)) // base**power, degree)
        c1, s1 = cos_sin_fixed(step)
        c, s = 1 << _BITS, 0
        for position in range(seq_len):
            cos[position, i], sin[position, i] = round_fixed(c, 24), round_fixed(s, 24)
            c, s = (c * c1 - s * s1) >> _BITS, (c * s1 + s * c1) >> _BITS
    cos.flags.writeable = sin.flags.writeable = False
    return cos, sin


def schedule(step: int, *, lr: float, warmup: int, steps: int, lr_floor: float) -> float:
    """Learning rate of the update after `step` applied ones: linear warmup, then half a cosine.

    lr_floor is the final rate as a fraction of lr, reached at `steps` and kept after it.
    """
    if step < warmup:
        return lr * float(step + 1) / float(warmup)
    done, length = min(step, steps) - warmup, max(1, steps - warmup)
    wave = (1.0 + cosine_of_pi(min(max(done, 0), length), length)) / 2.0
    return lr * (lr_floor + (1.0 - lr_floor) * wave)


def clip_factor(norm: float, clip: float) -> float:
    """min(1, clip / (norm + 1e-6))."""
    factor = clip / (norm + 1e-6)
    return factor if factor < 1.0 else 1.0


def adam_scalars(
    *,
    lr: float,
    beta1: float,
    beta2: float,
    beta1_power: float,
    beta2_power: float,
    eps: float,
    weight_decay: float,
    clip: float,
) -> AdamScalars:
    """Round the binary64 scalars of one step to binary32, once each.

    beta*_power is beta^t with t counting this update (1 for the first): the caller multiplies
    its kept power by beta before each update. clip comes from `clip_factor`.
    """
    f = np.float32
    return AdamScalars(
        lr=f(lr),
        beta1=f(beta1),
        one_minus_beta1=f(1.0 - beta1),
        beta2=f(beta2),
        one_minus_beta2=f(1.0 - beta2),
        c1=f(1.0 - beta1_power),
        c2=f(1.0 - beta2_power),
        eps=f(eps),
        weight_decay=f(weight_decay),
        clip=f(clip),
    )


def grid_limit(slots: int) -> int:
    """L: the largest magnitude of one slot's integers such that `slots` of them fit in int32."""
    if not 1 <= slots <= 1024:
        raise ValueError("a step has 1 to 1,024 slots")
    return (2**31 - 1) // slots


def first_exponent(limit: int) -> int:
    """Grid exponent of a tensor at the start, -floor(log2 L)."""
    return 1 - limit.bit_length()


def next_exponent(exponent: int, max_abs: int, limit: int, counter: int) -> tuple[int, int]:
    """(exponent, counter) of a tensor after a step whose largest |q| of any slot was max_abs.

    counter is how many steps in a row had spare headroom. Nothing but integers decides.
    """
    b, top = max_abs.bit_length(), limit.bit_length()
    if b == 0:
        return exponent, counter
    if b > top - 3 or b < top - 10:
        exponent, counter = exponent + b - (top - 5), 0
    elif b < top - 6:
        counter += 1
        if counter == LOWER_AFTER:
            exponent, counter = exponent - 1, 0
    else:
        counter = 0
    return min(max(exponent, EXPONENT_LOW), EXPONENT_HIGH), counter
