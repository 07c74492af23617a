"""Where compiled forms get their output and scratch arrays; the gates can poison and fence them.

Large arrays come from buffers that are used again once nobody refers to them: memory fresh from
the system has to be cleared first, which takes as long as a kernel that fills it. Arrays that are
worth it begin on a cache line, so that no vector of theirs lies across two.
May import: numpy.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_FENCE = 64
"""Bytes on either side of a fenced array that nobody may write."""
_REUSED_FROM = 1 << 20
"""Bytes from which on an array's memory is kept for the next one of that size."""
_LINE = 64
"""Bytes of a cache line."""
_ALIGNED_FROM = 1 << 12
"""Bytes from which on an array begins on one."""
_PATIENCE = 512
"""A buffer is given back when so many large arrays have been made without it."""
_local = threading.local()


class _Buffers:
    """Memory of large arrays, used again for one of the same size when no array refers to it."""

    def __init__(self) -> None:
        self._buffers: list[npt.NDArray[np.uint8]] = []
        self._used: list[int] = []
        self._made = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """A buffer of `size` bytes that nobody else has; it is free again when its views are."""
        with self._lock:
            self._made += 1
            for i in range(len(self._buffers)):
                if self._buffers[i].size == size and self._is_free(i):
                    self._used[i] = self._made
                    return self._buffers[i][:]
            for i in reversed(range(len(self._buffers))):
                if self._made - self._used[i] > _PATIENCE and self._is_free(i):
                    del self._buffers[i], self._used[i]
            self._buffers.append(np.empty(size, np.uint8))
            self._used.append(self._made)
            return self._buffers[-1][:]

    def _is_free(self, i: int) -> bool:
        return sys.getrefcount(self._buffers[i]) == _FREE

    def references(self) -> int:
        """What `_is_free` sees of a buffer that only the list refers to."""
        return sys.getrefcount(self._buffers[0])


def _free_count() -> int:
    probe = _Buffers()
    probe.take(1)  # the view is dropped at once
    return probe.references()


_FREE = _free_count()
_buffers = _Buffers()


def empty(shape: int | tuple[int, ...], dtype: type) -> npt.NDArray[Any]:
    """An array with arbitrary content, which its user must overwrite before reading.

    Its memory is used again only when no array, view or buffer refers to it any more.
    """
    fill: int | None = getattr(_local, "fill", None)
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    if fill is None:
        if size < _ALIGNED_FROM:
            return np.empty(shape, dtype)
        room = size + _LINE
        raw = np.empty(room, np.uint8) if size < _REUSED_FROM else _buffers.take(room)
        start = -raw.ctypes.data % _LINE
        return raw[start : start + size].view(dtype).reshape(shape)
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
