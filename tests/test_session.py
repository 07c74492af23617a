"""A session around a real step core: effects carried out, in order, and their ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2pnode import session as session_module
from p2pnode.audits import Cost
from p2pnode.errors import (
    ArithmeticUnsoundError,
    CheckpointError,
    DiskFullError,
    DivergenceError,
    P2PNodeError,
    RefusedError,
)
from p2pnode.jobs import Jobs
from p2pnode.keeper import CommitResult, Keeper
from p2pnode.net.events import Priority
from p2pnode.protocol import effects, events
from p2pnode.protocol.messages import Shard, Summary, Want
from p2pnode.session import Session
from p2pnode.train.checkpoint import CheckpointFolder, load
from p2pnode.train.evidence import HeldOut
from p2pnode.train.ledger import Ledger
from p2pnode.ui import events as ui
from p2pnode.ui.metrics import Metrics
from p2pnode.worker import Worker
from tests.harness.stage import (
    ME,
    PEER,
    SECONDS,
    STEPS,
    FakeJobs,
    FakeMesh,
    ScriptedCore,
    Stage,
    make_setup,
)
from tests.net.fakes import until
from tests.train.helpers import new_trainer, run_config, train


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


@pytest.fixture
async def stage(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(session_module, "StepCore", ScriptedCore)
    jobs, mesh, shown, measured, cost = FakeJobs(), FakeMesh(), [], [], Cost()
    made: Any = Session(
        make_setup(),
        run_config("nano", steps=STEPS),
        jobs,  # type: ignore[arg-type]
        worker=worker,
        mesh=mesh,  # type: ignore[arg-type]
        show=shown.append,
        rewind=jobs.rewinds.append,
        kept=lambda result: None,
        measured=measured.append,
        audit_cost=cost,
    )
    yield Stage(made, made.core, jobs, mesh, shown, cost)
    jobs.hold.set()
    made.close()


def summary() -> Summary:
    return Summary(loss=3 * 2**24, tokens=2, clamps=0, max_abs=(), checksum=0, evidence=bytes(32))


def commit(step: int) -> effects.Commit:
    return effects.Commit(step, bytes(32), summary(), ((ME, 5),))


# A real run of one node


class Run:
    """One node alone with the smallest preset."""

    def __init__(self, worker: Worker, folder: Path, **setup: Any) -> None:
        self.config = run_config("nano", steps=STEPS, slots=4, warmup=1, eval_every=2)
        self.trainer = new_trainer(self.config)
        self.shown: list[ui.Event] = []
        self.measured: list[Metrics] = []
        files = CheckpointFolder(folder)
        ledger = Ledger(folder, self.config)
        keeper = Keeper(self.trainer, files, ledger, every=2, keep_best=False)
        self.session = Session(
            make_setup(
                parameters=self.trainer.parameters,
                tensors=len(self.trainer.tensors),
                slots=self.config.slots,
                state_hash=self.trainer.state_hash,
                probe=self.trainer.expected_probe,
                run=self.config.run_id()[:16],
                **setup,
            ),
            self.config,
            Jobs(self.trainer, files, keeper),
            worker=worker,
            mesh=FakeMesh(),  # type: ignore[arg-type]
            show=self.shown.append,
            rewind=self.shown.append,
            kept=lambda result: None,
            measured=self.measured.append,
            audit_cost=Cost(),
        )

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.shown if isinstance(event, kind)]


async def test_one_node_trains_to_the_end(worker: Worker, tmp_path: Path) -> None:
    run = Run(worker, tmp_path)
    run.session.handle(events.Start(lead=True))
    outcome = await asyncio.wait_for(run.session.finished(), SECONDS)
    await asyncio.wait_for(run.session.released(), SECONDS)
    run.session.close()

    alone = new_trainer(run.config)
    losses = train(alone, STEPS)
    assert outcome.state_hash == alone.committed_hash
    assert (outcome.step, outcome.ending) == (STEPS, effects.Ending.COMPLETE)
    assert outcome.loss == losses[-1]
    assert load(outcome.checkpoint).hash() == alone.committed_hash

    steps = run.of(ui.Step)
    assert [event.step for event in steps] == list(range(1, STEPS + 1))
    assert [event.loss for event in steps] == losses
    assert {(event.slots_here, event.nodes, event.steps) for event in steps} == {(4, 1, STEPS)}
    assert [event.step for event in run.of(ui.Computing)] == list(range(1, STEPS + 1))
    assert [event.step for event in run.of(ui.HeldOut)] == [2, 4]
    assert run.of(ui.HeldOut)[-1].loss < run.of(ui.HeldOut)[0].loss
    assert [event.step for event in run.of(ui.Checkpoint)] == [2, 4]
    assert run.of(ui.Warn) == []


async def test_a_stop_order_ends_the_run_after_its_step(worker: Worker, tmp_path: Path) -> None:
    run = Run(worker, tmp_path)
    run.session.handle(events.Start(lead=True))
    await until(lambda: run.session.core.committed >= 1)
    last = run.session.core.horizon()
    assert last is not None
    event = events.Redirected(b"n" * 16, last, True, last, here=True)
    run.session.redirect(run.config, event)
    outcome = await asyncio.wait_for(run.session.finished(), SECONDS)
    run.session.close()
    assert 1 <= outcome.step == last < STEPS
    assert outcome.ending is effects.Ending.STOPPED
    assert load(outcome.checkpoint).step == last


async def test_changed_settings_hold_after_their_step(worker: Worker, tmp_path: Path) -> None:
    run = Run(worker, tmp_path)
    run.session.handle(events.Start(lead=True))
    await until(lambda: run.session.core.committed >= 1)
    after = run.session.core.horizon()
    assert after is not None
    config = run.config.changed(after, steps=STEPS + 2, lr=run.config.lr / 2, warmup=None)
    event = events.Redirected(b"n" * 16, config.steps, False, after, here=True)
    run.session.redirect(config, event)
    outcome = await asyncio.wait_for(run.session.finished(), SECONDS)
    run.session.close()
    alone = new_trainer(config)
    train(alone, config.steps)
    assert (outcome.step, outcome.state_hash) == (STEPS + 2, alone.committed_hash)
    assert load(outcome.checkpoint).config == config


async def test_close_in_the_middle_leaves_no_tasks(worker: Worker, tmp_path: Path) -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    before = asyncio.all_tasks()
    run = Run(worker, tmp_path)
    run.session.handle(events.Start(lead=True))
    await until(lambda: run.of(ui.Step))
    run.session.close()
    await until(lambda: asyncio.all_tasks() == before)
    shown = len(run.shown)
    run.session.handle(events.Tick())  # a timer that fired just then
    await asyncio.sleep(0.05)
    assert len(run.shown) == shown
    assert problems == []


async def test_close_does_not_wait_for_the_job_that_runs(stage: Stage) -> None:
    before = asyncio.all_tasks()
    stage.jobs.hold.clear()
    stage.do(effects.Verify(1), commit(1), effects.Compute(2, (0,)))
    await until(stage.jobs.entered.is_set)
    stage.session.close()
    await until(lambda: asyncio.all_tasks() == before)


# Order


async def test_jobs_run_in_the_order_of_their_effects(stage: Stage) -> None:
    """A donor that froze before it committed would serve the state of the step before."""
    stage.do(commit(13), effects.Freeze(13), effects.Apply(14, (), summary()), effects.Verify(14))
    await until(lambda: len(stage.jobs.ran) == 4)
    assert stage.jobs.ran == ["commit 13", "freeze 13", "apply 14", "verify 14"]


async def test_what_others_wait_for_goes_between_two_slots(stage: Stage) -> None:
    stage.jobs.hold.clear()
    stage.do(effects.Compute(1, (0, 1, 2)))
    await until(stage.jobs.entered.is_set)
    stage.do(effects.Reduce(1, Shard(0, 1), 0, (), (), (), ()))
    stage.jobs.hold.set()
    await until(lambda: len(stage.jobs.ran) == 4)
    assert stage.jobs.ran == ["slot 0", "reduce", "slot 1", "slot 2"]


async def test_what_others_wait_for_goes_before_a_slot_that_waits_too(stage: Stage) -> None:
    stage.jobs.hold.clear()
    stage.do(effects.Verify(1))
    await until(stage.jobs.entered.is_set)
    stage.do(effects.Compute(1, (0,)))
    await asyncio.sleep(0.01)  # the slot is queued
    stage.do(effects.Reduce(1, Shard(0, 1), 0, (), (), (), ()))
    stage.jobs.hold.set()
    await until(lambda: len(stage.jobs.ran) == 3)
    assert stage.jobs.ran == ["verify 1", "reduce", "slot 0"]


async def test_sets_are_computed_one_after_the_other(stage: Stage) -> None:
    stage.do(effects.Compute(1, (0, 1)), effects.Compute(1, (2, 3)))
    await until(lambda: len(stage.core.heard) == 3)
    assert stage.jobs.ran == [f"slot {n}" for n in range(4)]
    assert [e.slots for e in stage.core.heard if isinstance(e, events.Computed)] == [(0, 1), (2, 3)]
    # The thread is idle; another set starts it again.
    stage.do(effects.Compute(2, (0,)))
    await until(lambda: len(stage.jobs.ran) == 5)
    assert [e.step for e in stage.shown if isinstance(e, ui.Computing)] == [1, 2]


async def test_a_cancelled_set_is_given_up_between_slots(stage: Stage) -> None:
    stage.jobs.hold.clear()
    stage.do(effects.Compute(1, (0, 1, 2)), effects.Compute(1, (3, 4)), effects.Compute(1, (5,)))
    await until(stage.jobs.entered.is_set)
    stage.do(effects.CancelCompute(1, (0, 1, 2)), effects.CancelCompute(1, (3, 4)))
    stage.jobs.hold.set()
    await until(lambda: any(isinstance(e, events.Computed) for e in stage.core.heard))
    assert stage.jobs.ran == ["slot 0", "slot 5"]


async def test_giving_up_a_set_does_not_give_up_the_check_of_its_slot(stage: Stage) -> None:
    """A dispute about a slot is settled by its reference form, whoever computes it meanwhile."""
    stage.jobs.hold.clear()
    stage.do(effects.Compute(1, (7,)), effects.Compute(1, (7,), reference=True))
    await until(stage.jobs.entered.is_set)
    stage.do(effects.CancelCompute(1, (7,)))
    stage.jobs.hold.set()
    await until(
        lambda: any(isinstance(e, events.Computed) and e.reference for e in stage.core.heard)
    )


# Ends


async def test_a_job_that_raises_ends_the_run_with_its_error(stage: Stage) -> None:
    error = MemoryError("no memory for the step")
    stage.jobs.raises["apply 1"] = error
    stage.do(effects.Apply(1, (), summary()))
    for end in (stage.session.finished(), stage.session.released()):
        with pytest.raises(MemoryError) as caught:
            await asyncio.wait_for(end, SECONDS)
        assert caught.value is error
    heard = len(stage.core.heard)
    stage.session.handle(events.LinkUp(PEER))
    assert len(stage.core.heard) == heard  # the core of a run that failed is left alone


async def test_a_slot_that_raises_ends_the_run_too(stage: Stage) -> None:
    stage.jobs.raises["slot 0"] = ArithmeticUnsoundError("the floating-point mode changed")
    stage.do(effects.Compute(1, (0,)))
    with pytest.raises(ArithmeticUnsoundError, match="mode"):
        await asyncio.wait_for(stage.session.finished(), SECONDS)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (effects.Fault.DIVERGENCE, DivergenceError),
        (effects.Fault.UNSOUND, ArithmeticUnsoundError),
        (effects.Fault.REMOVED, RefusedError),
    ],
)
async def test_faults_become_errors(
    stage: Stage, fault: effects.Fault, kind: type[P2PNodeError]
) -> None:
    stage.do(effects.Failed(fault, "what happened"))
    with pytest.raises(kind, match="what happened"):
        await asyncio.wait_for(stage.session.finished(), SECONDS)


def test_every_fault_has_an_error() -> None:
    assert set(session_module._FAULTS) == set(effects.Fault)


async def test_the_end_waits_for_the_file(stage: Stage) -> None:
    stage.do(commit(5))
    await until(lambda: stage.jobs.ran == ["commit 5"])
    stage.jobs.hold.clear()
    stage.do(effects.Finished(5, b"h" * 32, effects.Ending.COMPLETE), effects.Released())
    finished = asyncio.create_task(stage.session.finished())
    released = asyncio.create_task(stage.session.released())
    await asyncio.sleep(0.02)
    assert not finished.done()
    assert not released.done()
    stage.jobs.hold.set()
    outcome = await asyncio.wait_for(finished, SECONDS)
    await asyncio.wait_for(released, SECONDS)
    assert (outcome.step, outcome.state_hash, outcome.loss) == (5, b"h" * 32, 1.5)
    assert outcome.checkpoint == Path("saved")


async def test_a_final_checkpoint_that_cannot_be_written_is_an_error(stage: Stage) -> None:
    stage.jobs.raises["save"] = CheckpointError("disk full")
    stage.do(effects.Finished(5, bytes(32), effects.Ending.COMPLETE), effects.Released())
    with pytest.raises(CheckpointError, match="disk full"):
        await asyncio.wait_for(stage.session.finished(), SECONDS)
    with pytest.raises(CheckpointError, match="disk full"):
        await asyncio.wait_for(stage.session.released(), SECONDS)


async def test_a_full_disk_at_the_end_is_waited_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "SAVE_AGAIN", 0.02)
    stage.jobs.raises["save"] = DiskFullError("no room")
    stage.do(effects.Finished(5, b"h" * 32, effects.Ending.COMPLETE), effects.Released())
    finished = asyncio.create_task(stage.session.finished())
    await until(lambda: stage.jobs.ran.count("save") >= 3)
    assert not finished.done()
    warning = stage.shown[0]
    assert isinstance(warning, ui.Warn)
    assert "no room" in warning.text
    assert "kept in memory" in warning.text
    del stage.jobs.raises["save"]
    assert (await asyncio.wait_for(finished, SECONDS)).checkpoint == Path("saved")
    await asyncio.wait_for(stage.session.released(), SECONDS)


async def test_a_wait_for_room_ends_when_the_node_does(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "SAVE_AGAIN", 1_000.0)
    stage.jobs.raises["save"] = DiskFullError("no room")
    stage.do(effects.Finished(5, bytes(32), effects.Ending.COMPLETE))
    await until(lambda: stage.shown)
    with pytest.raises(DiskFullError):
        await stage.session.save()  # as `quit` does
    stage.session.close()
    await asyncio.sleep(0.02)
    assert not stage.session._tasks


async def test_an_error_nobody_waited_for_is_not_logged_at_close(stage: Stage) -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    stage.do(effects.Failed(effects.Fault.REMOVED, "removed"))
    session = stage.session
    session.close()
    # The futures are gone with nobody having asked for their errors.
    session._finishing = session._released = asyncio.get_running_loop().create_future()
    gc.collect()
    await asyncio.sleep(0)
    assert problems == []


# What is told


async def test_a_commit_tells_what_it_left(stage: Stage) -> None:
    stage.jobs.result = CommitResult(HeldOut(2, 2**24, 1), Path("there"), None)
    stage.do(commit(2))
    await until(lambda: len(stage.shown) == 3)
    step, held_out, checkpoint = stage.shown
    assert isinstance(step, ui.Step)
    assert (step.step, step.loss, step.grad_norm, step.lr) == (2, 1.5, 1.0, 0.1)
    assert (step.slots_here, step.tokens_per_s) == (5, 0.0)
    assert held_out == ui.HeldOut(step=2, loss=1.0)
    assert checkpoint == ui.Checkpoint(step=2, path="there")


async def test_a_failed_checkpoint_is_a_warning_and_training_goes_on(stage: Stage) -> None:
    stage.jobs.result = CommitResult(None, None, "Cannot write: disk full.")
    stage.do(commit(2))
    await until(lambda: len(stage.shown) == 2)
    assert isinstance(stage.shown[1], ui.Warn)
    assert "disk full" in stage.shown[1].text
    assert "goes on" in stage.shown[1].text
    stage.do(commit(3))
    await until(lambda: len(stage.jobs.ran) == 2)


async def test_a_loaded_state_is_no_step_of_ours(stage: Stage) -> None:
    stage.do(effects.Commit(7, bytes(32), None, ()))
    await until(lambda: stage.jobs.ran == ["commit 7"])
    await asyncio.sleep(0.01)
    assert stage.shown == []


@pytest.mark.parametrize("kind", effects.Kind)
async def test_reports_are_shown_by_their_weight(stage: Stage, kind: effects.Kind) -> None:
    quiet = kind in (
        effects.Kind.LEADER,
        effects.Kind.ROSTER,
        effects.Kind.CATCH_UP,
        effects.Kind.STOP,
    )
    stage.do(effects.Report(kind, "a peer said \x1b[2J\nwarning: nothing"))
    (told,) = stage.shown
    assert type(told) is (ui.Info if quiet else ui.Warn)
    assert told.text == "a peer said \\x1b[2J\\nwarning: nothing"


async def test_messages_and_drops_go_to_the_mesh(stage: Stage) -> None:
    message = Want(bytes(16), 1, (), ())
    stage.do(
        effects.Send(PEER, message, b"", effects.Priority.SHARD, key=("k", 1), via=ME),
        effects.DropPeer(PEER, "it broke a rule"),
    )
    ((peer, raw, priority, options),) = stage.mesh.sent
    assert (peer, priority) == (PEER, Priority.SHARD)
    assert options == {"key": ("k", 1), "via": ME}
    assert len(raw) > 20
    assert stage.mesh.dropped == [(PEER, "it broke a rule")]


async def test_ticks_come_when_the_core_wants_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[events.Event] = []
    loop = asyncio.get_running_loop()

    def handle(event: events.Event, now: float) -> list[effects.Effect]:
        ticks.append(event)
        return []

    monkeypatch.setattr(stage.core, "handle", handle)
    monkeypatch.setattr(stage.core, "next_deadline", lambda: loop.time() + 0.01)
    stage.session.handle(events.LinkUp(PEER))
    await asyncio.sleep(0.05)
    assert ticks == [events.LinkUp(PEER)]  # a core that has not begun has nothing to do in time
    stage.session.handle(events.Start(lead=False))
    await until(lambda: sum(isinstance(event, events.Tick) for event in ticks) >= 3)
    stage.session.close()
    count = len(ticks)
    await asyncio.sleep(0.05)
    assert len(ticks) == count


async def test_save_writes_now(stage: Stage) -> None:
    assert await stage.session.save() == Path("saved")


# Audits


async def test_an_audit_takes_the_state_at_once_and_the_time_that_is_left(stage: Stage) -> None:
    stage.jobs.hold.clear()
    stage.do(
        effects.Audit(1, (4, 5)),
        effects.Compute(1, (0, 1)),
        effects.Apply(1, (), summary()),
    )
    stage.jobs.hold.set()
    await until(lambda: "audit 5" in stage.jobs.ran)
    ran = stage.jobs.ran
    assert ran.index("lend 1") < ran.index("apply 1")
    assert ran.index("slot 1") < ran.index("audit 4"), "its own work goes first"
    await until(lambda: events.Audited(1, (4, 5), False, ()) in stage.core.heard)
    assert stage.audit_cost.slots == 2


async def test_an_audit_of_a_step_that_is_over_takes_turns(stage: Stage) -> None:
    stage.core.applied = 1
    stage.jobs.hold.clear()
    stage.do(effects.Compute(2, (0, 1, 2, 3)), effects.Audit(1, (4, 5)))
    stage.jobs.hold.set()
    await until(lambda: "slot 3" in stage.jobs.ran)
    ran = stage.jobs.ran
    assert ran.index("audit 5") < ran.index("slot 3"), "no state is kept for long"


async def test_a_diagnosis_keeps_its_state_and_is_answered(stage: Stage) -> None:
    stage.do(effects.Diagnose(1, 3, PEER, None), effects.Apply(1, (), summary()))
    await until(lambda: "diagnose 3" in stage.jobs.ran)
    assert stage.jobs.ran.index("lend 1") < stage.jobs.ran.index("apply 1")
    await until(lambda: any(isinstance(e, events.Diagnosed) for e in stage.core.heard))
    stage.do(effects.LetGo(1))
    await until(lambda: "let go 1" in stage.jobs.ran)


async def test_a_diagnosis_outlives_its_session(stage: Stage) -> None:
    stage.jobs.hold.clear()
    stage.do(effects.Diagnose(1, 3, PEER, None))
    stage.session.close()
    stage.jobs.hold.set()
    await until(lambda: ui.Warn(text="It is in x.") in stage.shown)


async def test_the_node_is_told_to_rewind_after_all_other_effects(stage: Stage) -> None:
    rewind = effects.Rewind(0, bytes(32), (PEER,))
    stage.do(rewind, effects.Send(PEER, Want(bytes(16), 1, (), ())))
    assert not stage.jobs.rewinds
    assert stage.mesh.sent
    await until(lambda: stage.jobs.rewinds == [rewind])


async def test_nothing_is_audited_after_the_end(stage: Stage) -> None:
    stage.jobs.hold.clear()
    stage.do(effects.Audit(1, (4, 5)), effects.Audit(1, (2, 3)))
    stage.session.close()
    stage.jobs.hold.set()
    await asyncio.sleep(0.05)
    assert "audit 2" not in stage.jobs.ran
