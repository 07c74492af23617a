"""A linear checksum whose coefficients a nonce gives: no part of the arithmetic that makes a model.

Who does not know the nonce cannot change a vector so that its checksum stays: the coefficients are
64-bit values of a counter-based generator (see `random`), taken to be independent and uniform.
May import: random, types, jit (by choice, as in `loader`).
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .random import mixed
from .types import U64

_GOLDEN = 0x9E3779B97F4A7C15
_CHUNK = 1 << 16
_WORD = 1 << 64


def weigh(values: npt.NDArray[np.int32], nonce: bytes, start: int = 0) -> int:
    """Checksum in [0, 2^64) of int32 values [n] that begin at element `start` of a vector.

    Linear modulo 2^64: checksums of vectors add up to that of their sum, and those of the parts of
    a vector to that of the whole. Two vectors that differ by less than 2^32 in each element have
    the same one with probability at most 2^-33: given all other coefficients, that of an element
    that differs by d must hit one value of 2^64 / gcd(d, 2^64).
    """
    seed = int.from_bytes(hashlib.sha256(b"weigh" + nonce).digest()[:8], "little")
    key = np.uint64((seed + start * _GOLDEN) % _WORD)
    return int(_form()(np.ascontiguousarray(values, np.int32), key))


def weigh_plain(values: npt.NDArray[np.int32], key: np.uint64) -> int:
    """The form without numba."""
    total = 0
    for low in range(0, values.size, _CHUNK):
        chunk = values[low : low + _CHUNK]
        first = np.uint64((int(key) + low * _GOLDEN) % _WORD)
        states: U64 = np.arange(chunk.size, dtype=np.uint64) * np.uint64(_GOLDEN) + first
        products = mixed(states) * chunk.astype(np.int64).view(np.uint64)
        total += int(np.bitwise_and(products, np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64))
        total += int((products >> np.uint64(32)).sum(dtype=np.uint64)) << 32
    return total % _WORD


@functools.cache
def _form() -> Callable[[npt.NDArray[np.int32], np.uint64], int]:
    if os.environ.get("P2PNODE_NO_NUMBA") == "1":
        return weigh_plain
    try:
        from .jit.weigh import weigh as compiled
    except Exception:  # as in `loader`: a broken numba fails in many ways
        return weigh_plain
    return compiled
