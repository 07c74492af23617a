"""The computing thread: everything that takes long runs here, outside the event loop.

One thread, jobs by urgency and then in order of arrival. A job must release the GIL in whatever it
does for long (the kernels do); a later form may run the jobs in a subprocess.

May import: nothing of ours.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Urgency(enum.IntEnum):
    """Others wait for a reduction; nobody waits for a checkpoint file."""

    EXCHANGE = 0
    """Reduce, apply, hash: the group waits for it."""
    COMPUTE = 1
    """One slot; never longer than a slot, so an exchange waits at most that long."""
    BACKGROUND = 2
    """Files, held-out loss."""


class Worker:
    """One computing thread with a priority queue, awaited from the event loop."""

    def __init__(self, name: str = "compute") -> None:
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = (
            queue.PriorityQueue()
        )
        self._order = itertools.count()
        self._closed = False
        self._worked = 0.0
        self._since: float | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, urgency: Urgency, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Queue `job` and return a future of the running loop; its exception is the job's.

        Raises RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError("the computing thread has been closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def done(set_outcome: Callable[[], None]) -> None:
            if not future.cancelled():
                set_outcome()

        def post(set_outcome: Callable[[], None]) -> None:
            try:
                loop.call_soon_threadsafe(done, set_outcome)
            except RuntimeError:  # the loop has closed: nobody waits any more
                return

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = job(*args, **kwargs)
            except BaseException as error:  # the waiter gets it
                failure = error
                post(lambda: future.set_exception(failure))
            else:
                post(lambda: future.set_result(result))

        self._jobs.put((urgency, next(self._order), run))
        return future

    @property
    def busy(self) -> float:
        """Seconds spent in jobs so far, the running one included."""
        since = self._since
        return self._worked + (time.perf_counter() - since if since is not None else 0.0)

    def close(self, timeout: float = 2.0) -> None:
        """Stop after the running job; queued ones are dropped. Waits at most `timeout` seconds."""
        self._closed = True
        self._jobs.put((-1, next(self._order), None))
        self._thread.join(timeout)

    def _main(self) -> None:
        while True:
            _, _, job = self._jobs.get()
            if job is None:
                return
            self._since = began = time.perf_counter()
            job()
            self._since = None
            self._worked += time.perf_counter() - began
