"""Watchdog: how long the event loop was held, and whether the whole process was suspended.

May import: nothing of ours.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time

log = logging.getLogger(__name__)

INTERVAL = 0.02
"""Seconds between looks: the resolution of what is measured."""

STALL = 0.1
"""A stall of this many seconds is counted: heartbeats and transfers begin to suffer."""

SUSPENDED = 2.0
"""So many seconds more on the clock that runs while the machine sleeps mean that it slept."""


@dataclasses.dataclass(frozen=True, slots=True)
class StallReport:
    """What was measured since the start. Times in seconds."""

    worst: float
    stalls: int
    """Number of stalls over STALL."""
    suspensions: int


class Stalls:
    """The measuring without the loop: told the times at each look."""

    def __init__(self, now: float, boot: float, worked: float) -> None:
        """now: monotonic time; boot: a clock that also runs while the machine sleeps; worked:
        seconds for which the loop's thread has computed."""
        self._due = now + INTERVAL
        self._worked = worked
        self._slept = boot - now
        self.worst = 0.0
        self.stalls = 0
        self.suspensions = 0

    def look(self, now: float, boot: float, worked: float) -> float:
        """Seconds by which this look came too late."""
        late = max(0.0, now - self._due)
        own, self._worked = worked - self._worked, worked
        self._due = now + INTERVAL
        if boot - now - self._slept > SUSPENDED:
            self.suspensions += 1
            log.warning("this machine slept for %.0f s", boot - now - self._slept)
        self._slept = boot - now
        if late > STALL:
            self.stalls += 1
        if late > self.worst:
            self.worst = late
            if late > STALL:
                log.warning(
                    "the event loop was held for %.0f ms, %.0f of them by its own work, else by "
                    "other threads or programs",
                    *(late * 1000, own * 1000),
                )
        return late


def boot_time() -> float:
    """Seconds on a clock that runs while the machine sleeps (monotonic where there is none)."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Watchdog:
    """Looks at the running loop until closed."""

    def __init__(self) -> None:
        """Inside the loop it is to watch."""
        self._stalls = Stalls(time.monotonic(), boot_time(), time.thread_time())
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="watchdog")

    def report(self) -> StallReport:
        """What was measured so far."""
        stalls = self._stalls
        return StallReport(stalls.worst, stalls.stalls, stalls.suspensions)

    async def close(self) -> None:
        """Stop looking."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            self._stalls.look(time.monotonic(), boot_time(), time.thread_time())
