"""Bugs of the kind that people write, to see what sees them.

Each is a wrong form of one operation, mostly made from the right one. What a node can do wrongly
with right operations is in `faults`. May import: kernels, siblings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels import constants as c
from kernels import workspace
from kernels.reference import FORMS, attention, elementary, layers, products
from kernels.reference.optimizer import float_limit, power_of_two
from kernels.reference.order import lane_sum
from kernels.types import AdamScalars, Quantised

from .inputs import F32

Form = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Bug:
    """A wrong form of one operation."""

    name: str
    operation: str
    form: Form


BUGS: list[Bug] = []


def bug(operation: str) -> Callable[[Form], Form]:
    """Add a wrong form of an operation."""

    def add(form: Form) -> Form:
        BUGS.append(Bug(form.__name__.replace("_", " "), operation, form))
        return form

    return add


# Products

linear, linear_dx, linear_dw = (FORMS[name] for name in ("linear", "linear_dx", "linear_dw"))


@bug("linear")
def last_column_dropped(x: Any, w: Quantised) -> F32:
    y = linear(x, w)
    y[:, -1] = 0
    return y


@bug("linear_dx")
def last_row_dropped(dy: Any, w: Quantised) -> F32:
    y = linear_dx(dy, w)
    y[-1] = 0
    return y


@bug("linear")
def last_term_dropped_if_odd(x: Any, w: Quantised) -> F32:
    a = products.quantise_rows(x, w.limit) if isinstance(x, np.ndarray) else x
    even = a.q.shape[1] // 2 * 2
    total = products.integer_product(a.q[:, :even], w.q[:, :even].T)
    return products.epilogue(total, a.scale[:, None], w.scale)


@bug("linear_dx")
def accumulator_wrapped_at_32_bits(dy: Any, w: Quantised) -> F32:
    a = products.quantise_rows(dy, w.limit) if isinstance(dy, np.ndarray) else dy
    total = products.integer_product(a.q, w.q).astype(np.int64).astype(np.int32)
    return products.epilogue(total.astype(np.float64), a.scale[:, None], w.scale)


def _whole_sums(a: Quantised, b: Quantised, admitted: bool, left: F32) -> F32:
    """int32 sums all of it if that is `admitted`, however large it becomes."""
    total = products.integer_product(left, b.q)
    if admitted:
        total = total.astype(np.int64).astype(np.int32).astype(np.float64)
    return products.epilogue(total, a.scale[:, None], b.scale)


_WHOLE = (2**31 - 1) // 2047
"""What the magnitudes of a column may add up to if int32 is to hold all sums with it."""


@bug("linear_dx")
def bound_on_whole_sums_too_high(dy: Any, w: Quantised) -> F32:
    """By one."""
    a = products.quantise_rows(dy, w.limit) if isinstance(dy, np.ndarray) else dy
    largest = np.abs(w.q.astype(np.int64)).sum(0).max()
    return _whole_sums(a, w, bool(largest <= _WHOLE + 1), a.q)


@bug("linear_dw")
def bound_on_whole_sums_heeds_signs(dy: Any, x: Quantised, out: F32 | None = None) -> F32:
    """The values of a column are added up and not their magnitudes."""
    a = products.quantise_cols(dy, x.limit) if isinstance(dy, np.ndarray) else dy
    largest = np.abs(x.q.astype(np.int64).sum(0)).max()
    dw: F32 = workspace.empty((a.q.shape[1], x.q.shape[1]), np.float32) if out is None else out
    dw[:] = _whole_sums(a, x, bool(largest <= _WHOLE), a.q.T)
    return dw


@bug("linear")
def pairs_saturated_at_16_bits(x: Any, w: Quantised) -> F32:
    """As pmaddubsw does, whose left operand is unsigned: 128 is added, and taken off in the end."""
    a = products.quantise_rows(x, w.limit) if isinstance(x, np.ndarray) else x
    left, right = a.q.astype(np.int64) + 128, w.q.astype(np.int64)
    total = -128 * right.sum(1) + np.zeros((left.shape[0], 1), np.int64)
    for k in range(0, left.shape[1], 2):
        pair = left[:, k : k + 2] @ right[:, k : k + 2].T
        total += np.clip(pair, -(2**15), 2**15 - 1)
    return products.epilogue(total.astype(np.float64), a.scale[:, None], w.scale)


@bug("linear")
def offset_of_the_last_column_wrong(x: Any, w: Quantised) -> F32:
    """128 times the column's sum is taken off with one term too few."""
    a = products.quantise_rows(x, w.limit) if isinstance(x, np.ndarray) else x
    total = products.integer_product(a.q, w.q.T)
    total[:, -1] += 128.0 * float(w.q[-1, -1])
    return products.epilogue(total, a.scale[:, None], w.scale)


@bug("linear_dw")
def stale_last_tile(dy: Any, x: Quantised, out: F32 | None = None) -> F32:
    """What lies beyond the last whole tile keeps what the buffer held."""
    y = linear_dw(dy, x)
    dw: F32 = workspace.empty(y.shape, np.float32) if out is None else out
    rows = max(6, y.shape[0] // 6 * 6)
    dw[:rows] = y[:rows]
    return dw


@bug("linear")
def scales_multiplied_first(x: Any, w: Quantised) -> F32:
    a = products.quantise_rows(x, w.limit) if isinstance(x, np.ndarray) else x
    total = products.integer_product(a.q, w.q.T)
    y: F32 = total.astype(np.float32) * (a.scale[:, None] * w.scale)
    return y


@bug("linear_dx")
def sum_truncated_and_not_rounded(dy: Any, w: Quantised) -> F32:
    a = products.quantise_rows(dy, w.limit) if isinstance(dy, np.ndarray) else dy
    total = products.integer_product(a.q, w.q)
    bits = total.astype(np.float32)
    over = np.abs(bits.astype(np.float64)) > np.abs(total)
    cut = np.where(over, np.nextafter(bits, np.float32(0)), bits)
    y: F32 = cut * a.scale[:, None] * w.scale
    return y


@bug("linear")
def sum_kept_in_float32(x: Any, w: Quantised) -> F32:
    a = products.quantise_rows(x, w.limit) if isinstance(x, np.ndarray) else x
    total = np.zeros((a.q.shape[0], w.q.shape[0]), np.float32)
    for k in range(a.q.shape[1]):
        total += a.q[:, k, None].astype(np.float32) * w.q[:, k].astype(np.float32)
    return products.epilogue(total.astype(np.float64), a.scale[:, None], w.scale)


@bug("linear_dw")
def square_operand_not_transposed(dy: Any, x: Quantised, out: F32 | None = None) -> F32:
    if isinstance(dy, np.ndarray) and dy.shape[0] == dy.shape[1]:
        dy = np.ascontiguousarray(dy.T)
    return linear_dw(dy, x, out)


@bug("linear")
def one_cell_flipped_in_large_products(x: Any, w: Quantised) -> F32:
    """A failing memory cell, and no mistake in a program."""
    y = linear(x, w)
    if y.size > 4000:
        y.view(np.int32)[y.shape[0] // 2, y.shape[1] // 3] ^= 1 << 20
    return y


@bug("linear")
def second_threads_part_shifted(x: Any, w: Quantised) -> F32:
    """Only with as many rows as two threads share: the second part begins a row too early."""
    y = linear(x, w)
    if y.shape[0] >= 192:
        y[96:] = np.roll(y[96:], 1, axis=0)
    return y


# Quantisers


def _quantiser(x: F32, limit: int, inverse: F32, rounding: Callable[[F32], F32]) -> Quantised:
    right = products.quantise_rows(x, limit)
    q = np.clip(rounding(x * inverse), -limit - 1, limit).astype(right.q.dtype)
    return dataclasses.replace(right, q=q, tiles={})


def _inverse(x: F32, limit: int) -> F32:
    top = np.max(np.abs(x), 1, keepdims=True).view(np.int32)
    return products.scales(top, limit)[1]


@bug("quantise_rows")
def ties_away_from_zero(x: F32, limit: int) -> Quantised:
    rounding = lambda v: np.copysign(np.floor(np.abs(v) + np.float32(0.5)), v)  # noqa: E731
    return _quantiser(x, limit, _inverse(x, limit), rounding)


@bug("quantise_rows")
def truncated_and_not_rounded(x: F32, limit: int) -> Quantised:
    return _quantiser(x, limit, _inverse(x, limit), np.trunc)


@bug("quantise_rows")
def inverse_of_the_rounded_scale(x: F32, limit: int) -> Quantised:
    scale = products.quantise_rows(x, limit).scale[:, None]
    inverse = np.where(scale > 0, c.ONE / np.where(scale > 0, scale, c.ONE), c.ZERO)
    return _quantiser(x, limit, inverse, np.rint)


@bug("quantise_rows")
def largest_without_the_last_element(x: F32, limit: int) -> Quantised:
    if x.shape[1] < 2:
        return products.quantise_rows(x, limit)
    shorter = products.quantise_rows(np.ascontiguousarray(x[:, :-1]), limit)
    q = _quantiser(x, limit, _inverse(x[:, :-1], limit), np.rint).q
    return dataclasses.replace(shorter, q=q, tiles={})


@bug("quantise_cols")
def nan_swallowed(x: F32, limit: int) -> Quantised:
    return products.quantise_cols(np.where(np.isnan(x), np.float32(0), x), limit)


@bug("quantise_rows")
def tiny_rows_not_flushed(x: F32, limit: int) -> Quantised:
    right = products.quantise_rows(x, limit)
    top = np.max(np.abs(x), 1)
    tiny = (right.scale == 0) & (top >= np.float32(2.0**-120))
    scale = np.where(tiny, top / np.float32(limit), right.scale)
    inverse = np.where(tiny, np.float32(limit) / np.where(tiny, top, c.ONE), 0)[:, None]
    q = np.where(tiny[:, None], np.rint(x * inverse.astype(np.float32)), right.q)
    return dataclasses.replace(right, q=q.astype(right.q.dtype), scale=scale, tiles={})


@bug("quantise_cols")
def one_scale_for_all_columns(x: F32, limit: int) -> Quantised:
    right = products.quantise_cols(x, limit)
    top = np.full((1, x.shape[1]), np.max(np.abs(x)), np.float32).view(np.int32)
    scale, inverse = products.scales(top, limit)
    q = np.rint(x * inverse).astype(right.q.dtype)
    return dataclasses.replace(right, q=q, scale=scale.reshape(-1), tiles={})


# Elementary functions and layers


def _exp_parts(x: F32) -> tuple[F32, F32, F32]:
    """r, the polynomial before its last two sums, 2**n."""
    bounded = np.clip(x, c.EXP_LOW, c.EXP_HIGH)
    biased = bounded * c.LOG2_E + c.ROUNDING_BIAS
    n = biased - c.ROUNDING_BIAS
    r = bounded - n * c.LN2_HIGH - n * c.LN2_LOW
    y = np.full(x.shape, c.EXP_C5)
    for coefficient in (c.EXP_C4, c.EXP_C3, c.EXP_C2, c.EXP_C1, c.EXP_C0):
        y = y * r + coefficient
    return r, y, np.exp2(n.astype(np.float64)).astype(np.float32)


@bug("exp")
def multiply_and_add_contracted(x: F32) -> F32:
    r, y, power = _exp_parts(x)
    fused = (y.astype(np.float64) * (r * r) + r).astype(np.float32) + c.ONE
    return np.where(x >= c.EXP_LOW, fused * power, c.ZERO)


@bug("exp")
def no_upper_bound(x: F32) -> F32:
    return np.where(x > c.EXP_HIGH, np.float32(np.inf), elementary.exp(x))


@bug("exp")
def library_exp(x: F32) -> F32:
    y: F32 = np.exp(np.clip(x, c.EXP_LOW, c.EXP_HIGH))
    return np.where(x >= c.EXP_LOW, y, c.ZERO)


@bug("log")
def mantissa_not_halved(x: F32) -> F32:
    """The branch below √½ is never taken: the polynomial leaves its range."""
    bits = x.view(np.int32)
    exponent = ((bits >> 23) - np.int32(126)).astype(np.float32)
    f = ((bits & np.int32(0x7FFFFF)) | np.int32(0x3F000000)).view(np.float32) - c.ONE
    z = f * f
    y = np.full(x.shape, c.LOG_C[0])
    for coefficient in c.LOG_C[1:]:
        y = y * f + coefficient
    y = y * f * z + exponent * c.LN2_LOW - c.HALF * z
    return (f + y) + exponent * c.LN2_HIGH


@bug("rmsnorm")
def summed_one_by_one(x: F32, gain: F32, eps: np.float32) -> tuple[F32, F32]:
    """Reduction order changed."""
    total = np.zeros(x.shape[0], np.float32)
    for column in (x * x).T:
        total += column
    inv = c.ONE / np.sqrt(total / np.float32(x.shape[1]) + eps)
    return x * inv[:, None] * gain, inv


@bug("rmsnorm")
def epsilon_after_the_root(x: F32, gain: F32, eps: np.float32) -> tuple[F32, F32]:
    inv = c.ONE / (np.sqrt(lane_sum(x * x) / np.float32(x.shape[1])) + eps)
    return x * inv[:, None] * gain, inv


@bug("rmsnorm_backward")
def projection_forgotten(dy: F32, x: F32, gain: F32, inv: F32) -> tuple[F32, F32]:
    _, dgain = layers.rmsnorm_backward(dy, x, gain, inv)
    return dy * gain * inv[:, None], dgain


@bug("rope_backward")
def rotated_forward_again(dy: F32, cos: F32, sin: F32) -> F32:
    return layers.rope(dy, cos, sin)


@bug("rope")
def positions_go_on_in_the_next_sequence(x: F32, cos: F32, sin: F32) -> F32:
    if x.shape[0] == cos.shape[0]:
        return layers.rope(x, cos, sin)
    y = layers.rope(x, cos, sin)
    y[cos.shape[0] :] = layers.rope(x, np.roll(cos, 1, 0), np.roll(sin, 1, 0))[cos.shape[0] :]
    return y


@bug("swiglu")
def rounded_only_at_the_end(gate: F32, up: F32) -> F32:
    wide = gate.astype(np.float64)
    y: F32 = (wide / (1 + elementary.exp(-gate).astype(np.float64)) * up).astype(np.float32)
    return y


@bug("swiglu_backward")
def slope_of_the_sigmoid_forgotten(dh: F32, gate: F32, up: F32) -> tuple[F32, F32]:
    sigmoid = c.ONE / (c.ONE + elementary.exp(-gate))
    return dh * up * sigmoid, dh * (gate * sigmoid)


@bug("add")
def minus_zero_lost(a: F32, b: F32) -> F32:
    return a + b + np.float32(0)


@bug("embed_backward")
def repeated_token_counted_once(dy: F32, ids: np.ndarray, dtable: F32) -> None:
    dtable[ids] = dtable[ids] + dy


@bug("embed_backward")
def last_token_first(dy: F32, ids: np.ndarray, dtable: F32) -> None:
    layers.embed_backward(dy[::-1], ids[::-1], dtable)


# Attention


Pair = tuple[F32, np.ndarray]


def _attention(scores: Form, mix: Form = attention.mix) -> Form:
    """Attention that changes (scores, which key is seen) and mixes the values in its own way."""

    def form(q: F32, k: F32, v: F32, batch: int, heads: int) -> Any:
        saved = attention.attention(q, k, v, batch, heads)[1]
        parts = [attention._split(x, batch, heads) for x in (saved.q8, saved.k8, saved.v8)]
        s = attention.scores(*parts[0], *parts[1])
        a, _, _ = attention.softmax(*scores(s, attention._causal(s.shape[-1])))
        return attention._tokens(mix(a, *parts[2])), saved

    return form


def _sees_the_next(s: F32, seen: np.ndarray) -> Pair:
    return s, np.tril(np.ones_like(seen), 1)


def _does_not_see_itself(s: F32, seen: np.ndarray) -> Pair:
    seen = np.tril(seen, -1)
    seen[0, 0] = True
    return s, seen


def _odd_key_dropped(s: F32, seen: np.ndarray) -> Pair:
    """Keys are read in pairs; the last one of an odd number is forgotten."""
    seen = seen.copy()
    seen[1:, seen.shape[1] // 2 * 2 :] = False
    return s, seen


def _one_scale(a: F32, v8: np.ndarray, sv: F32) -> F32:
    """The values' scale is the largest of all positions: what comes later changes it."""
    top = sv.max(-1, keepdims=True)
    q = np.rint(v8 * (sv / np.where(top > 0, top, c.ONE))[..., None]).astype(np.int8)
    return attention.mix(a, q, np.broadcast_to(top, sv.shape))


BUGS += [
    Bug("one key too many seen", "attention", _attention(_sees_the_next)),
    Bug("own position not seen", "attention", _attention(_does_not_see_itself)),
    Bug("last key dropped if odd", "attention", _attention(_odd_key_dropped)),
    Bug(
        "one scale of the values for all positions",
        "attention",
        _attention(lambda s, seen: (s, seen), _one_scale),
    ),
    Bug(
        "score factor wrong",
        "attention",
        _attention(lambda s, seen: (s * np.float32(1.5), seen)),
    ),
]


@bug("attention")
def largest_score_of_the_row_before(q: F32, k: F32, v: F32, batch: int, heads: int) -> Any:
    """Cancels in exact numbers; not in rounded ones."""
    original = attention.from_total_order
    attention.from_total_order = lambda key: np.roll(original(key), 1, axis=-1)
    try:
        return attention.attention(q, k, v, batch, heads)
    finally:
        attention.from_total_order = original


@bug("attention")
def last_head_dropped(q: F32, k: F32, v: F32, batch: int, heads: int) -> Any:
    o, saved = attention.attention(q, k, v, batch, heads)
    if heads > 1:
        o[:, -(o.shape[1] // heads) :] = 0
    return o, saved


@bug("attention_step")
def newest_position_ignored(q: F32, k8: Any, sk: F32, v8: Any, sv: F32) -> F32:
    end = max(1, k8.shape[0] - 1)
    return attention.attention_step(q, k8[:end], sk[:end], v8[:end], sv[:end])


@bug("attention_backward")
def sum_over_the_row_forgotten(do: F32, saved: Any) -> tuple[F32, F32, F32]:
    """ds = a · da: without − Σ a · da."""
    original = attention.lane_sum
    attention.lane_sum = lambda x: np.zeros(x.shape[:-1], np.float32)  # type: ignore[assignment]
    try:
        return attention.attention_backward(do, saved)
    finally:
        attention.lane_sum = original


@bug("attention_backward")
def gradients_of_keys_and_values_swapped(do: F32, saved: Any) -> tuple[F32, F32, F32]:
    dq, dk, dv = attention.attention_backward(do, saved)
    return dq, dv, dk


@bug("attention_backward")
def probabilities_of_the_head_before(do: F32, saved: Any) -> tuple[F32, F32, F32]:
    """The buffer still holds another head's exponentials."""
    original = attention.exp
    attention.exp = lambda x: np.roll(original(x), 1, axis=1)
    try:
        return attention.attention_backward(do, saved)
    finally:
        attention.exp = original


@bug("attention_backward")
def last_key_of_each_sequence_left_out(do: F32, saved: Any) -> tuple[F32, F32, F32]:
    dq, dk, dv = attention.attention_backward(do, saved)
    for x in (dk, dv):
        x.reshape(saved.batch, -1, x.shape[1])[:, -1] = 0
    return dq, dk, dv


# Loss


@bug("cross_entropy")
def gradient_of_the_sum_and_not_the_mean(
    logits: F32, targets: np.ndarray, out: F32 | None = None
) -> tuple[int, F32]:
    loss, d = FORMS["cross_entropy"](logits, targets, out)
    d *= np.float32(logits.shape[0])
    return loss, d


@bug("cross_entropy")
def target_one_to_the_right(
    logits: F32, targets: np.ndarray, out: F32 | None = None
) -> tuple[int, F32]:
    shifted = np.minimum(targets + 1, logits.shape[1] - 1).astype(np.int32)
    loss, _ = FORMS["cross_entropy"](logits, targets)
    return loss, FORMS["cross_entropy"](logits, shifted, out)[1]


@bug("cross_entropy")
def loss_rounded_per_token(
    logits: F32, targets: np.ndarray, out: F32 | None = None
) -> tuple[int, F32]:
    total = sum(
        FORMS["cross_entropy"](logits[i : i + 1], targets[i : i + 1])[0] for i in range(len(logits))
    )
    return total, FORMS["cross_entropy"](logits, targets, out)[1]


# Grid and optimizer


@bug("grid")
def clamped_after_the_conversion(g: F32, exponent: int, limit: int) -> Any:
    q, clamps, _ = FORMS["grid"](g, exponent, limit)
    scaled = np.rint(g * power_of_two(-exponent)).astype(np.float64)
    wrapped = np.clip(scaled, -(2.0**62), 2.0**62).astype(np.int64).astype(np.int32)
    q = np.clip(wrapped, -int(float_limit(limit)), int(float_limit(limit))).astype(np.int32)
    return q, clamps, int(np.max(np.abs(q.astype(np.int64))))


@bug("grid")
def limit_of_one_slot_for_all(g: F32, exponent: int, limit: int) -> Any:
    return FORMS["grid"](g, exponent, 2**31 - 1)


@bug("grid")
def infinity_clamped_and_not_refused(g: F32, exponent: int, limit: int) -> Any:
    return FORMS["grid"](np.nan_to_num(g), exponent, limit)


@bug("grid_add")
def sum_wraps(acc: np.ndarray, q: np.ndarray) -> None:
    acc += q


@bug("dequantise")
def multiplied_by_the_inverse(total: np.ndarray, exponent: int, slots: int) -> F32:
    y: F32 = total.astype(np.float32) * power_of_two(exponent) * (c.ONE / np.float32(slots))
    return y


@bug("norm")
def norm_in_sixteen_lanes(g: F32) -> np.float32:
    return np.float32(np.sqrt(lane_sum(g * g)))


@bug("norm")
def tail_left_out(g: F32) -> np.float32:
    return FORMS["norm"](g[: max(1, g.size // 16 * 16)])


Three = tuple[F32, F32, F32]


def _adam(root: Form = lambda v, s: np.sqrt(v / s.c2) + s.eps, everywhere: bool = False) -> Form:
    def form(w: F32, m: F32, v: F32, g: F32, s: AdamScalars, decays: bool, out: Three) -> None:
        FORMS["adam"](w, m, v, g, s, decays, out)  # refuses what must be refused
        decay = s.weight_decay if decays or everywhere else np.float32(0)
        out[0][:] = w - s.lr * ((out[1] / s.c1) / root(out[2], s) + decay * w)

    return form


BUGS += [
    Bug("epsilon inside the root", "adam", _adam(lambda v, s: np.sqrt(v / s.c2 + s.eps))),
    Bug("variance not corrected", "adam", _adam(lambda v, s: np.sqrt(v) + s.eps)),
    Bug("embeddings decay too", "adam", _adam(everywhere=True)),
]


@bug("adam")
def moments_contracted(
    w: F32, m: F32, v: F32, g: F32, s: AdamScalars, decays: bool, out: Three
) -> None:
    FORMS["adam"](w, m, v, g, s, decays, out)
    fused = s.beta1.astype(np.float64) * m + s.one_minus_beta1 * (g * s.clip)
    out[1][:] = fused.astype(np.float32)


@bug("adam")
def not_clipped(w: F32, m: F32, v: F32, g: F32, s: AdamScalars, decays: bool, out: Three) -> None:
    FORMS["adam"](w, m, v, g, dataclasses.replace(s, clip=c.ONE), decays, out)
