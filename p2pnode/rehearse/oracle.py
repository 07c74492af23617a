"""What must come out of a run, whatever happened in it.

May import: protocol, defects, machine, toy, world.

No sound node ever commits a state other than that of the undisturbed one-node run of its chain;
every sound node that lives at the end has finished with the right hash of the last step of one
chain, the one that beats the others. Where the protocol promises less, the oracle excuses the node
and says so: `check` returns how often.
"""

from __future__ import annotations

from collections import Counter

from p2pnode.protocol.effects import Kind, Report
from p2pnode.rehearse import toy
from p2pnode.rehearse.defects import Defects
from p2pnode.rehearse.machine import Machine
from p2pnode.rehearse.world import World

UNJUDGED = "a machine that is wrong was not judged"
UNDECIDED = "a sound machine stopped because of two that differed nobody could tell which is right"
OVERRULED = "a leader read other text and could not know it, and its text is the run's"
TWO_ENDS = "the nodes ended with two chains: a record did not reach all in time"

WRONG_ALONE = "a machine was wrong at a step that it made alone, and nobody could compare"
NOT_AUDITED = "slow machines left out audits, and wrong work was not found"


class OracleError(AssertionError):
    """A run broke the promise; the message says how."""


def over(world: World) -> bool:
    """Every machine that runs has finished or failed, and those that still serve hold one chain."""
    up = [machine for machine in world.machines.values() if machine.up]
    serving = {machine.chain.ids for machine in up if not machine.released and not machine.failed}
    return len(serving) <= 1 and all(
        machine.finished is not None or machine.failed is not None for machine in up
    )


def check(world: World, *, disturbed: bool = False) -> Counter[str]:
    """Raise OracleError unless the world, which is over, kept the promise.

    `disturbed`: something may have kept a record, or wrong work, from the others.
    Returns how often each excuse was needed.
    """
    excuses: Counter[str] = Counter()
    if any(m.defects.misreads_at and m.defects.denies and m.cheated for m in _leaders(world)):
        excuses[OVERRULED] += 1
        return excuses
    if world.wrong_alone and (world.wrong_commits or undetected(world)):
        excuses[WRONG_ALONE] += 1
        return excuses
    if undetected(world):
        if not any(m.missed + m.core.audits_missed for m in world.machines.values() if m.up):
            raise OracleError("wrong work was audited by everybody and found by nobody")
        excuses[NOT_AUDITED] += 1
        return excuses
    if world.wrong_commits:
        raise OracleError(world.wrong_commits[0])
    ends = set()
    for machine in world.machines.values():
        if not machine.up:
            continue
        if machine.defects.grave:
            excuses[UNJUDGED] += 1
        elif machine.failed is not None:
            _may_fail(world, machine, excuses)
        else:
            if machine.cheated and not disturbed and not _was_refused(world, machine):
                raise OracleError(f"{machine.name} ({machine.defects}) was not named")
            ends.add((machine.chain.ids, _end(world, machine)))
    if len(ends) > 1:
        if not disturbed or len({chain for chain, _ in ends}) < len(ends):
            raise OracleError(f"the nodes ended at steps {[step for _, step in ends]}")
        excuses[TWO_ENDS] += 1
    return excuses


def undetected(world: World) -> bool:
    """Whether wrong work that only an audit finds stayed in the run."""
    return any(
        machine.cheated and machine.defects.unseen and not _was_refused(world, machine)
        for machine in world.machines.values()
    )


def _leaders(world: World) -> list[Machine]:
    """Machines that have led."""
    led = {
        name
        for name, report in world.reports
        if isinstance(report, Report)
        and report.kind is Kind.LEADER
        and report.text.startswith("this node leads")
    }
    return [machine for machine in world.machines.values() if machine.name in led]


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


def _end(world: World, machine: Machine) -> int:
    """The step that a sound machine ended at, with the right hash."""
    if machine.finished is None:
        raise OracleError(
            f"{machine.name} did not finish: it is at step {machine.core.applied} of "
            f"{machine.core.last_step} after {world.now:.0f} s"
        )
    if world.not_finite is None and machine.finished.step != machine.chain.last_step:
        raise OracleError(f"{machine.name} ended at a step that nobody ordered")
    if any(other.beats(machine.chain, world.members) for other in machine.heard.values()):
        raise OracleError(f"{machine.name} ended with a chain that another one beats")
    if machine.finished.state_hash != toy.line(machine.chain.config)[machine.finished.step]:
        raise OracleError(f"{machine.name} finished with another hash")
    return machine.finished.step
