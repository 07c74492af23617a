"""The compiled form of the checksum under a nonce; see `kernels.weigh`.

May import: jit siblings.
"""

from __future__ import annotations

import numpy as np

from .compile import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


@kernel
def weigh(values, key):
    """Sum of values[i] * mix(key + i * golden), modulo 2^64. values: int32 [n]; key: uint64."""
    total = np.uint64(0)
    state = key
    for i in range(values.size):
        z = (state ^ (state >> _S30)) * _MIX1
        z = (z ^ (z >> _S27)) * _MIX2
        total += (z ^ (z >> _S31)) * np.uint64(np.int64(values[i]))
        state += _GOLDEN
    return total
