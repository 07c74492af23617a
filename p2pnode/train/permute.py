"""A keyed permutation of 0..n-1 by index: shuffling without a list or a generator's state.

May import: nothing of ours.
"""

from __future__ import annotations

_MASK64 = (1 << 64) - 1
_ROUNDS = 6


def mix64(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): 64 bits in, 64 bits out."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def permute(index: int, n: int, key: int) -> int:
    """Where `index` in [0, n) goes under the permutation chosen by `key`, n <= 2**64.

    A balanced Feistel network over the next even number of bits, walked until the value falls
    inside [0, n) (Black and Rogaway 2002): under four rounds on average.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    x = index
    while True:
        left, right = x >> half, x & mask
        for i in range(_ROUNDS):
            left, right = right, left ^ (mix64(key ^ mix64(right * _ROUNDS + i)) & mask)
        x = left << half | right
        if x < n:
            return x
