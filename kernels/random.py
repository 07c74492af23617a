"""Counter-based random integers: a value is a function of (seed, purpose, index), never of a state.

The mixer is the 64-bit finaliser of SplitMix64 (G. Steele, D. Lea, C. Flood, 2014; constants by
D. Stafford), applied once per index part. Not for secrets. May import: types, numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .types import F32, U64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_CHUNK = 1 << 18


def mixed(z: U64) -> U64:
    """The finaliser alone: a bijection of 64-bit integers."""
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


def random_u64(seed: int, purpose: str, *index: int | npt.NDArray[np.integer]) -> U64:
    """Uniform 64-bit integers for the broadcast index parts (each 0 .. 2^64 - 1), at least 1-d.

    `random_u64(7, "order", epoch, np.arange(n))` gives n values; scalars give an array of one.
    """
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    state = np.frombuffer(digest[:8], "<u8").astype(np.uint64)
    for part in index:
        counter = np.atleast_1d(np.asarray(part)).astype(np.uint64)
        state = mixed(state + (counter + np.uint64(1)) * _GOLDEN)
    return mixed(state)


def _chunks(n: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, _CHUNK):
        yield start, min(n, start + _CHUNK)


def normal_weights(seed: int, purpose: str, n: int, std: float) -> F32:
    """n float32 weights, close to normal with the given standard deviation, without libm.

    Irwin-Hall: the sum of twelve 16-bit uniforms is an integer of mean 12 * 65,535 / 2 and
    variance 2^32 - 1; centred, doubled and scaled by f32(std) * 2^-17 with one rounding.
    Nothing lies beyond 6 standard deviations.
    """
    out = np.empty(n, np.float32)
    scale = np.float32(std) * np.float32(1 / 131_072)
    for start, stop in _chunks(n):
        index = np.arange(start, stop, dtype=np.uint64)
        total = np.zeros(stop - start, np.int64)
        for word in range(3):
            bits = random_u64(seed, purpose, word, index)
            for shift in (0, 16, 32, 48):
                total += ((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
        out[start:stop] = (2 * total - 12 * 65_535).astype(np.float32) * scale
    return out
