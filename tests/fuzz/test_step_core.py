"""Sequences of changed messages of one member into the step cores of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pnode.protocol import effects as ef
from tests.fuzz.effort import effort
from tests.fuzz.hostile import NAMES, HostileRun, right

QUICK = effort(6, shrink=False)

SLANDER = ("Accuse", "Confess", "Status", "Plan")
"""With these an approved member can stop a run: see PROTOCOL, Wrong machines. It cannot make it
come to another result."""


def storm(data: st.DataObject, names: tuple[str, ...]) -> HostileRun:
    """A run with changed messages of these kinds all through it."""
    run = HostileRun(data.draw(st.integers(0, 2**32)), data.draw)
    for _ in range(data.draw(st.integers(1, 12))):
        if run.run(data.draw(st.sampled_from([0.0, 0.05, 0.5, 2.0]))):
            break
        run.strike(data.draw(st.sampled_from(names)))
    return run


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SLANDER])
@QUICK
@given(data=st.data())
def test_what_is_no_slander_changes_nothing(name: str, data: st.DataObject) -> None:
    """Every honest machine finishes with the hash of the undisturbed run."""
    run = storm(data, (name,))
    assert run.run(600.0), [run.world.summary(machine) for machine in run.machines]
    right(run)
    for machine in run.honest:
        assert machine.failed is None, machine.failed
        assert machine.finished is not None


@QUICK
@given(data=st.data())
def test_nothing_leads_to_another_result(data: st.DataObject) -> None:
    """Whatever a member says: no exception, no wrong state; after it was removed and the others
    were started anew from what they had saved, they finish with the undisturbed hash."""
    run = storm(data, NAMES)
    run.run(60.0)
    right(run)
    world = run.world
    world.crash(run.hostile)
    world.members = tuple(machine.me for machine in run.honest)
    for machine in run.honest:
        if machine.finished is None or machine.failed is not None:
            world.restart(machine)
    assert run.run(600.0), [world.summary(machine) for machine in run.machines]
    right(run)


@QUICK
@given(data=st.data())
def test_only_the_sender_is_dropped(data: st.DataObject) -> None:
    run = storm(data, tuple(name for name in NAMES if name not in SLANDER))
    run.run(30.0)
    dropped = {effect.peer for _, effect in run.world.reports if isinstance(effect, ef.DropPeer)}
    assert dropped <= {run.hostile.me}
