"""Buffers are used again, and never while an array still refers to them."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import workspace
from kernels.workspace import empty

LARGE = (512, 1024)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_buffers", workspace._Buffers())


def address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]


def test_memory_is_used_again_for_the_same_size() -> None:
    first = empty(LARGE, np.float32)
    where = address(first)
    del first
    assert address(empty(LARGE, np.int32)) == where
    assert address(empty((1024, 1024), np.float32)) != where


def test_memory_in_use_is_left_alone() -> None:
    first = empty(LARGE, np.float32)
    view = first[3:].T  # also through a view of a view
    where = address(first)
    first[:] = 1
    del first
    second = empty(LARGE, np.float32)
    second[:] = 2
    assert address(second) != where
    assert (view == 1).all()
    buffer = memoryview(second)
    del second
    third = empty(LARGE, np.float32)
    third[:] = 3
    assert np.frombuffer(buffer, np.float32)[0] == 2


def test_small_arrays_are_ordinary_ones() -> None:
    empty(10, np.float32)
    assert workspace._buffers._buffers == []


@pytest.mark.parametrize("shape", [(1024, 1), (1025, 3), (96, 1024), LARGE])
def test_arrays_of_a_page_and_more_begin_on_a_cache_line(shape: tuple[int, int]) -> None:
    for _ in range(3):
        assert address(empty(shape, np.float32)) % workspace._LINE == 0


def test_what_is_no_longer_asked_for_is_given_back() -> None:
    kept = empty((600, 1024), np.float32)
    empty(LARGE, np.float32)
    for _ in range(workspace._PATIENCE + 1):
        empty((700, 1024), np.float32)
    empty((800, 1024), np.float32)
    sizes = {buffer.size for buffer in workspace._buffers._buffers}
    rooms = {size - workspace._LINE for size in sizes}
    assert rooms == {kept.nbytes, 700 * 4096, 800 * 4096}
