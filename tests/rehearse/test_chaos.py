"""Seeded chaos: whatever happens, every node that lives ends with the undisturbed hash."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from p2pnode.rehearse import network, oracle
from p2pnode.rehearse.faults import ALL, Kind
from p2pnode.rehearse.scenario import ORDERS, attempt, write

RUNS = 640
CHUNK = 40


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_every_survivor_ends_with_the_undisturbed_hash(first: int) -> None:
    for seed in range(first, first + CHUNK):
        script = write(seed)
        result = attempt(script)
        if isinstance(result, str):
            story = "\n".join(map(str, script.faults))
            pytest.fail(f"{result}\n{story}\npython -m p2pnode rehearse --seed {seed}")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.value)
def test_every_kind_of_fault_alone(kind: Kind) -> None:
    happened = 0
    for seed in range(12):
        script = write(seed, nodes=3, kinds=(kind,))
        orders = {*ORDERS} if kind in ORDERS else set()  # another member may give one too
        assert {fault.kind for fault in script.faults} <= {kind, Kind.PARTITION, *orders}
        result = attempt(script)
        assert not isinstance(result, str), f"{result}\n{script.faults}"
        happened += result.happened[kind.value]
    assert happened > 0


def test_a_seed_replays_to_the_same_events() -> None:
    assert attempt(write(17)) == attempt(write(17))


def test_leaving_a_fault_out_leaves_the_others_as_they_are() -> None:
    script = next(script for seed in range(100) if len((script := write(seed)).faults) > 3)
    assert script.only([2, 0]).faults == (script.faults[0], script.faults[2])
    for number in range(len(script.faults)):
        assert not isinstance(attempt(script.only([number])), str)


def test_a_recount_goes_on_when_the_cut_into_shards_changes() -> None:
    """The liar is put out, and its shard, while another still recounts the last step: what it
    needs of the new cut once did not fit beside what it had of the old."""
    assert not isinstance(attempt(write(5783).only([0])), str)


def forged_for_one_who_cannot_check() -> None:
    """An owner forges the sums of a step for those who took no part in it."""
    assert not isinstance(attempt(write(3199).only([0, 1, 3, 4])), str)


def applied_wrongly_by_one_who_cannot_check() -> None:
    """The others deny a state that came of right sums: this machine applied them wrongly."""
    assert not isinstance(attempt(write(1034).only([0])), str)


def applied_wrongly_and_denied_by_one_who_cannot_check() -> None:
    """As before, but its own recomputation finds nothing: the majority decides."""
    assert not isinstance(attempt(write(2983).only([0])), str)


def test_who_caught_up_since_hears_what_an_owner_added() -> None:
    """A worker contradicts its evidence, and the owners add that. One who makes the step right much
    later, and hurries on, finds another sum than theirs, and must still look at their pledges."""
    assert not isinstance(attempt(write(6300).only([0, 1, 2, 4])), str)


def test_a_set_of_two_workers_is_computed_again() -> None:
    """The same worker is lost when one of its shards has been added: the rest of its set comes from
    another, and the whole contradicts every pledge."""
    assert not isinstance(attempt(write(6300).only([0, 1, 2, 3, 4])), str)


@pytest.mark.parametrize(
    "run",
    [
        forged_for_one_who_cannot_check,
        applied_wrongly_by_one_who_cannot_check,
        applied_wrongly_and_denied_by_one_who_cannot_check,
    ],
)
def test_a_laggard_whose_state_is_denied_gets_the_right_one(run: Callable[[], None]) -> None:
    run()


def test_an_audit_convicts_nobody_by_a_pledge_that_came_later() -> None:
    """A slot is pledged by one with other text, doubted, and given to another meanwhile."""
    assert not isinstance(attempt(write(3425).only([0])), str)


def test_who_stands_still_passes_nothing_on() -> None:
    """Two without a link talked through a frozen machine, took it for alive, and accused it."""
    assert not isinstance(attempt(write(6293).only([0, 1, 5])), str)


@pytest.mark.parametrize("seed", [20202, 558, 1775], ids=["apply", "gradient", "text"])
def test_who_is_wrong_alone_is_excused_and_counted(seed: int) -> None:
    """The leader makes a step wrongly that it makes alone: others have nothing to compare with."""
    result = attempt(write(seed).only([0]))
    assert not isinstance(result, str)
    assert result.excuses == {oracle.WRONG_ALONE: 1}


def test_a_stalled_link_that_nobody_breaks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that real machines could not end: heartbeats went to and fro, and nothing else."""
    monkeypatch.setattr(network, "LIMITS", dataclasses.replace(network.LIMITS, stall=1e9))
    results = [attempt(write(seed, nodes=3, kinds=(Kind.STALL,))) for seed in range(20)]
    assert any("did not finish" in result for result in results if isinstance(result, str))
