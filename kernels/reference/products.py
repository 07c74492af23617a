"""Quantisation and exact integer products. May import: constants, errors, types, order."""

from __future__ import annotations

import numpy as np

from .. import constants as c
from ..errors import NonFiniteInputError
from ..types import F32, F64, I32, INT8_LIMIT, Ints, Quantised
from .order import integer_max, magnitude_bits


def integer_product(a: Ints, b: Ints) -> F64:
    """Exact a @ b of integer arrays (..., M, K) and (..., K, N), as binary64 integers.

    Every partial sum stays below 2^53 (see `constants`), so no order can change the result. The
    added zero turns a -0 that the library may leave into +0, the only zero an integer has.
    """
    if a.dtype.kind != "i" or b.dtype.kind != "i":
        raise TypeError("only integers have an exact product")
    product: F64 = a.astype(np.float64) @ b.astype(np.float64)
    product += 0.0
    return product


def scales(top: I32, limit: int) -> tuple[F32, F32]:
    """(scale, inverse) = (absmax / limit, limit / absmax) from the bits of absmax; 0, 0 if tiny."""
    live = top >= np.int32(c.FLUSH_BITS)
    absmax = np.where(live, top.view(np.float32), c.ONE)
    lim = np.float32(limit)
    return np.where(live, absmax / lim, c.ZERO), np.where(live, lim / absmax, c.ZERO)


def quantise_along(x: F32, limit: int, axis: int) -> tuple[Ints, F32]:
    """Quantise with one scale per slice along `axis`; the scale keeps that axis with length 1."""
    top = np.expand_dims(integer_max(magnitude_bits(x), axis), axis)
    if integer_max(top) >= c.INFINITY_BITS:
        raise NonFiniteInputError(
            "a value to be quantised is NaN or infinite; the operand was refused."
        )
    scale, inverse = scales(top, limit)
    dtype = np.int8 if limit == INT8_LIMIT else np.int16
    return np.rint(x * inverse).astype(dtype), scale


def quantise_rows(x: F32, limit: int) -> Quantised:
    """x[M, K] -> integers with one scale per row."""
    q, scale = quantise_along(x, limit, 1)
    return Quantised(q, scale.reshape(-1), limit, by_rows=True)


def quantise_cols(x: F32, limit: int) -> Quantised:
    """x[K, N] -> integers with one scale per column."""
    q, scale = quantise_along(x, limit, 0)
    return Quantised(q, scale.reshape(-1), limit, by_rows=False)


def epilogue(total: F64, row_scale: F32, col_scale: F32) -> F32:
    """f32(f32(f32(total) * row_scale) * col_scale); the scales broadcast."""
    return total.astype(np.float32) * row_scale * col_scale


def linear(x: F32 | Quantised, w: Quantised) -> F32:
    """x[M, K] @ w[N, K].T -> [M, N]; a float x is quantised as w is."""
    a = x if isinstance(x, Quantised) else quantise_rows(x, w.limit)
    return epilogue(integer_product(a.q, w.q.T), a.scale[:, None], w.scale)


def linear_dx(dy: F32 | Quantised, w: Quantised) -> F32:
    """dy[M, N] @ w[N, K] -> [M, K]; a float dy is quantised by rows."""
    a = dy if isinstance(dy, Quantised) else quantise_rows(dy, w.limit)
    return epilogue(integer_product(a.q, w.q), a.scale[:, None], w.scale)


def linear_dw(dy: F32 | Quantised, x: Quantised, out: F32 | None = None) -> F32:
    """dy[M, N].T @ x[M, K] -> [N, K], in `out` if given; a float dy is quantised by columns."""
    a = dy if isinstance(dy, Quantised) else quantise_cols(dy, x.limit)
    dw = epilogue(integer_product(a.q.T, x.q), a.scale[:, None], x.scale)
    if out is None:
        return dw
    out[:] = dw
    return out
