"""Spot checks of fused attention: one head of one sequence, computed again by the definition.

Scores and probabilities never leave the fused kernels, so no cell of them can be looked at alone;
but whatever is wrong in one row of them shows in what the row gives. A look compares a whole head:
int8 operands, the largest score and inverse sum of every row, the mix of the values; of the
backward form all gradients of queries, and of chosen keys and values, which hang on whole columns.
Worked off in strips of rows, so that memory stays bounded for any length of a sequence.
May import: constants, errors, random, reference, types.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from . import constants as c
from .errors import UnsoundError
from .random import random_u64
from .reference.attention import mix, score_factor, scores, softmax
from .reference.elementary import exp
from .reference.order import lane_sum
from .reference.products import epilogue, integer_product, quantise_along, quantise_rows
from .types import F32, I8, INT8_LIMIT, INT12_LIMIT, AttentionSaved, Ints, Quantised

Index = npt.NDArray[np.int64]

_ROWS = 64
"""Queries of a strip."""
_TILE_ROWS = 6


def chosen_head(turn: int, batch: int, heads: int) -> tuple[int, int]:
    """(sequence, head): in every other draw the last one of each, else any. A function of its
    arguments."""
    draw = int(random_u64(0, "head", turn)[0])
    if draw & 1:
        return batch - 1, heads - 1
    return (draw >> 1) % batch, (draw >> 32) % heads


def chosen_keys(turn: int, seq_len: int) -> Index:
    """Positions whose key and value are looked at: the first, the last two, the edges of a tile,
    three anywhere."""
    at = (random_u64(0, "keys", turn, np.arange(4)) % np.uint64(seq_len)).astype(np.int64)
    tile = at[3] - at[3] % _TILE_ROWS
    edges = [0, seq_len - 2, seq_len - 1, tile, tile + _TILE_ROWS - 1]
    return np.unique(np.clip([*at[:3], *edges], 0, seq_len - 1))


def check_forward(
    turn: int, result: tuple[F32, AttentionSaved], q: F32, k: F32, v: F32, batch: int, heads: int
) -> int:
    """How many numbers of an `attention` were compared. Raises UnsoundError."""
    o, saved = result
    at = chosen_head(turn, batch, heads)
    head = _Compared("attention", at)
    own_o, *operands = (_of_head(x, at, batch, heads) for x in (o, q, k, v))
    q8, k8, v8 = (quantise_rows(x, INT8_LIMIT) for x in operands)
    for what, own, right in (
        ("queries", saved.q8, q8),
        ("keys", saved.k8, k8),
        ("values", saved.v8, v8),
    ):
        integers, scale = _int8_of_head(own, at, batch, heads)
        head.compare(f"the {what} in int8", 0, integers, right.q)
        head.compare(f"the scale of the {what}", 0, scale, right.scale)
    for part in _strips(own_o.shape[0]):
        end = part.stop
        s = scores(q8.q[part], q8.scale[part], k8.q[:end], k8.scale[:end])
        a, peak, inverse_sum = softmax(s, _seen(part))
        head.compare("the largest score", part.start, saved.peak[at][part], peak)
        head.compare("the inverse sum", part.start, saved.inverse_sum[at][part], inverse_sum)
        mixed = mix(a, v8.q[:end], v8.scale[:end])
        head.compare("the mix of values", part.start, own_o[part], mixed)
    return head.cells


def check_backward(turn: int, result: tuple[F32, F32, F32], do: F32, saved: AttentionSaved) -> int:
    """How many numbers of an `attention_backward` were compared. Raises UnsoundError."""
    shape = saved.batch, saved.heads
    at = chosen_head(turn, *shape)
    head = _Compared("attention_backward", at)
    q, k, v, do = (_of_head(x, at, *shape) for x in (saved.q, saved.k, saved.v, do))
    dq, dk, dv = (_of_head(x, at, *shape) for x in result)
    (q8, sq), (k8, sk) = (_int8_of_head(x, at, *shape) for x in (saved.q8, saved.k8))
    peak, inverse_sum = saved.peak[at][:, None], saved.inverse_sum[at][:, None]
    (do12, sdo), (v12, sv) = (quantise_along(x, INT12_LIMIT, 1) for x in (do, v))
    k12, k_scale = quantise_along(k, INT12_LIMIT, 0)

    keys = chosen_keys(turn, q.shape[0])
    a_columns, ds_columns = np.zeros((2, q.shape[0], keys.size), np.float32)
    for part in _strips(q.shape[0]):
        end, seen = part.stop, _seen(part)
        s = scores(q8[part], sq[part], k8[:end], sk[:end])
        a = np.where(seen, exp(s - peak[part]), c.ZERO) * inverse_sum[part]
        da = epilogue(integer_product(do12[part], v12[:end].T), sdo[part], sv[:end].T)
        da = np.where(seen, da, c.ZERO)
        along = lane_sum(a * da)[:, None]
        ds = np.where(seen, a * (da - along) * score_factor(q.shape[1]), c.ZERO)
        ds12, ds_scale = quantise_along(ds, INT12_LIMIT, 1)
        expected = epilogue(integer_product(ds12, k12[:end]), ds_scale, k_scale)
        head.compare("the gradient of the queries", part.start, dq[part], expected)
        known = keys < end
        a_columns[part, known], ds_columns[part, known] = a[:, keys[known]], ds[:, keys[known]]
    for what, own, columns, right in (
        ("keys", dk, ds_columns, q),
        ("values", dv, a_columns, do),
    ):
        left, row_scale = quantise_along(np.ascontiguousarray(columns.T), INT12_LIMIT, 1)
        integers, col_scale = quantise_along(right, INT12_LIMIT, 0)
        expected = epilogue(integer_product(left, integers), row_scale, col_scale)
        for key, row in zip(keys.tolist(), expected, strict=True):
            head.compare(f"the gradient of the {what}", key, own[key : key + 1], row[None])
    return head.cells


class _Compared:
    """Numbers of one head that were compared so far; the first that differs is named."""

    def __init__(self, name: str, at: tuple[int, int]) -> None:
        self.cells = 0
        self._name = name
        self._at = at

    def compare(self, what: str, first: int, own: Ints, right: Ints) -> None:
        """Both [n] or [n, D], of the positions from `first` on. Raises UnsoundError."""
        self.cells += own.size
        bits = np.dtype(f"i{own.itemsize}")
        wrong = np.argwhere(own.view(bits) != right.view(bits))
        if not wrong.size:
            return
        place = tuple(wrong[0].tolist())
        channel = f", channel {place[1]}" if len(place) > 1 else ""
        raise UnsoundError(
            f"this computer computed wrongly: in {self._name}, sequence {self._at[0]}, head "
            f"{self._at[1]}, {what} at position {first + place[0]}{channel} is {own[place]!r} and "
            f"must be {right[place]!r}. Look for overheating, overclocking or bad memory."
        )


def _strips(seq_len: int) -> Iterator[slice]:
    """Queries, `_ROWS` at a time."""
    for start in range(0, seq_len, _ROWS):
        yield slice(start, min(seq_len, start + _ROWS))


def _seen(part: slice) -> npt.NDArray[np.bool_]:
    """Which of the keys before the strip's end does each of its queries see?"""
    return np.arange(part.start, part.stop)[:, None] >= np.arange(part.stop)


def _of_head(x: F32, at: tuple[int, int], batch: int, heads: int) -> F32:
    """(B*T, H*D) -> (T, D) of one sequence and head."""
    parts = x.reshape(batch, -1, heads, x.shape[1] // heads)
    return np.ascontiguousarray(parts[at[0], :, at[1]])


def _int8_of_head(x: Quantised, at: tuple[int, int], batch: int, heads: int) -> tuple[I8, F32]:
    """Quantised (B*T*H, D) -> q (T, D), scale (T) of one sequence and head."""
    q = x.q.reshape(batch, -1, heads, x.q.shape[1])[at[0], :, at[1]]
    return q, x.scale.reshape(batch, -1, heads)[at[0], :, at[1]]
