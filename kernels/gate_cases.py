"""The fixed inputs of the gates: for every operation, what a form must answer.

They are made of integers and bit patterns only, so they are the same on every machine: ragged
shapes, extremes, zeros of both signs, subnormals, ties, wide ranges of scale, and what must be
refused. Each case takes a form and yields its answers, one by one.
May import: errors, random, reference (for the inputs of backward forms), scalars, types.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from .errors import KernelError
from .random import random_u64
from .reference import FORMS
from .scalars import adam_scalars, rope_tables
from .types import F32, I32, INT8_LIMIT, INT12_LIMIT, Quantised

Form = Callable[..., Any]


def floats(name: str, *shape: int, low: int = -12, high: int = 3) -> F32:
    """Seeded float32 values of either sign with binary exponents from low to high."""
    count = int(np.prod(shape))
    words = random_u64(0, f"gate {name}", np.arange(count))
    exponent = np.uint64(127 + low) + (words >> np.uint64(40)) % np.uint64(high - low + 1)
    bits = (words & np.uint64(0x807FFFFF)) | (exponent << np.uint64(23))
    return bits.astype(np.uint32).view(np.float32).reshape(shape)


def integers(name: str, limit: int, *shape: int) -> I32:
    """Seeded int32 values in -limit..limit."""
    words = random_u64(0, f"gate {name}", np.arange(int(np.prod(shape))))
    return (
        ((words % np.uint64(2 * limit + 1)).astype(np.int64) - limit)
        .astype(np.int32)
        .reshape(shape)
    )


def with_specials(x: F32) -> F32:
    """x with zeros of both signs, subnormals and the extremes of normal numbers strewn in."""
    special = np.array(
        [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x80800000, 0x3F800000],
        np.uint32,
    ).view(np.float32)
    flat = x.copy().reshape(-1)
    flat[:: max(1, flat.size // 23)] = np.resize(special, flat[:: max(1, flat.size // 23)].size)
    return flat.reshape(x.shape)


def _matrices() -> Iterator[F32]:
    """What quantisers must get right."""
    for rows, cols in ((1, 1), (3, 17), (7, 33), (18, 50)):
        x = floats(f"q{rows}", rows, cols)
        yield x
        yield with_specials(x)
    # One scale per row and column, from tiny (flushed) to near overflow.
    exponents = (-126, -101, -100, -99, -60, 0, 60, 100, 126)
    wide = np.stack([floats(f"wide {e}", 9, low=e, high=e) for e in exponents])
    yield wide
    yield np.ascontiguousarray(wide.T)
    # Largest magnitudes at the floor of 2^-100 and one bit below it.
    floor = np.array([[27 << 23, (27 << 23) - 1], [1 << 23, 1]], np.int32).view(np.float32)
    yield floor
    yield np.ascontiguousarray(floor.T)
    # Ties: with absmax = limit the scaled values are exactly halfway.
    for limit in (INT8_LIMIT, INT12_LIMIT):
        halves = np.arange(-2 * limit, 2 * limit + 1).astype(np.float32) * np.float32(0.5)
        yield halves.reshape(1, -1)
        yield halves.reshape(-1, 1)
    yield np.zeros((2, 3), np.float32)


def _attempt(form: Form, *args: Any) -> Any:
    """The form's answer, or the name of the error by which it refuses."""
    try:
        return form(*args)
    except KernelError as error:
        return type(error).__name__


def _quantiser(form: Form) -> Iterator[Any]:
    for x in _matrices():
        for limit in (INT8_LIMIT, INT12_LIMIT):
            yield _attempt(form, x, limit)
    for bad in (0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001):
        x = floats("bad", 5, 19)
        x.view(np.uint32)[3, 18] = bad
        yield _attempt(form, x, INT8_LIMIT)


_SHAPES = (
    (1, 1, 1),
    (1, 16, 2),
    (5, 15, 3),
    (6, 16, 31),
    (7, 17, 64),
    (13, 33, 7),
    (12, 8, 96),
    (2, 9, 511),
    (3, 5, 513),
    (7, 18, 1026),
)


def _operand(name: str, limit: int, rows: int, cols: int, by_rows: bool) -> Quantised:
    dtype = np.int8 if limit == INT8_LIMIT else np.int16
    q = integers(name, limit, rows, cols).astype(dtype)
    scale = floats(f"{name} scale", rows if by_rows else cols)
    return Quantised(q, scale, limit, by_rows)


def _full(operand: Quantised, sign: int) -> Quantised:
    """The operand with every value at its limit."""
    q = np.full_like(operand.q, sign * operand.limit)
    return Quantised(q, operand.scale, operand.limit, operand.by_rows)


def _operands(layout: str, m: int, n: int, k: int) -> tuple[Quantised, Quantised]:
    """Left and right operand of an (m, n) product over k, in the layout of one operation."""
    name = f"{layout}{m},{n},{k}"
    if layout == "linear":
        sides = ((INT8_LIMIT, m, k, True), (INT8_LIMIT, n, k, True))
    elif layout == "linear_dx":
        sides = ((INT12_LIMIT, m, k, True), (INT12_LIMIT, k, n, False))
    else:
        sides = ((INT12_LIMIT, k, m, False), (INT12_LIMIT, k, n, False))
    return _operand(f"{name}a", *sides[0]), _operand(f"{name}b", *sides[1])


def _product(layout: str, form: Form) -> Iterator[Any]:
    for m, n, k in _SHAPES:
        a, b = _operands(layout, m, n, k)
        yield form(a, b)
    for k, signs in ((512, (1, 1)), (513, (1, -1)), (2050, (-1, -1)), (131_071, (1, 1))):
        a, b = _operands(layout, 2, 3, k)
        yield form(_full(a, signs[0]), _full(b, signs[1]))


def _near_ties(form: Form) -> Iterator[Any]:
    """Values that lie, once scaled, at most two units in the last place off a half."""
    for limit in (INT8_LIMIT, INT12_LIMIT):
        x = _almost_halves(limit)
        yield form(x, limit)
        yield form(np.ascontiguousarray(x.T), limit)


def _almost_halves(limit: int) -> F32:
    """[17, 64], each row with its own largest magnitude, first in the row."""
    top = np.abs(floats(f"tops {limit}", 17, 1, low=-20, high=20))
    halves = integers(f"halves {limit}", limit - 1, 17, 64).astype(np.float64) + 0.5
    x = (top.astype(np.float64) * (halves / limit)).astype(np.float32)
    x.view(np.int32)[:] += integers("ulps", 2, 17, 64)
    x[:, 0] = top[:, 0]
    return x


def _float_left(layout: str, form: Form) -> Iterator[Any]:
    """A left operand that the product quantises itself, over more rows than it takes at a time."""
    for m, n, k in (*_SHAPES, (101, 17, 5), (50, 33, 1025), (19, 19, 19), (200, 9, 7)):
        _, b = _operands(layout, m, n, k)
        shape = (k, m) if layout == "linear_dw" else (m, k)
        yield form(with_specials(floats(f"left {shape}", *shape, low=-6)), b)
    scales = np.exp2(np.arange(-120, 120, 4).astype(np.float64)).astype(np.float32)
    _, b = _operands(layout, 60, 18, 35)
    x = floats("left of every scale", 60, 35) * scales[:, None]
    x = np.ascontiguousarray(x.T) if layout == "linear_dw" else x
    yield form(x, b)
    almost = _almost_halves(INT8_LIMIT if layout == "linear" else INT12_LIMIT)
    almost = np.ascontiguousarray(almost.T) if layout == "linear_dw" else almost
    yield form(almost, _operands(layout, 17, 5, 64)[1])
    if layout == "linear_dw":
        out = np.full((60, 18), np.float32(7))
        form(x, b, out)
        yield out
    _, b = _operands(layout, 49, 3, 513)
    full = np.full((49, 513), np.float32(-2047))
    for last in (-2047, 1024, 1025):  # 512 * 2,047 + 1,024 is the most that int32 always holds
        full[:, -1] = np.float32(last)
        yield form(np.ascontiguousarray(full.T) if layout == "linear_dw" else full, _full(b, -1))
    if layout != "linear":
        yield from _largest_whole_sums(layout, form)
    for place in (0, -1):
        bad = x.copy()
        bad.reshape(-1)[place] = np.float32(np.nan)
        yield _attempt(form, bad, _operands(layout, 60, 18, 35)[1])


def _largest_whole_sums(layout: str, form: Form) -> Iterator[Any]:
    """1,024 terms: the largest sum that int32 holds of a column whose magnitudes add up so far, and
    one that it does not; both signs."""
    for last in (1535, 1536):  # 2,047 * (2,047 + 1,022 * 1,023 + 1,535) is the most below 2**31
        column = np.full(1024, np.int16(1023))
        column[0], column[-1] = 2047, last
        signs = np.where(np.arange(1024) % 3, np.int16(1), np.int16(-1))
        _, b = _operands(layout, 2, 5, 1024)
        b.q[:] = 1
        b.q[:, -1] = column * signs
        left = np.stack([signs, -signs]).astype(np.float32) * np.float32(2047)
        yield form(np.ascontiguousarray(left.T) if layout == "linear_dw" else left, b)


def _elementary(form: Form) -> Iterator[Any]:
    yield form(np.concatenate([floats("e", 999, low=-30, high=7), with_specials(floats("s", 50))]))
    edges = [-87.33654, -87.33655, -88.0, -200.0, 88.37626, 88.37627, 100.0, 0.5, 1.0, 0.70710677]
    yield form(np.array(edges, np.float32))
    bits = integers("any", 2**31 - 1, 2000)
    yield form(bits.view(np.float32))


def _log(form: Form) -> Iterator[Any]:
    yield form(np.abs(floats("log", 2001, low=-125, high=126)))
    yield form(np.abs(floats("log near 1", 999, low=-1, high=0)))


def _norms(form: Form) -> Iterator[Any]:
    for rows, cols in ((1, 1), (40, 15), (5, 16), (40, 33), (20, 100)):
        x = with_specials(floats(f"n{cols}", rows, cols))
        yield form(x, floats(f"g{cols}", cols), np.float32(1e-5))
        yield form(np.zeros_like(x), floats(f"g{cols}", cols), np.float32(1e-5))


def _norms_backward(form: Form) -> Iterator[Any]:
    for rows, cols in ((1, 1), (40, 15), (5, 16), (40, 33), (20, 100)):
        x = with_specials(floats(f"n{cols}", rows, cols))
        inv = np.abs(floats("inv", rows))
        yield form(floats(f"d{cols}", rows, cols), x, floats(f"g{cols}", cols), inv)


def _rotary(form: Form) -> Iterator[Any]:
    for sequences, seq_len, heads, dim in ((1, 1, 1, 2), (2, 5, 3, 6), (1, 9, 2, 32)):
        x = with_specials(floats("rope", sequences * seq_len, heads * dim))
        yield form(x, *rope_tables(seq_len, dim))


def _gate_up() -> Iterator[tuple[F32, F32, F32]]:
    for shape in ((1, 1), (3, 17), (37, 40)):
        gate = with_specials(floats("gate", *shape, low=-10, high=7))
        yield floats("dh", *shape), gate, with_specials(floats("up", *shape))


def _swiglu(form: Form) -> Iterator[Any]:
    for _, gate, up in _gate_up():
        yield form(gate, up)


def _swiglu_backward(form: Form) -> Iterator[Any]:
    for args in _gate_up():
        yield form(*args)


def _add(form: Form) -> Iterator[Any]:
    for shape in ((1, 1), (3, 17), (5, 32)):
        yield form(with_specials(floats("a", *shape)), with_specials(floats("b", *shape)))


def _ids(name: str, count: int, vocab: int) -> I32:
    return np.abs(integers(name, vocab - 1, count))


def _embed(form: Form) -> Iterator[Any]:
    for vocab, width, tokens in ((2, 1, 1), (5, 17, 40), (300, 33, 7)):
        yield form(with_specials(floats("table", vocab, width)), _ids("ids", tokens, vocab))


def _embed_backward(form: Form) -> Iterator[Any]:
    for vocab, width, tokens in ((2, 1, 1), (5, 17, 40), (300, 33, 7)):
        table = floats("dtable", vocab, width)
        form(floats("dy", tokens, width), _ids("ids", tokens, vocab), table)
        yield table


_ATTENTION = ((1, 1, 1, 2), (2, 7, 1, 6), (1, 13, 2, 17), (2, 34, 3, 8), (1, 50, 1, 33))
"""(sequences, positions, heads, channels)."""


def _qkv(batch: int, seq_len: int, heads: int, dim: int) -> tuple[F32, F32, F32, F32]:
    shape, name = (batch * seq_len, heads * dim), f"{batch},{seq_len},{heads},{dim}"
    q, k, v, do = (floats(f"{s} {name}", *shape, low=-5, high=2) for s in ("q", "k", "v", "do"))
    return q, k, with_specials(v), do


def _attention(form: Form) -> Iterator[Any]:
    for batch, seq_len, heads, dim in _ATTENTION:
        q, k, v, _ = _qkv(batch, seq_len, heads, dim)
        yield form(q, k, v, batch, heads)
        yield form(np.zeros_like(q), k, np.zeros_like(v), batch, heads)
    huge = np.full((4, 4), 2e38, np.float32)
    yield _attempt(form, huge, -huge, huge, 1, 1)


def _attention_backward(form: Form) -> Iterator[Any]:
    for batch, seq_len, heads, dim in _ATTENTION:
        q, k, v, do = _qkv(batch, seq_len, heads, dim)
        _, saved = FORMS["attention"](q, k, v, batch, heads)
        yield form(do, saved)
    for q, k, v, do in _full_sums():
        _, saved = FORMS["attention"](q, k, v, 1, 1)
        yield form(do, saved)
    yield _attempt(form, np.full_like(do, np.float32(3e38)), saved)


def _full_sums() -> Iterator[tuple[F32, F32, F32, F32]]:
    """q, k, v, do whose 12-bit products are sums of more full terms than int32 holds.

    In turn over the channels of do @ v.T, over the keys of dq, and over the queries of dv.
    """
    ones = np.ones((3, 520), np.float32)
    yield ones, ones, ones, ones
    signs = np.where(np.arange(520) % 2 == 0, np.float32(1), np.float32(-1))
    alternating = np.ascontiguousarray(np.stack([signs, signs], 1))
    flat = np.ones_like(alternating)
    yield np.zeros_like(flat), alternating, alternating, flat  # uniform: every |ds| of a row equal
    first = np.zeros_like(flat)
    first[0] = 60
    yield flat, first, alternating, flat  # every query sees key 0: a column of ones


def _attention_step(form: Form) -> Iterator[Any]:
    for _, seq_len, heads, dim in _ATTENTION:
        q, k, v, _ = _qkv(1, seq_len, heads, dim)
        rows = [FORMS["quantise_rows"](x.reshape(-1, dim), INT8_LIMIT) for x in (k, v)]
        cache = [
            part
            for x in rows
            for part in (x.q.reshape(seq_len, heads, dim), x.scale.reshape(seq_len, heads))
        ]
        yield form(q[-1:].copy(), *cache)


def _cross_entropy(form: Form) -> Iterator[Any]:
    for tokens, vocab in ((1, 1), (3, 16), (18, 33), (5, 300)):
        logits = with_specials(floats(f"logits {vocab}", tokens, vocab, low=-4, high=5))
        yield form(logits, _ids("targets", tokens, vocab))
    yield form(-np.abs(floats("negative", 3, 7)), _ids("targets", 3, 7))
    # Token losses so far apart that the order of their sum shows.
    heights = np.abs(floats("heights", 60, 1, low=0, high=35))
    yield form(np.concatenate([heights, -heights], 1), np.ones(60, np.int32))
    apart = np.array([[3e38, -3e38]], np.float32)
    for target in (0, 1):
        yield _attempt(form, apart, np.array([target], np.int32))
    bad = floats("logits", 2, 5)
    bad[1, 4] = np.float32(np.inf)
    yield _attempt(form, bad, _ids("targets", 2, 5))


def _cross_entropy_in_place(form: Form) -> Iterator[Any]:
    for vocab in (5, 33):
        logits = floats(f"logits {vocab}", 7, vocab)
        yield form(logits, _ids("targets", 7, vocab), logits)
        yield logits


def _grid(form: Form) -> Iterator[Any]:
    for limit, exponent in (
        (2**31 - 1, -30),
        (2**27 - 1, -27),
        (2**21 - 1, -20),
        (5, 3),
        (7, -100),
    ):
        yield form(with_specials(floats("grid", 333, low=-40, high=4)), exponent, limit)
    halves = np.arange(-9, 10).astype(np.float32) * np.float32(0.5)
    yield form(halves, 0, 4)
    halves[3] = np.float32(np.nan)
    yield _attempt(form, halves, 0, 4)


def _grid_add(form: Form) -> Iterator[Any]:
    for limit in (2**30 - 1, 2**31 - 1):
        acc, q = integers("acc", limit, 77), integers("q", limit, 77)
        yield _attempt(form, acc, q)
        yield acc
    edge = np.array([2**31 - 2, -(2**31) + 2], np.int32)
    form(edge, np.array([1, -1], np.int32))
    yield edge
    yield _attempt(form, edge, np.array([0, -1], np.int32))


def _dequantise(form: Form) -> Iterator[Any]:
    for exponent, slots in ((-27, 16), (-100, 3), (20, 1024), (0, 1)):
        yield form(integers("sum", 2**31 - 1, 99), exponent, slots)


def _norm(form: Form) -> Iterator[Any]:
    for count in (1, 4095, 4096, 4097, 13_000):
        yield form(with_specials(floats("norm", count)))


def _adam(form: Form) -> Iterator[Any]:
    scalars = adam_scalars(
        lr=3e-3, beta1=0.9, beta2=0.95, beta1_power=0.729, beta2_power=0.857375,
        eps=1e-8, weight_decay=0.1, clip=0.625,
    )  # fmt: skip
    for count, decays in ((1, True), (333, True), (333, False)):
        w, m, g = (with_specials(floats(s, count, low=-30)) for s in ("w", "m", "g"))
        v = np.abs(with_specials(floats("v", count, low=-60)))
        out = tuple(np.full(count, np.float32(7)) for _ in range(3))
        form(w, m, v, g, scalars, decays, out)
        yield out
    g[5] = np.float32(np.nan)
    yield _attempt(form, w, m, v, g, scalars, True, out)


GATES: dict[str, Callable[[Form], Iterable[Any]]] = {
    "exp": _elementary,
    "log": _log,
    "quantise_rows": _quantiser,
    "quantise_cols": _quantiser,
    "linear": functools.partial(_product, "linear"),
    "linear_dx": functools.partial(_product, "linear_dx"),
    "linear_dw": functools.partial(_product, "linear_dw"),
    "rmsnorm": _norms,
    "rmsnorm_backward": _norms_backward,
    "rope": _rotary,
    "rope_backward": _rotary,
    "swiglu": _swiglu,
    "swiglu_backward": _swiglu_backward,
    "add": _add,
    "embed": _embed,
    "embed_backward": _embed_backward,
    "attention": _attention,
    "attention_step": _attention_step,
    "attention_backward": _attention_backward,
    "cross_entropy": _cross_entropy,
    "grid": _grid,
    "grid_add": _grid_add,
    "dequantise": _dequantise,
    "norm": _norm,
    "adam": _adam,
}

UNNAMED: dict[str, Callable[[Form], Iterable[Any]]] = {
    "quantise_rows": _near_ties,
    "quantise_cols": _near_ties,
    **{name: functools.partial(_float_left, name) for name in ("linear", "linear_dx", "linear_dw")},
    "cross_entropy": _cross_entropy_in_place,
}
"""Further cases, which every form must answer too. They combine what `GATES` pins already, so they
are no part of the arithmetic's name."""
