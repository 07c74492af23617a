"""Where compiled forms get their output and scratch arrays; the gates can poison and fence them.

May import: numpy.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_FENCE = 64
"""Bytes on either side of a fenced array that nobody may write."""
_local = threading.local()


def empty(shape: int | tuple[int, ...], dtype: type) -> npt.NDArray[Any]:
    """An array with arbitrary content, which its user must overwrite before reading."""
    fill: int | None = getattr(_local, "fill", None)
    if fill is None:
        return np.empty(shape, dtype)
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    raw = np.full(size + 2 * _FENCE, fill, np.uint8)
    _local.fenced.append(raw)
    return raw[_FENCE : _FENCE + size].view(dtype).reshape(shape)


@contextlib.contextmanager
def poisoned(fill: int) -> Iterator[None]:
    """In this thread, `empty` gives arrays full of the byte `fill`, between fences.

    RuntimeError at the end if a fence was written to.
    """
    _local.fill, _local.fenced = fill, []
    try:
        yield
        fences = [part for raw in _local.fenced for part in (raw[:_FENCE], raw[-_FENCE:])]
        if any((fence != fill).any() for fence in fences):
            raise RuntimeError("it wrote outside its arrays")
    finally:
        _local.fill, _local.fenced = None, []
