"""Audits and diagnoses of one run at one node: carried out beside its own work, one at a time.

An audit of the current step waits until this node has no slots of its own to compute. Once the step
is applied it takes turns with them, so that no state is kept for long.

May import: jobs, worker, train, protocol.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from p2pnode.jobs import Jobs, PartialSet
from p2pnode.protocol import effects, events
from p2pnode.train.trainer import Lent
from p2pnode.worker import Urgency, Worker


@dataclasses.dataclass(slots=True)
class Cost:
    """What audits took here so far."""

    slots: int = 0
    seconds: float = 0.0
    own_seconds: float = 0.0
    """What this node's own slots took, for comparison."""

    @property
    def share(self) -> float:
        """Of the time for slots, the part for those of others; 0 to 1."""
        whole = self.seconds + self.own_seconds
        return self.seconds / whole if whole else 0.0


class Audits:
    """Runs Audit, Diagnose and LetGo effects. All methods are called on the event loop."""

    def __init__(
        self,
        jobs: Jobs,
        worker: Worker,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        answer: Callable[[events.Event], None],
        step: Callable[[], int],
        busy: Callable[[], bool],
        say: Callable[[str], object],
        cost: Cost,
    ) -> None:
        """`spawn` runs a task, `answer` takes results, `step` tells how many are applied, `busy`
        whether there are own slots to compute; `say` tells the owner what came too late; `cost` is
        added to."""
        self._jobs = jobs
        self._worker = worker
        self._spawn = spawn
        self._answer = answer
        self._step = step
        self._busy = busy
        self._woken = asyncio.Event()
        self._sets: deque[PartialSet] = deque()
        self._diagnoses: set[asyncio.Task[None]] = set()
        self._say = say
        self._running = self._closed = False
        self.cost = cost

    def begin(self, effect: effects.Audit) -> None:
        """Keep the state now, compute when there is time."""
        lent = self._worker.submit(Urgency.EXCHANGE, self._jobs.lend, effect.step)
        lent.add_done_callback(_retrieve)  # whether it is there shows when it is computed on
        self._sets.append(PartialSet(effect))
        if not self._running:
            self._running = True
            self._spawn(self._run())

    def let_go(self, effect: effects.LetGo) -> None:
        """Nobody computes on the state before that step any more."""
        done = self._worker.submit(Urgency.EXCHANGE, self._jobs.let_go, effect.step)
        done.add_done_callback(_retrieve)

    def diagnose(self, effect: effects.Diagnose) -> None:
        """Takes as long as many slots, and is rare. It goes on when the session is closed, as it
        is if the run goes back: what it finds is wanted all the more then."""
        lent = self._worker.submit(Urgency.EXCHANGE, self._jobs.lend, effect.step)
        task = asyncio.get_running_loop().create_task(self._diagnose(effect, lent))
        self._diagnoses.add(task)
        task.add_done_callback(self._diagnoses.discard)

    async def _diagnose(self, effect: effects.Diagnose, lent: asyncio.Future[Lent | None]) -> None:
        job = self._worker.submit(Urgency.COMPUTE, self._jobs.diagnose, effect, await lent)
        event = await job
        if self._closed:
            self._say(event.saved)
        else:
            self._answer(event)

    async def _run(self) -> None:
        while self._sets:
            partial = self._sets.popleft()
            event = None
            while event is None:
                await self._turn(partial.effect)
                event = await self._worker.submit(Urgency.COMPUTE, self._slot, partial)
            self._answer(event)
        self._running = False

    async def _turn(self, effect: effects.Compute | effects.Audit) -> None:
        while effect.step > self._step() and not effect.reference and self._busy():
            self._woken.clear()
            await self._woken.wait()

    def wake(self) -> None:
        """The step, or whether this node is busy, may have changed."""
        self._woken.set()

    def _slot(self, partial: PartialSet) -> events.Audited | None:
        """In the computing thread."""
        began = time.thread_time()
        event = self._jobs.audit_next_slot(partial)
        self.cost.seconds += time.thread_time() - began
        self.cost.slots += 1
        return event

    def own_slot(self, partial: PartialSet) -> events.Computed | events.SetRefused | None:
        """In the computing thread: a slot of this node's own, timed for the comparison."""
        began = time.thread_time()
        event = self._jobs.compute_next_slot(partial)
        self.cost.own_seconds += time.thread_time() - began
        return event

    def close(self) -> None:
        """Drop what waits. A diagnosis under way goes on."""
        self._closed = True
        self._sets.clear()


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
