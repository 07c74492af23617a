"""State transfers that are cut short: nothing that has been verified is fetched again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2pnode.protocol import effects as ef
from p2pnode.protocol import fetch, join
from p2pnode.protocol.messages import BlobWant
from p2pnode.rehearse.machine import Machine
from tests.harness.calm import Recorder

PART = 4
"""Bytes of a part here, so that the toy's state has many."""


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, Machine]:
    """A newcomer that has some, not all, of the parts of a state."""
    for module in (fetch, join):
        monkeypatch.setattr(module, "PART_BYTES", PART)
    run = Recorder(3, steps=100, slot_time=0.4)
    run.world.net.bandwidth = 2_000.0
    run.at_step(12)
    joiner = run.join()
    run.when(lambda: len(missing(joiner)) > 8)
    everything = len(missing(joiner))
    run.when(lambda: len(missing(joiner)) < 2 * everything / 3)
    assert len(missing(joiner)) > everything / 3
    return run, joiner


def missing(machine: Machine) -> set[int]:
    fetcher = machine.core._catch_up._fetcher
    return set(fetcher._missing) if fetcher is not None else set()


def lose_links(run: Recorder, joiner: Machine) -> None:
    for node in run.nodes:
        run.world.net.flap(node, joiner, 12.0)


def start_again(run: Recorder, joiner: Machine) -> None:
    run.pass_time(0.5)  # what has come is on its disk
    run.world.crash(joiner)
    run.pass_time(3.0)
    run.world.restart(joiner)


@pytest.mark.parametrize("disturb", [lose_links, start_again])
def test_a_transfer_goes_on_where_it_was(
    disturb: Callable[[Recorder, Machine], None], transfer: tuple[Recorder, Machine]
) -> None:
    run, joiner = transfer
    open_parts = missing(joiner)
    asked = len(run.messages(BlobWant, joiner.name))
    disturb(run, joiner)
    run.when(lambda: bool(run.of(ef.Load, joiner.name)))
    again = {want.part for want in run.messages(BlobWant, joiner.name)[asked:]} - {-1}
    assert again <= open_parts
    assert again, "it did go on"
    run.finish()
    assert joiner.finished is not None


def test_without_its_disk_it_fetches_all_of_it(transfer: tuple[Recorder, Machine]) -> None:
    run, joiner = transfer
    open_parts = missing(joiner)
    asked = len(run.messages(BlobWant, joiner.name))
    run.world.crash(joiner)
    joiner.stored = []
    run.world.restart(joiner)
    run.when(lambda: bool(run.of(ef.Load, joiner.name)))
    again = {want.part for want in run.messages(BlobWant, joiner.name)[asked:]}
    assert again > open_parts


def test_a_donor_that_dies_costs_its_parts_only(transfer: tuple[Recorder, Machine]) -> None:
    run, joiner = transfer
    open_parts = missing(joiner)
    asked = len(run.messages(BlobWant, joiner.name))
    run.world.crash(run.nodes[2])
    run.when(lambda: bool(run.of(ef.Load, joiner.name)))
    again = [want.part for want in run.messages(BlobWant, joiner.name)[asked:]]
    assert set(again) <= open_parts
    run.finish()


def test_if_all_donors_die_a_newcomer_goes_on_alone_from_what_it_has(
    transfer: tuple[Recorder, Machine],
) -> None:
    run, joiner = transfer
    joiner.slot_time = 0.01
    for node in run.nodes:
        run.world.crash(node)
    run.finish()
    assert joiner.finished is not None
    assert not run.of(ef.Load, joiner.name)
