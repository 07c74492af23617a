"""Sums on disk: memory is bounded, whoever fell behind is served all the same."""

from __future__ import annotations

from p2pnode.protocol import effects as ef
from p2pnode.rehearse import toy
from p2pnode.rehearse.machine import SMALL, Machine
from tests.harness.calm import Recorder

IN_MEMORY = SMALL.kept_bytes // (4 * toy.PARAMETERS)


def in_memory(machine: Machine) -> int:
    """Steps of which a sum is not among those that the (simulated) disk gave back."""
    sums = machine.core._shelf.sums
    return sum(
        any(id(held.payload) not in machine.on_disk for held in step.values())
        for step in sums.values()
    )


def test_older_sums_go_to_disk_and_are_served_from_there() -> None:
    run = Recorder(3, steps=30, slot_time=1.0)
    run.at_step(5)
    behind = run.nodes[2]
    behind.slot_time = 1000.0  # alone it gets nowhere
    for node in run.nodes[:2]:
        run.world.net.link_down(node, behind)
    run.when(lambda: run.nodes[0].core.committed >= behind.core.committed + 4)
    assert all(in_memory(node) <= IN_MEMORY + 2 for node in run.nodes)
    wanted = behind.core.committed + 1
    assert wanted in run.nodes[0].core._spooler._away
    assert run.nodes[0].core._shelf.kept_from <= wanted
    behind.slot_time = 1.0
    run.world.net.connect(behind, 0.1)
    run.finish()
    assert not run.of(ef.Load, "n2"), "it was served sums, no state"


def test_without_a_disk_fewer_steps_are_kept_and_the_run_goes_on() -> None:
    run = Recorder(2, steps=20)
    for node in run.nodes:
        node.full_until = 1e9
    run.at_step(15)
    for node in run.nodes:
        core = node.core
        assert len(core._shelf.sums) <= IN_MEMORY + 2
        assert core._shelf.kept_from > core.applied - SMALL.kept_steps + 1
        assert core._shelf.kept_from <= core.applied
    (said,) = run.reports(ef.Kind.CATCH_UP, "n0")
    assert "fewer past steps are kept: the disk is full" in said
    run.finish()
