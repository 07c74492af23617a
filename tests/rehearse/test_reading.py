"""Machines whose text differs, or does not come."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from p2pnode.protocol import effects as ef
from p2pnode.protocol.confront import Confront
from p2pnode.protocol.guard import Guard
from p2pnode.rehearse import oracle, work
from p2pnode.rehearse.defects import Defects
from p2pnode.rehearse.faults import Fault, Kind
from p2pnode.rehearse.scenario import Outcome, Script, attempt, write

Patch = pytest.MonkeyPatch
NODES, SLOTS = 3, 6


def script(*faults: Fault) -> Script:
    """Three machines that nothing else happens to; nobody audits."""
    quiet = dataclasses.replace(write(1, nodes=NODES, kinds=()), slots=SLOTS, steps=8, audit=0.0)
    return dataclasses.replace(quiet, slot_times=(0.1,) * NODES, faults=faults)


def misread(sick: int, step: int, *, denies: bool = False) -> Outcome | str:
    """Slot step % SLOTS of the step is other text at one machine: its own work, or another's."""
    wrong = Defects(misreads_at=step, denies=denies)
    return attempt(script(Fault(Kind.TEXT, 0.0, (sick,), wrong=wrong)))


def good(outcome: Outcome | str) -> bool:
    return isinstance(outcome, Outcome) and set(outcome.excuses) <= {oracle.UNJUDGED}


@pytest.mark.parametrize("denies", [False, True])
@pytest.mark.parametrize("step", range(1, SLOTS + 1))
@pytest.mark.parametrize("sick", [1, 2])
def test_other_text_never_counts(sick: int, step: int, denies: bool) -> None:
    outcome = misread(sick, step, denies=denies)
    assert good(outcome), outcome


@pytest.mark.parametrize("step", range(1, SLOTS + 1))
def test_a_leader_that_finds_its_own_text_damaged_goes(step: int) -> None:
    outcome = misread(0, step)
    assert good(outcome), outcome
    denied = misread(0, step, denies=True)
    assert isinstance(denied, Outcome), denied
    assert denied.excuses == {oracle.OVERRULED: 1}


def texts_are_not_compared(patch: Patch) -> None:
    reduce = work.Work._reduce

    def mutant(self: work.Work, task: ef.Reduce) -> Any:
        return reduce(self, dataclasses.replace(task, texts=((),) * len(task.parts)))

    patch.setattr(work.Work, "_reduce", mutant)


def the_leader_believes_whoever_is_first(patch: Patch) -> None:
    patch.setattr(Guard, "_other_text", lambda *_: True)


def a_leader_that_is_doubted_does_not_look(patch: Patch) -> None:
    patch.setattr(Confront, "accused", lambda *_: None)


@pytest.mark.parametrize(
    ("mutant", "sick", "denies"),
    [
        (texts_are_not_compared, 1, True),
        (the_leader_believes_whoever_is_first, 1, True),
        (a_leader_that_is_doubted_does_not_look, 0, False),
    ],
)
def test_without_the_rule_it_fails(
    mutant: Callable[[Patch], None], sick: int, denies: bool, monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    results = [misread(sick, step, denies=denies) for step in range(1, SLOTS + 1)]
    assert not all(good(result) for result in results)


def lacking(*nodes: int, lasts: float) -> Outcome | str:
    return attempt(script(*(Fault(Kind.LACK, 0.9, (node,), lasts) for node in nodes)))


def test_others_do_the_work_of_who_lacks_its_text() -> None:
    undisturbed = attempt(script())
    outcome = lacking(1, lasts=400.0)
    assert isinstance(outcome, Outcome), outcome
    assert isinstance(undisturbed, Outcome)
    last = outcome.took - 403.0  # it is judged when the fault is over
    assert last < undisturbed.took


def test_if_nobody_has_it_the_run_waits() -> None:
    outcome = lacking(0, 1, 2, lasts=90.0)
    assert isinstance(outcome, Outcome), outcome
    assert outcome.took > 90.0
    assert outcome.steps == 8
