"""The checksum under a nonce: its two forms agree, it is linear, and it sees what it should."""

from __future__ import annotations

import numpy as np
import pytest

import kernels
from kernels.weigh import weigh_plain

NONCE = b"n" * 16
MOST = 2**31 - 1


def vector(size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-MOST, MOST, size, dtype=np.int32)


def exact(values: np.ndarray, key: int) -> int:
    """In Python integers."""
    total = 0
    for i, value in enumerate(values.tolist()):
        z = (key + i * 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        total += (z ^ (z >> 31)) * value
    return total % 2**64


@pytest.mark.parametrize("size", [0, 1, 7, 1000, 70_000, 140_001])
def test_the_forms_agree(size: int) -> None:
    from kernels.jit.weigh import weigh

    values, key = vector(size), np.uint64(2**64 - 12345)
    assert int(weigh(values, key)) == weigh_plain(values, key)
    if size <= 1000:
        assert weigh_plain(values, key) == exact(values, int(key))


def test_checksums_of_vectors_and_of_parts_add_up() -> None:
    one, other = vector(5000, 1) // 2, vector(5000, 2) // 2
    whole = kernels.weigh(one + other, NONCE)
    assert (kernels.weigh(one, NONCE) + kernels.weigh(other, NONCE) - whole) % 2**64 == 0
    cut = kernels.weigh((one + other)[:777], NONCE), kernels.weigh((one + other)[777:], NONCE, 777)
    assert (sum(cut) - whole) % 2**64 == 0


def test_another_nonce_has_other_coefficients() -> None:
    ones = np.ones(1, np.int32)
    found = {kernels.weigh(ones, bytes([i]) * 16, start) for i in range(16) for start in range(64)}
    assert len(found) == 16 * 64


@pytest.mark.parametrize("bits", [31, 24, 0])
def test_a_difference_shows_under_every_nonce(bits: int) -> None:
    """Differences that are multiples of 2^bits: those of 2^31 are the hardest to see."""
    source = np.random.default_rng(bits)
    for _ in range(2000):
        step = -(2**31) if bits == 31 else 2**bits
        change = np.where(source.random(8) < 0.5, np.int32(step), np.int32(0)).astype(np.int32)
        if change.any():
            assert kernels.weigh(change, source.bytes(16), int(source.integers(10**9)))
