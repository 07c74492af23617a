"""The tasks of a node: they run until it ends, and the first of them that fails ends it.

May import: nothing of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Tasks(Generic[T]):
    """Tasks of one owner, and how it ends: by a result or by an error, whichever comes first.

    Made and used on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[T] = self._loop.create_future()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in the background. What it raises ends the owner."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._reap)

    def finish(self, result: T) -> None:
        """End the owner, if nothing has yet."""
        if not self._end.done():
            self._end.set_result(result)

    def fail(self, error: BaseException) -> None:
        """End the owner by an error, if nothing has yet."""
        if not self._end.done():
            self._end.set_exception(error)

    async def end(self) -> T:
        """Wait for the end. Raises what the owner failed by."""
        return await self._end

    async def cancel(self) -> None:
        """Cancel every task and wait until they are gone."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def watch_callbacks(self) -> None:
        """From now on a callback of the loop that fails ends the owner too: it is a fault of ours,
        and better than to go on half broken."""
        self._loop.set_exception_handler(self._on_loop_error)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, OSError) or "future" in context or "task" in context:
            # Of a socket that broke or of a task inside aiortc: their owners notice.
            loop.default_exception_handler(context)
        else:
            self.fail(error)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
