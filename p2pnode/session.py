"""One session of a run: carries the step core's effects to the computing thread and to the mesh,
and their results back.

May import: audits, jobs, keeper, supply, worker, net, protocol, train.evidence, ui, config, errors.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import psutil

from p2pnode.audits import Audits, Cost
from p2pnode.config import RunConfig
from p2pnode.errors import (
    ArithmeticUnsoundError,
    CheckpointError,
    DataError,
    DiskFullError,
    DivergenceError,
    LedgerError,
    P2PNodeError,
    RefusedError,
)
from p2pnode.jobs import Jobs, PartialSet
from p2pnode.keeper import CommitResult
from p2pnode.net import events as wire
from p2pnode.net.mesh import Mesh
from p2pnode.protocol import effects, events
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.identity import short_id
from p2pnode.protocol.messages import Summary, encode
from p2pnode.protocol.setup import Setup
from p2pnode.protocol.text import visible
from p2pnode.supply import Supply
from p2pnode.train.evidence import AppliedInfo
from p2pnode.ui.events import Checkpoint, Computing, Event, HeldOut, Info, Step, Warn
from p2pnode.ui.metrics import Metrics, NodeShare, TimeSplit
from p2pnode.worker import Urgency, Worker

log = logging.getLogger(__name__)

T = TypeVar("T")
LastSave: TypeAlias = tuple[Path, tuple[int, bytes] | None]
"""The final checkpoint, and what is to be signed (see `Jobs.final`)."""

SAVE_AGAIN = 15.0
"""Seconds between tries to write the final state to a full disk."""

LOSS_UNIT = float(1 << 24)
"""Losses are integers in units of 2^-24 nats."""

_FAULTS: dict[effects.Fault, type[P2PNodeError]] = {
    effects.Fault.DIVERGENCE: DivergenceError,
    effects.Fault.UNSOUND: ArithmeticUnsoundError,
    effects.Fault.TEXT: DataError,
    effects.Fault.REMOVED: RefusedError,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended here. `loss`: nats per token of the last step this node saw applied."""

    step: int
    state_hash: bytes
    ending: effects.Ending
    detail: str
    loss: float | None
    checkpoint: Path


class Session:
    """Runs one StepCore. All methods are called on the event loop."""

    def __init__(
        self,
        setup: Setup,
        config: RunConfig,
        jobs: Jobs,
        *,
        worker: Worker,
        mesh: Mesh,
        show: Callable[[Event], None],
        rewind: Callable[[effects.Rewind], object],
        kept: Callable[[CommitResult], object],
        measured: Callable[[Metrics], object],
        audit_cost: Cost,
    ) -> None:
        """`rewind` is called when this node is to take the run back (it has a record to sign);
        `kept` with what each commit left behind, and at the end; `measured` with its figures;
        `audit_cost` is added to."""
        self._me = setup.me
        self._config = config
        self._jobs = jobs
        self._worker = worker
        self._mesh = mesh
        self._show = show
        self._rewind = rewind
        self._kept = kept
        self._measured = measured
        self._split = TimeSplit(lambda: worker.busy)
        self._traffic = mesh.traffic()
        self._loop = asyncio.get_running_loop()
        self._process = psutil.Process()
        self._begun = False
        self._final = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sets: deque[PartialSet] = deque()
        self._computing: asyncio.Task[None] | None = None
        self._announced = setup.applied
        self._loss: float | None = None
        self._finishing: asyncio.Future[Outcome] = self._loop.create_future()
        self._released: asyncio.Future[None] = self._loop.create_future()
        self.core = StepCore(setup)
        self._supply = Supply(
            jobs.dataset, config, worker, lambda lacking: self.handle(events.Supply(lacking)), show
        )
        self._audits = Audits(
            jobs,
            worker,
            self._spawn,
            self.handle,
            step=lambda: self.core.applied,
            busy=lambda: self._computing is not None,
            say=lambda text: self._show(Warn(text=text)),
            cost=audit_cost,
        )

    def handle(self, event: events.Event) -> None:
        """Give the core one event and carry out what it asks for."""
        if self._released.done():
            return
        log.debug("event %.300s", event)
        if isinstance(event, events.Heard) and event.nbytes:
            self._split.bulk(self._loop.time())
        for effect in self.core.handle(event, self._loop.time()):
            log.debug("effect %.300s", effect)
            self._carry_out(effect)
        self._audits.wake()
        self._begun |= isinstance(event, events.Start)
        if self._timer is not None:
            self._timer.cancel()
        if self._begun:
            self._timer = self._loop.call_at(self.core.next_deadline(), self.handle, events.Tick())

    @property
    def over(self) -> bool:
        """The final state is committed here, or the run has failed."""
        return self._final

    def redirect(self, config: RunConfig, event: events.Redirected) -> None:
        """Go on under a new record, which has all states that are here (`Chain.goes_on`)."""
        self._config = config
        # Queued before any apply that the core asks for from now on.
        turning = self._worker.submit(Urgency.EXCHANGE, self._jobs.turn, config)

        async def wait() -> None:
            await turning

        self._spawn(wait())
        self.handle(event)

    async def finished(self) -> Outcome:
        """Wait for the final state to be committed and saved here (others may still need us)."""
        return await asyncio.shield(self._finishing)

    async def released(self) -> None:
        """Wait until nobody needs this node any more."""
        await asyncio.shield(self._released)

    async def save(self) -> Path:
        """Write the committed state now. Raises CheckpointError."""
        return await self._worker.submit(Urgency.EXCHANGE, self._jobs.save)

    def close(self) -> None:
        """Stop timers and computing; nothing is reported any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._sets.clear()
        self._supply.close()
        self._audits.close()
        for task in self._tasks:
            task.cancel()
        for future in (self._released, self._finishing):
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()  # retrieved, so that nothing is logged about it

    # Effects

    def _carry_out(self, effect: effects.Effect) -> None:
        # Jobs are queued here and now, so that they run in the order of their effects.
        match effect:
            case effects.Send():
                self._mesh.send(
                    effect.peer,
                    encode(effect.message, effect.payload),
                    wire.Priority(effect.priority),
                    key=effect.key,
                    via=effect.via,
                )
            case effects.Compute():
                self._sets.append(PartialSet(effect))
                if self._computing is None:
                    self._computing = self._spawn(self._compute())
            case effects.CancelCompute():
                self._sets = deque(
                    partial
                    for partial in self._sets
                    if partial.effect.reference
                    or (partial.effect.step, partial.effect.slots) != (effect.step, effect.slots)
                )
            case effects.Reduce():
                self._run(self._jobs.reduce, effect)
            case effects.Weigh():
                self._run(self._jobs.weigh, effect)
            case effects.Rollback():
                undone = self._worker.submit(Urgency.EXCHANGE, self._jobs.rollback, effect)
                self._spawn(_done(undone))
            case effects.Apply():
                self._run(self._jobs.apply, effect)
            case effects.Verify():
                self._run(self._jobs.verify, effect)
            case effects.Audit():
                self._audits.begin(effect)
            case effects.Diagnose():
                self._audits.diagnose(effect)
            case effects.LetGo():
                self._audits.let_go(effect)
            case effects.Rewind():
                # It closes this session, whose other effects are still to be carried out.
                self._loop.call_soon(self._rewind, effect)
            case effects.Freeze():
                self._run(self._jobs.freeze, effect)
            case effects.Load():
                self._run(self._jobs.load, effect)
            case effects.Recall():
                self._run(self._jobs.recall, effect)
            case effects.Store():
                self._worker.submit(Urgency.BACKGROUND, self._jobs.store, effect)
            case effects.Spool():
                self._run(self._jobs.spool, effect, Urgency.BACKGROUND)
            case effects.Commit():
                job = self._worker.submit(Urgency.EXCHANGE, self._jobs.commit, effect)
                self._spawn(self._commit(effect, job))
            case effects.Report():
                self._report(effect)
            case effects.DropPeer():
                self._mesh.drop(effect.peer, effect.reason)
            case effects.Finished():
                self._final = True
                saved = self._worker.submit(Urgency.EXCHANGE, self._jobs.final)
                self._spawn(self._finish(effect, saved))
            case effects.Released():
                self._spawn(self._release())
            case effects.Failed():
                self._fail(_FAULTS[effect.fault](effect.text))

    def _run(
        self,
        job: Callable[[T], events.Event],
        effect: T,
        urgency: Urgency = Urgency.EXCHANGE,
    ) -> None:
        """Queue a job and report its event."""
        future = self._worker.submit(urgency, job, effect)

        async def wait() -> None:
            self.handle(await future)

        self._spawn(wait())

    async def _compute(self) -> None:
        while self._sets:
            partial = self._sets[0]
            step = partial.effect.step
            self._supply.go_to(step)
            await self._supply.here()
            if not self._sets or self._sets[0] is not partial:
                continue  # it went to somebody who has the text
            if step > self._announced:
                self._announced = step
                self._show(Computing(step=step, slots=len(partial.effect.slots)))
            done = len(partial.evidence)
            event = await self._worker.submit(Urgency.COMPUTE, self._audits.own_slot, partial)
            over = event is not None or len(partial.evidence) == done
            if over and self._sets and self._sets[0] is partial:
                self._sets.popleft()
            if event is not None:
                self.handle(event)
        self._computing = None
        self._audits.wake()

    async def _commit(self, effect: effects.Commit, job: asyncio.Future[CommitResult]) -> None:
        info = self._jobs.info(effect.step)
        lap = self._split.lap(self._loop.time())
        result = await job
        summary = effect.summary
        if summary is not None and info is not None:
            loss = summary.loss / summary.tokens / LOSS_UNIT
            plan = self.core.plan
            self._measure(effect, summary, info, result, lap)
            since = lap[0]
            self._loss = loss
            self._show(
                Step(
                    step=effect.step,
                    steps=self._config.steps,
                    loss=loss,
                    grad_norm=info.grad_norm,
                    lr=info.lr,
                    tokens_per_s=summary.tokens / since if since > 0 else 0.0,
                    slots_here=dict(effect.credits).get(self._me, 0),
                    nodes=len(plan.roster) if plan is not None else 1,
                    audited=self._audits.cost.slots,
                    rss_mb=round(self._process.memory_info().rss / 2**20, 1),
                )
            )
        if result.held_out is not None:
            self._show(HeldOut(step=effect.step, loss=result.held_out.nats_per_token))
        if result.checkpoint is not None:
            self._show(Checkpoint(step=effect.step, path=str(result.checkpoint)))
        if result.best is not None:
            self._show(Checkpoint(step=effect.step, path=str(result.best), best=True))
        if result.problem is not None:
            self._show(Warn(text=f"{result.problem} Training goes on; the next save tries again."))
        self._kept(result)

    def _measure(
        self,
        effect: effects.Commit,
        summary: Summary,
        info: AppliedInfo,
        result: CommitResult,
        lap: tuple[float, float, float, float],
    ) -> None:
        """The figures of a step, as this machine saw it."""
        seconds, compute, wire_, wait = (round(part, 4) for part in lap)
        sent, received = self._mesh.traffic()
        sent_before, received_before = self._traffic
        self._traffic = sent, received
        rate = self._config.tokens_per_slot / seconds if seconds > 0 else 0.0
        plan, slots = self.core.plan, dict(effect.credits)
        roster = plan.roster if plan is not None else (self._me,)
        roster = (*roster, *(peer for peer in slots if peer not in roster))
        held_out = result.held_out
        self._measured(
            Metrics(
                run=self._config.at(0).run_id().hex()[:8],
                step=effect.step,
                loss=summary.loss / summary.tokens / LOSS_UNIT,
                heldout=held_out.nats_per_token if held_out is not None else None,
                tokens=summary.tokens,
                grad_norm=info.grad_norm,
                lr=info.lr,
                seconds=seconds,
                tokens_per_s=round(summary.tokens / seconds, 1) if seconds > 0 else 0.0,
                nodes=tuple(
                    NodeShare(
                        short_id(peer), slots.get(peer, 0), round(rate * slots.get(peer, 0), 1)
                    )
                    for peer in roster
                ),
                bytes_in=received - received_before,
                bytes_out=sent - sent_before,
                compute_s=compute,
                wire_s=wire_,
                wait_s=wait,
            )
        )

    def _report(self, report: effects.Report) -> None:
        quiet = (effects.Kind.LEADER, effects.Kind.ROSTER, effects.Kind.CATCH_UP, effects.Kind.STOP)
        text = visible(report.text)
        self._show(Info(text=text) if report.kind in quiet else Warn(text=text))

    async def _finish(self, effect: effects.Finished, saved: asyncio.Future[LastSave]) -> None:
        try:
            path, signs = await self._saved(saved)
        except (CheckpointError, LedgerError) as error:
            self._fail(error)
            return
        self._kept(CommitResult(None, path, None, signs=signs))
        if not self._finishing.done():
            self._finishing.set_result(
                Outcome(
                    effect.step, effect.state_hash, effect.ending, effect.detail, self._loss, path
                )
            )

    async def _saved(self, saving: asyncio.Future[LastSave]) -> LastSave:
        """The final state is worth waiting for: a full disk can be made room on."""
        while True:
            try:
                return await saving
            except DiskFullError as error:
                self._show(
                    Warn(
                        text=f"{error} The final state is kept in memory: make room, it is tried "
                        f"again every {SAVE_AGAIN:.0f} s. `quit` gives it up."
                    )
                )
                await asyncio.sleep(SAVE_AGAIN)
                saving = self._worker.submit(Urgency.EXCHANGE, self._jobs.final)

    async def _release(self) -> None:
        await self.finished()
        if not self._released.done():
            self._released.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self._final = True
        for future in (self._finishing, self._released):
            if not future.done():
                future.set_exception(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[None]) -> None:
        """A job that raised ends the run: the error is ours or the machine's, never a peer's."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a job failed", exc_info=error)
            self._fail(error)


async def _done(job: asyncio.Future[None]) -> None:
    await job
