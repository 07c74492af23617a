"""What must come out of a run, whatever happened in it.

May import: protocol, machine, toy, world.

No sound node ever commits a state other than that of the undisturbed one-node run; every sound node
that lives at the end has finished with the right hash of one and the same last step. Where the
protocol promises less, the oracle excuses the node and says so: `check` returns how often.
"""

from __future__ import annotations

from collections import Counter

from p2pnode.protocol.effects import Kind, Report
from p2pnode.rehearse import toy
from p2pnode.rehearse.machine import Defects, Machine
from p2pnode.rehearse.world import World

UNJUDGED = "a machine that is wrong was not judged"
UNDECIDED = "a sound machine stopped because of two that differed nobody could tell which is right"
TWO_ENDS = "the nodes ended at two steps: the stop order did not reach all in time"


class OracleError(AssertionError):
    """A run broke the promise; the message says how."""


def over(world: World) -> bool:
    """Every machine that runs has finished or failed."""
    return all(
        machine.finished is not None or machine.failed is not None
        for machine in world.machines.values()
        if machine.up
    )


def check(world: World, *, disturbed: bool = False) -> Counter[str]:
    """Raise OracleError unless the world, which is over, kept the promise.

    `disturbed`: something may have kept a stop order, or wrong work, from the others.
    Returns how often each excuse was needed.
    """
    excuses: Counter[str] = Counter()
    expected = toy.undisturbed(world.slots, world.steps)
    for step, hashes in world.commits.items():
        if hashes != {expected[step]}:
            raise OracleError(f"a state of step {step} was committed that is not the right one")
    ends = set()
    for machine in world.machines.values():
        if not machine.up:
            continue
        if machine.defects.wrong_state:
            excuses[UNJUDGED] += 1
        elif machine.failed is not None:
            _may_fail(world, machine, excuses)
        else:
            if machine.cheated and not disturbed and not _was_refused(world, machine):
                raise OracleError(f"{machine.name} ({machine.defects}) was not named")
            ends.add(_end(world, machine, expected))
    allowed = {world.steps} if world.stopped is None else {world.steps, world.stopped.last_step}
    if world.not_finite is None and not ends <= allowed:
        raise OracleError(f"a node ended at a step that nobody ordered: {sorted(ends)}")
    if len(ends) > 1:
        if not disturbed:
            raise OracleError(f"the nodes ended at different steps: {sorted(ends)}")
        excuses[TWO_ENDS] += 1
    return excuses


def _may_fail(world: World, machine: Machine, excuses: Counter[str]) -> None:
    """A sound machine must not fail, but where nobody could tell."""
    failed = machine.failed
    if failed is None or machine.defects != Defects():
        return
    wrong = any(other.defects.wrong_state for other in world.machines.values())
    if not wrong or "no majority" not in failed.text:
        raise OracleError(f"{machine.name} is sound, but failed: {failed.text}")
    excuses[UNDECIDED] += 1


def _was_refused(world: World, machine: Machine) -> bool:
    return any(
        isinstance(report, Report) and report.kind is Kind.REFUSED and report.peer == machine.me
        for _, report in world.reports
    )


def _end(world: World, machine: Machine, expected: tuple[bytes, ...]) -> int:
    """The step that a sound machine ended at, with the right hash."""
    if machine.finished is None:
        raise OracleError(
            f"{machine.name} did not finish: it is at step {machine.core.applied} of "
            f"{machine.core.last_step} after {world.now:.0f} s"
        )
    if machine.finished.state_hash != expected[machine.finished.step]:
        raise OracleError(f"{machine.name} finished with another hash")
    return machine.finished.step
