"""The tasks of a node: the first end counts, and what fails in the background is not lost."""

from __future__ import annotations

import asyncio

import pytest

from p2pnode.errors import DataError
from p2pnode.tasks import Tasks


async def fails() -> None:
    raise DataError("no text")


async def test_a_task_that_fails_ends_the_owner() -> None:
    tasks: Tasks[int] = Tasks()
    tasks.spawn(asyncio.sleep(1_000.0))
    tasks.spawn(fails())
    with pytest.raises(DataError, match="no text"):
        await tasks.end()
    await tasks.cancel()
    assert len(asyncio.all_tasks()) == 1


async def test_only_the_first_end_counts() -> None:
    tasks: Tasks[int] = Tasks()
    tasks.finish(1)
    tasks.finish(2)
    tasks.fail(DataError("too late"))
    assert await tasks.end() == 1


async def test_a_cancelled_task_is_no_end() -> None:
    tasks: Tasks[int] = Tasks()
    tasks.spawn(asyncio.sleep(1_000.0))
    await tasks.cancel()
    tasks.finish(1)
    assert await tasks.end() == 1


async def test_a_callback_that_fails_ends_the_owner() -> None:
    tasks: Tasks[int] = Tasks()
    tasks.watch_callbacks()
    asyncio.get_running_loop().call_soon(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        await tasks.end()


async def test_a_socket_that_breaks_in_a_callback_is_no_end() -> None:
    tasks: Tasks[int] = Tasks()
    tasks.watch_callbacks()

    def breaks() -> None:
        raise ConnectionResetError

    asyncio.get_running_loop().call_soon(breaks)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks.finish(1)
    assert await tasks.end() == 1
