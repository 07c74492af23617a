"""The per-step probe: a fixed seeded int8 product through whatever form is live.

May import: gate_cases (seeded inputs), reference, table, types.
"""

from __future__ import annotations

import functools
import hashlib

from .gate_cases import floats, integers
from .reference import FORMS
from .table import Kernels
from .types import F32, I8, INT8_LIMIT, Quantised

_ROWS, _COLS, _INNER = 130, 150, 259
"""Not multiples of any tile; small enough for every step."""


@functools.cache
def _inputs() -> tuple[I8, F32, I8, F32]:
    return (
        integers("probe left", INT8_LIMIT, _ROWS, _INNER).astype("int8"),
        floats("probe left scale", _ROWS),
        integers("probe right", INT8_LIMIT, _COLS, _INNER).astype("int8"),
        floats("probe right scale", _COLS),
    )


def _operands() -> tuple[Quantised, Quantised]:
    """Fresh operands, so that laying them out in tiles is part of the probe."""
    a, a_scale, b, b_scale = _inputs()
    return Quantised(a, a_scale, INT8_LIMIT, True), Quantised(b, b_scale, INT8_LIMIT, True)


def probe(kernels: Kernels) -> bytes:
    """32-byte SHA-256 of the product as the live kernels compute it now."""
    return _digest(kernels.linear(*_operands()))


@functools.cache
def probe_expected() -> bytes:
    """The hash that every sound node gets."""
    return _digest(FORMS["linear"](*_operands()))


def _digest(y: F32) -> bytes:
    return hashlib.sha256(y.astype("<f4", copy=False).tobytes()).digest()
