"""The leader is lost at every point of a run: after each event it takes, with half of what it then
wanted to do done."""

from __future__ import annotations

import functools

import pytest

from p2pnode.rehearse.oracle import check, over
from p2pnode.rehearse.world import World


def world(dies_at: int = -1, back: float | None = None, wiped: bool = False) -> World:
    """Three nodes, four steps; the leader's machine may come back."""
    made = World(7, slots=3, steps=4)
    made.net.duplicates = 0.0
    nodes = [made.add(0.1) for _ in range(3)]
    leader = nodes[0]
    leader.dies_at = dies_at
    if back is not None:

        def watch() -> None:
            if leader.handled > dies_at:
                made.at(made.now + back, lambda: made.restart(leader, wiped))
            else:
                made.at(made.now + 0.05, watch)

        made.at(0.05, watch)
    made.start(nodes)
    made.run(300.0, lambda: all(node.up for node in nodes[1:]) and finished(made, back))
    return made


def finished(made: World, back: float | None) -> bool:
    leader = next(iter(made.machines.values()))
    return over(made) and (back is None or leader.up)


@functools.cache
def length() -> int:
    """Events that the leader takes in a run without a fault."""
    made = world()
    check(made)
    return next(iter(made.machines.values())).handled


@pytest.mark.parametrize(
    ("back", "wiped"),
    [(None, False), (0.3, False), (0.3, True), (12.0, True)],
    ids=["for good", "back at once", "back at once without disk", "back late without disk"],
)
def test_leader_lost_at_every_point(back: float | None, wiped: bool) -> None:
    assert length() > 60
    for number in range(length()):
        made = world(number, back, wiped)
        assert next(iter(made.machines.values())).handled > number, "it was lost"
        try:
            check(made)
        except AssertionError as error:
            pytest.fail(f"lost after event {number}: {error}")
