"""Reducing a failing run to the faults that matter."""

from __future__ import annotations

import pytest

from p2pnode.protocol.lead import Lead
from p2pnode.rehearse.faults import Fault, Kind
from p2pnode.rehearse.scenario import Script, attempt, write
from p2pnode.rehearse.shrink import shrink


def of(faults: int) -> Script:
    script = write(0, nodes=3, kinds=())
    return Script(**{**vars(script), "faults": tuple(Fault(Kind.DELAY, i) for i in range(faults))})


@pytest.mark.parametrize("guilty", [{0}, {6}, {2, 5}, {0, 3, 6}, set(range(7)), set()])
def test_what_is_left_fails_and_nothing_of_it_can_go(guilty: set[float]) -> None:
    tried = []

    def failing(script: Script) -> bool:
        tried.append(script)
        return guilty <= {fault.at for fault in script.faults}

    assert set(shrink(of(7), failing)) == guilty
    assert len(tried) < 60


def test_a_broken_protocol_is_reduced_to_the_crash_it_does_not_survive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Lead._plan
    monkeypatch.setattr(
        Lead,
        "_plan",
        lambda self, step, *rest: None if step in self._board.plans else plan(self, step, *rest),
    )
    for seed in range(100):
        script = write(seed, nodes=3)
        if len(script.faults) > 2 and isinstance(attempt(script), str):
            kept = shrink(script)
            assert len(kept) < len(script.faults)
            assert isinstance(attempt(script.only(kept)), str)
            return
    pytest.fail("the broken protocol was not noticed")
