"""Cores broken on purpose: the simulator must catch each of them, and in few runs.

Every mutant takes one rule out of the protocol. A mutant that survived all seeds would mean that
the chaos never needs that rule, so the chaos would have to get worse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from p2pnode.protocol import check, lead
from p2pnode.protocol import recover as recover_module
from p2pnode.protocol.alone import Alone
from p2pnode.protocol.board import Board
from p2pnode.protocol.check import Check
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.effects import Compute
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.join import CatchUp
from p2pnode.protocol.lead import Lead
from p2pnode.protocol.peers import Peers
from p2pnode.protocol.plans import Plans
from p2pnode.protocol.pledges import Pledges
from p2pnode.protocol.recount import Recount
from p2pnode.protocol.recover import Election, Repair
from p2pnode.protocol.reduce import Shelf
from p2pnode.protocol.verdict import Verdict
from p2pnode.rehearse import toy, work
from p2pnode.rehearse.faults import ALL, Kind
from p2pnode.rehearse.scenario import attempt, write
from tests.protocol import test_guard as guard
from tests.protocol import test_recovery as directed
from tests.protocol import test_sick as sick
from tests.rehearse import test_chaos as chaos

Patch = pytest.MonkeyPatch
SEEDS = range(0, 200)
"""A mutant must be caught within these; most are within the first ten."""


def lost_sets_are_not_given_away(patch: Patch) -> None:
    plan = Lead._plan

    def mutant(self: Lead, step: int, *rest: Any) -> Any:
        old = self._board.plans.get(step)
        return None if old is not None else plan(self, step, *rest)

    patch.setattr(Lead, "_plan", mutant)


def dead_peers_stay_in_the_last_roster(patch: Patch) -> None:
    patch.setattr(Lead, "_closing", lambda *_: True)


def nobody_follows_a_lost_leader(patch: Patch) -> None:
    patch.setattr(Election, "settle", lambda self: None)


def new_leader_keeps_the_old_term(patch: Patch) -> None:
    patch.setattr(recover_module, "next_term", lambda term, rank, boot: max(term, 1))


def two_leaders_never_step_down(patch: Patch) -> None:
    heard_of = Election.heard_of

    def mutant(self: Election, term: int, leader: bytes | None) -> None:
        if not self._board.leading:
            heard_of(self, term, leader)

    patch.setattr(Election, "heard_of", mutant)


def nothing_is_asked_for_again(patch: Patch) -> None:
    patch.setattr(Repair, "settle", lambda self: None)


def plans_are_told_once(patch: Patch) -> None:
    patch.setattr(Plans, "repair", lambda *_: None)


def commit_does_not_wait_for_hashes(patch: Patch) -> None:
    patch.setattr(Verdict, "committed", lambda self: True)


def sums_lack_the_last_set(patch: Patch) -> None:
    missing = Shelf.missing_parts

    def mutant(self: Shelf, plan: Any, index: int) -> Any:
        lacking = missing(self, plan, index)
        return lacking if len(lacking) > 1 or len(plan.work) == 1 else []

    reduce = Shelf.reduce

    def skipping(self: Shelf, plan: Any) -> None:
        if plan is not None:
            held = {slots for slots, _ in self.parts.get(plan.step, {})}
            work = tuple(item for item in plan.work if item.slots in held)
            plan = structs.replace(plan, work=work) if work else None
        reduce(self, plan)

    patch.setattr(Shelf, "missing_parts", mutant)
    patch.setattr(Shelf, "reduce", skipping)


def kept_sums_are_promised_but_gone(patch: Patch) -> None:
    changed = Shelf.state_changed

    def mutant(self: Shelf) -> None:
        changed(self)
        applied = self._board.applied
        self.sums = {step: sums for step, sums in self.sums.items() if step > applied}
        self.kept_from = 1

    patch.setattr(Shelf, "state_changed", mutant)


def joiner_gets_no_moments(patch: Patch) -> None:
    freeze = work.Work._freeze

    def mutant(self: work.Work, task: Any) -> Any:
        state, none = self.state, (0,) * toy.PARAMETERS
        self.state = dataclasses.replace(state, first=none, second=none)
        event = freeze(self, task)
        self.state = state
        return event

    patch.setattr(work.Work, "_freeze", mutant)


def nobody_holds_a_state_still(patch: Patch) -> None:
    patch.setattr(CatchUp, "freeze", lambda self: None)


def absent_probe_is_taken(patch: Patch) -> None:
    weigh = Guard._weigh

    def mutant(self: Guard, pledge: Any) -> None:
        weigh(self, structs.replace(pledge, probe=self._board.setup.probe))

    patch.setattr(Guard, "_weigh", mutant)


def claims_are_believed(patch: Patch) -> None:
    def mutant(self: Guard, peer: bytes, claim: Any) -> None:
        if claim.step == self._board.applied + 1:
            self._confirm(claim.step, claim.slot, "said so")

    patch.setattr(Guard, "claimed", mutant)


def nothing_is_relayed(patch: Patch) -> None:
    patch.setattr(Peers, "route", lambda self, peer, now: (self._table[peer].linked, None))


def silence_is_not_noticed(patch: Patch) -> None:
    patch.setattr(Board, "good", lambda self, peer: peer == self.me or self.peers[peer].heard > 0)


def everybody_is_waited_for_for_ever(patch: Patch) -> None:
    patch.setattr(lead, "HOLD_AFTER", 0)
    patch.setattr(lead, "HOLD_PATIENCE", float("inf"))


def nobody_adds_again(patch: Patch) -> None:
    def mutant(self: Recount, step: int, *_: Any) -> None:
        self._shelf.forget_sums(step)

    patch.setattr(Recount, "refused", mutant)


def the_sender_of_wrong_sums_is_not_named(patch: Patch) -> None:
    patch.setattr(Recount, "applied", lambda *_: None)


def transfers_under_way_are_not_seen(patch: Patch) -> None:
    heard = Peers.heard
    patch.setattr(Peers, "heard", lambda self, peer, now, via, _: heard(self, peer, now, via, 0))


def bytes_are_not_compared_with_their_pledge(patch: Patch) -> None:
    reduce = work.Work._reduce

    def mutant(self: work.Work, task: Any) -> Any:
        return reduce(self, dataclasses.replace(task, digests=((),) * len(task.parts)))

    patch.setattr(work.Work, "_reduce", mutant)


def two_pledges_are_no_lie(patch: Patch) -> None:
    patch.setattr(Guard, "_lied", lambda *_: None)


def nobody_says_which_pledges_it_has(patch: Patch) -> None:
    patch.setattr(Pledges, "seen", lambda *_: ())


def sums_are_not_checked(patch: Patch) -> None:
    def mutant(self: Check, step: int, sums: Any) -> None:
        self.passed = step

    patch.setattr(Check, "applied", mutant)


def the_nonce_is_known_beforehand(patch: Patch) -> None:
    """Then the check has coefficients that the forger has reckoned with."""
    patch.setattr(toy, "weigh", lambda values, nonce: toy.checksum(values))


def a_failed_check_changes_nothing(patch: Patch) -> None:
    def mutant(self: StepCore) -> None:
        self._check.passed = self._board.applied

    patch.setattr(StepCore, "_roll_back", mutant)


def who_withholds_is_waited_for(patch: Patch) -> None:
    patch.setattr(check, "PATIENCE", float("inf"))


def told_checksums_are_not_compared(patch: Patch) -> None:
    patch.setattr(Recount, "weighed", lambda *_: None)


def sets_of_the_lost_stay_unchecked(patch: Patch) -> None:
    ask = Check._ask

    def mutant(self: Check, opened: Any, slots: Any) -> None:
        before = len(self._board.out)
        ask(self, opened, slots)
        self._board.out[before:] = [
            effect for effect in self._board.out[before:] if not isinstance(effect, Compute)
        ]

    patch.setattr(Check, "_ask", mutant)


def denied_sums_are_asked_for_again(patch: Patch) -> None:
    patch.setattr(Alone, "begin", lambda self, step: self._shelf.forget_sums(step))


def slow_transfer() -> None:
    directed.test_a_slow_but_moving_transfer_is_not_asked_for_again(3)


MUTANTS: list[Callable[[Patch], None]] = [
    lost_sets_are_not_given_away,
    nobody_follows_a_lost_leader,
    nothing_is_asked_for_again,
    plans_are_told_once,
    commit_does_not_wait_for_hashes,
    sums_lack_the_last_set,
    kept_sums_are_promised_but_gone,
    joiner_gets_no_moments,
    claims_are_believed,
    nothing_is_relayed,
    silence_is_not_noticed,
    everybody_is_waited_for_for_ever,
    nobody_adds_again,
    the_sender_of_wrong_sums_is_not_named,
]

# Without these rules a run still ends with the right hash, by working alone; only slower.
DIRECTED: list[tuple[Callable[[Patch], None], Callable[[], None]]] = [
    (dead_peers_stay_in_the_last_roster, directed.test_who_dies_on_the_last_step_is_not_waited_for),
    (new_leader_keeps_the_old_term, directed.test_two_leaders_of_one_round_the_earlier_wins),
    (two_leaders_never_step_down, directed.test_partition_goes_on_on_both_sides_and_heals),
    (
        absent_probe_is_taken,
        lambda: sick.test_work_without_a_probe_is_refused_and_its_sender_gets_no_more(1),
    ),
    (
        bytes_are_not_compared_with_their_pledge,
        lambda: sick.test_a_contribution_of_other_bytes_than_pledged_names_its_worker(3, 0),
    ),
    (
        two_pledges_are_no_lie,
        guard.test_two_pledges_for_one_set_name_their_worker_and_are_passed_on,
    ),
    (
        nobody_says_which_pledges_it_has,
        lambda: sick.test_a_worker_with_two_faces_is_named_and_no_owner(3, 2),
    ),
    (sums_are_not_checked, lambda: sick.test_an_owner_that_forges_the_checksum_is_named(3, 0)),
    (
        the_nonce_is_known_beforehand,
        lambda: sick.test_an_owner_that_forges_the_checksum_is_named(3, 0),
    ),
    (
        a_failed_check_changes_nothing,
        lambda: sick.test_an_owner_that_forges_the_checksum_is_named(3, 0),
    ),
    (
        who_withholds_is_waited_for,
        lambda: sick.test_a_worker_that_withholds_its_checksum_is_named(3, 0),
    ),
    (
        told_checksums_are_not_compared,
        lambda: sick.test_a_worker_that_lies_in_the_check_is_named(3, 0),
    ),
    (
        sets_of_the_lost_stay_unchecked,
        sick.test_a_worker_lost_before_the_check_holds_nobody_up,
    ),
    (denied_sums_are_asked_for_again, chaos.forged_for_one_who_cannot_check),
    (transfers_under_way_are_not_seen, slow_transfer),
    (nobody_holds_a_state_still, directed.test_a_joiner_takes_a_state_in_parts_and_then_works),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_catches(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in SEEDS:
        for kinds in (ALL, (Kind.WRONG,), (Kind.FLAP, Kind.MISSING)):
            if isinstance(attempt(write(seed, kinds=kinds)), str):
                return
    pytest.fail(f"{mutant.__name__} survived {len(SEEDS)} seeds")


@pytest.mark.parametrize(
    ("mutant", "run"), DIRECTED, ids=lambda item: item.__name__.removeprefix("test_")
)
def test_the_directed_run_catches(
    mutant: Callable[[Patch], None], run: Callable[[], None], monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        run()
