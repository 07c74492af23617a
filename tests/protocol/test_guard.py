"""One core fed by hand: what it refuses from others, and what it does then."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec import structs

from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol import messages as m
from p2pnode.protocol.evidence import summarise
from p2pnode.protocol.identity import short_id
from p2pnode.protocol.plan import TERM_LEAP, next_term
from p2pnode.rehearse import toy
from p2pnode.rehearse.toy import sign
from tests.protocol.core_bench import (
    ME,
    PEER,
    RUN,
    SET,
    SHARD,
    STATE,
    STRANGER,
    TERM,
    THIRD,
    Bench,
    computed,
    contribution,
    plan,
    pledge,
)


def test_the_bench_leads_a_roster_of_three() -> None:
    plan = Bench().plans()[0]
    assert plan.roster == (ME, PEER, THIRD)
    assert [work.slots for work in plan.work] == [(0, 1), SET, (4, 5)]
    assert plan.owners == (0, 1, 2)


@pytest.mark.parametrize(("probe", "what"), [(b"", "did not run"), (b"x" * 32, "failed")])
def test_no_good_probe_no_work(probe: bytes, what: str) -> None:
    bench = Bench()
    bench.works(PEER, SET, probe=probe)
    assert what in bench.refusals()
    newest = bench.plans()[-1]
    assert PEER in newest.excluded
    assert PEER not in newest.roster
    assert sorted(s for work in newest.work for s in work.slots) == list(range(6))
    before = len(bench.all)
    bench.works(PEER, SET)
    assert not bench.kinds(ef.Reduce, bench.all[before:])


def test_a_second_contribution_with_other_bytes_is_settled_by_recomputation() -> None:
    bench = Bench()
    bench.works(PEER, SET)
    first, second = pledge(THIRD, SET).evidence
    lie = structs.replace(first, digest=b"l" * 32)
    effects = bench.works(THIRD, SET, evidence=(lie, second))
    assert "differ about slot 2" in bench.refusals()
    assert bench.kinds(ef.Compute, effects) == [ef.Compute(1, (2,), reference=True)]
    bench.feed(computed((0, 1)))
    bench.works(THIRD, (4, 5))
    assert not bench.kinds(ef.Reduce), "nothing is added while a slot is disputed"
    bench.feed(computed((2,), reference=True))
    assert THIRD in bench.plans()[-1].excluded
    assert PEER not in bench.plans()[-1].excluded


def test_own_work_that_the_reference_contradicts_stops_this_node() -> None:
    bench = Bench()
    honest = toy.gradient(STATE, 1, 0)[0]
    wrong = structs.replace(honest, digest=b"w" * 32)
    bench.feed(computed((0, 1), evidence=(wrong, toy.gradient(STATE, 1, 1)[0])))
    bench.works(PEER, (0,))
    effects = bench.feed(computed((0,), reference=True))
    assert bench.kinds(ef.Diagnose, effects) == [ef.Diagnose(1, 0, ME, wrong)]
    assert not bench.kinds(ef.Failed), "it first finds out how"
    bench.feed(ev.Tick(), later=1.1)
    assert bench.statuses()[-1].leaving, "meanwhile it takes no part"
    effects = bench.feed(ev.Diagnosed(1, 0, ME, "layers.0.q", "product (int8)", "saved"))
    confessions = [e.message for e in bench.kinds(ef.Send, effects)]
    assert m.Confess(RUN, 1, 0, "layers.0.q", "product (int8)") in confessions
    (failed,) = bench.kinds(ef.Failed, effects)
    assert failed.fault is ef.Fault.UNSOUND
    assert "slot 0 of step 1" in failed.text
    assert "layers.0.q, product (int8)" in failed.text


def test_own_failed_probe_stops_this_node_before_anything_is_sent() -> None:
    bench = Bench()
    effects = bench.feed(computed((0, 1), probe=b"x" * 32))
    assert bench.kinds(ef.Failed, effects)[0].fault is ef.Fault.UNSOUND
    statuses = [e.message for e in bench.kinds(ef.Send, effects)]
    assert all(isinstance(message, m.Status) and message.leaving for message in statuses)
    assert bench.feed(ev.Tick()) == []


def test_work_from_another_state_is_not_added() -> None:
    bench = Bench()
    bench.works(PEER, SET, base=b"o" * 32)
    bench.feed(computed((0, 1)))
    bench.works(THIRD, (4, 5))
    assert not bench.kinds(ef.Reduce)
    bench.works(PEER, SET)
    assert bench.kinds(ef.Reduce)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"slots": (3, 2)}, "do not exist"),
        ({"slots": (2, 6)}, "do not exist"),
        ({"shard": m.Shard(3, 3)}, "does not exist"),
        ({"shard": m.Shard(0, 1)}, "bytes"),
    ],
)
def test_impossible_contributions_cost_the_link(changes: dict[str, Any], what: str) -> None:
    bench = Bench()
    message, payload = contribution(SET, SHARD)
    effects = bench.tell(PEER, structs.replace(message, **changes), payload)
    (drop,) = bench.kinds(ef.DropPeer, effects)
    assert drop.peer == PEER
    assert what in drop.reason


def signed_for(worker: bytes, signer: bytes) -> m.Pledge:
    message = pledge(worker, SET)
    return structs.replace(message, signature=sign(signer, m.pledge_digest(message)))


def replaced(**changes: Any) -> m.Pledge:
    message = structs.replace(pledge(PEER, SET), **changes)
    return structs.replace(message, signature=sign(PEER, m.pledge_digest(message)))


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (pledge(PEER, SET, evidence=pledge(PEER, (1, 2)).evidence), "evidence for other slots"),
        (replaced(slots=(3, 2), evidence=pledge(PEER, (3, 2)).evidence), "do not exist"),
        (replaced(slots=(2, 6), evidence=pledge(PEER, (2, 6)).evidence), "do not exist"),
        (
            pledge(
                PEER,
                (2,),
                evidence=(structs.replace(pledge(PEER, (2,)).evidence[0], max_abs=(1,)),),
            ),
            "another model",
        ),
        (signed_for(PEER, THIRD), "signature"),
        (signed_for(THIRD, PEER), "signature"),
    ],
)
def test_impossible_pledges_cost_the_link(message: m.Pledge, what: str) -> None:
    bench = Bench()
    (drop,) = bench.kinds(ef.DropPeer, bench.tell(PEER, message))
    assert drop.peer == PEER
    assert what in drop.reason


def test_a_contribution_counts_only_with_its_pledge_in_any_order() -> None:
    bench = Bench()
    bench.feed(computed((0, 1)))
    bench.works(THIRD, (4, 5))
    bench.tell(PEER, *contribution(SET, SHARD))
    assert not bench.kinds(ef.Reduce)
    bench.tell(THIRD, pledge(PEER, SET))  # whoever passes it on
    (reduce,) = bench.kinds(ef.Reduce)
    first, last = SHARD.pieces
    assert reduce.digests == ((), *(pledge(PEER, s).pieces[first:last] for s in (SET, (4, 5))))


def test_a_pledge_that_was_lost_is_asked_for_without_the_bytes() -> None:
    bench = Bench()
    bench.feed(computed((0, 1)))
    bench.works(THIRD, (4, 5))
    bench.tell(PEER, *contribution(SET, SHARD))
    bench.status(PEER, sets=(SET,))
    bench.status(THIRD, sets=((4, 5),))
    bench.feed(ev.Tick(), later=2.5)
    wants = [(e.peer, e.message) for e in bench.kinds(ef.Send) if isinstance(e.message, m.Want)]
    assert (PEER, m.Want(RUN, 1, SET, ())) in wants


def test_a_worker_answers_with_its_pledge_first() -> None:
    bench = Bench()
    bench.feed(computed((0, 1)))
    effects = bench.tell(PEER, m.Want(RUN, 1, (0, 1), (m.Shard(1, 3),)))
    sent = [type(e.message) for e in bench.kinds(ef.Send, effects) if e.peer == PEER]
    assert sent == [m.Pledge, m.Contribution]


def test_the_pledge_goes_to_everybody_before_the_contributions() -> None:
    bench = Bench()
    effects = bench.feed(computed((0, 1)))
    sent = [e for e in bench.kinds(ef.Send, effects) if not isinstance(e.message, m.Status)]
    told = [(type(e.message), e.peer, e.priority) for e in sent]
    for peer in (PEER, THIRD):
        first = told.index((m.Pledge, peer, m.Priority.SHARD))
        assert first < told.index((m.Contribution, peer, m.Priority.SHARD))
    (mine,) = {e.message for e in sent if isinstance(e.message, m.Pledge)}
    assert mine == pledge(ME, (0, 1))


def test_two_pledges_for_one_set_name_their_worker_and_are_passed_on() -> None:
    bench = Bench()
    one, other = pledge(PEER, SET), pledge(PEER, SET, pieces=(b"p" * 32,) * m.PIECES)
    bench.tell(PEER, one)
    assert PEER not in bench.plans()[-1].excluded
    bench.tell(PEER, one)
    assert PEER not in bench.plans()[-1].excluded, "a repeat is no lie"
    effects = bench.tell(THIRD, other)
    assert PEER in bench.plans()[-1].excluded
    assert "two things" in bench.refusals()
    told = [e.message for e in bench.kinds(ef.Send, effects) if e.peer == THIRD]
    assert [one, other] == [item for item in told if isinstance(item, m.Pledge)]


def test_another_pledge_from_another_state_is_no_lie() -> None:
    bench = Bench()
    bench.tell(PEER, pledge(PEER, SET, base=b"o" * 32, pieces=(b"p" * 32,) * m.PIECES))
    bench.works(PEER, SET)
    bench.tell(PEER, pledge(PEER, SET, base=b"o" * 32, pieces=(b"p" * 32,) * m.PIECES))
    assert PEER not in bench.plans()[-1].excluded
    assert bench.core._pledges.get(1, SET, PEER) == pledge(PEER, SET)


def test_pledges_of_one_peer_are_bounded() -> None:
    bench = Bench()
    for size in range(1, 7):
        for slots in itertools.combinations(range(6), size):
            bench.tell(PEER, pledge(PEER, slots))
            bench.tell(PEER, pledge(PEER, slots, step=4))
    kept = bench.core._pledges.kept
    assert sum(len(item.slots) for item in bench.core._pledges.of(1)) <= 4 * 6
    assert set(kept) == {1}


def test_contributions_of_one_peer_are_bounded() -> None:
    bench = Bench()
    shelf = bench.core._shelf
    for count in range(1, 64):
        for slots in ((0,), (1,), (2,), (3,), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
            bench.tell(PEER, *contribution(slots, m.Shard(0, count)))
    held = sum(len(part.payload) for part in shelf.parts[1].values())
    assert held <= 4 * toy.PARAMETERS * 6


def test_sums_far_ahead_are_bounded() -> None:
    bench = Bench()
    summary = summarise([toy.gradient(STATE, 1, slot)[0] for slot in range(6)])
    payload = toy.pack([0] * toy.PARAMETERS)
    for step in range(1, 200):
        for count in range(1, 8):
            low, high = m.Shard(0, count).bounds(toy.PARAMETERS)
            message = m.ShardSum(RUN, step, STATE.hash, m.Shard(0, count), summary)
            bench.tell(PEER, message, payload[: 4 * (high - low)])
    sums = bench.core._shelf.sums
    assert len(sums) <= 32
    assert all(len({shard.count for shard in held}) <= 4 for held in sums.values())


def test_strangers_and_other_runs_are_not_heard() -> None:
    bench = Bench()
    message, payload = contribution(SET, SHARD)
    bench.tell(STRANGER, message, payload)
    bench.tell(STRANGER, pledge(PEER, SET))
    bench.tell(PEER, pledge(STRANGER, SET))
    bench.tell(PEER, structs.replace(message, run=b"o" * 16), payload)
    assert not bench.core._shelf.parts.get(1)
    assert not bench.core._pledges.of(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"work": (m.Work((0, 1, 2, 3, 4), (0,)),)},
        {"work": (m.Work((0, 1, 2, 3, 4, 5), (0,)), m.Work((5,), (1,)))},
        {"work": (m.Work((1, 0, 2, 3, 4, 5), (0,)),)},
        {"work": (m.Work((0, 1, 2, 3, 4, 5), (3,)),)},
        {"owners": (0, 1, 3)},
        {"roster": (ME, PEER, PEER)},
        {"observers": (PEER,)},
        {"excluded": (THIRD,)},
    ],
)
def test_a_plan_that_does_not_add_up_costs_the_link(changes: dict[str, Any]) -> None:
    bench = Bench(me=PEER)
    effects = bench.tell(ME, plan(**changes))
    assert bench.kinds(ef.DropPeer, effects)
    assert bench.core.plan is None


def test_older_plans_change_nothing() -> None:
    bench = Bench(me=PEER)
    bench.tell(ME, plan())
    bench.tell(ME, plan(key=m.PlanKey(TERM, 49), work=(m.Work((0, 1, 2, 3, 4, 5), (1,)),)))
    assert bench.core.plan == plan()
    bench.tell(THIRD, plan(key=m.PlanKey(TERM - 64, 90), leader=THIRD))
    assert bench.core.plan == plan()
    assert bench.core.leader == ME


def test_a_plan_of_a_later_term_wins_and_the_leader_steps_down() -> None:
    bench = Bench()
    assert bench.core.leading
    later = plan(key=m.PlanKey(next_term(TERM, 2, 1), 1), leader=THIRD)
    bench.tell(THIRD, later)
    assert not bench.core.leading
    assert bench.core.plan == later


def test_a_lost_set_cancels_and_computes_what_the_new_plan_says() -> None:
    bench = Bench(me=PEER)
    first = bench.tell(ME, plan())
    assert bench.kinds(ef.Compute, first) == [ef.Compute(1, (4, 5))]
    second = bench.tell(ME, plan(key=m.PlanKey(TERM, 51), work=(m.Work((0, 1, 2, 3, 4, 5), (1,)),)))
    assert bench.kinds(ef.CancelCompute, second) == [ef.CancelCompute(1, (4, 5))]
    assert bench.kinds(ef.Compute, second) == [ef.Compute(1, (0, 1, 2, 3, 4, 5))]


def test_who_is_excluded_by_the_leader_stops() -> None:
    bench = Bench(me=PEER)
    effects = bench.tell(ME, plan(roster=(ME, THIRD), owners=(0, 1), excluded=(PEER,)))
    assert bench.kinds(ef.Failed, effects)[0].fault is ef.Fault.UNSOUND


def test_an_accusation_goes_to_the_leader_until_it_has_acted() -> None:
    bench = Bench(me=PEER)
    bench.tell(ME, plan())
    bench.works(THIRD, (0, 1), probe=b"")
    for _ in range(3):
        bench.status(ME)
        bench.feed(ev.Tick(), later=1.1)
    sent = [e for e in bench.kinds(ef.Send) if isinstance(e.message, m.Accuse)]
    assert len(sent) >= 2
    assert {(e.peer, e.message.peer) for e in sent} == {(ME, THIRD)}


def test_the_leader_acts_on_an_accusation() -> None:
    bench = Bench()
    bench.tell(THIRD, m.Accuse(RUN, PEER, 1, -1, "its kernel probe failed"))
    assert PEER in bench.plans()[-1].excluded
    assert f"found by {short_id(THIRD)}" in bench.refusals()


def test_an_impossible_part_is_traced_to_its_sender() -> None:
    bench = Bench()
    bench.feed(computed((0, 1)))
    bench.works(PEER, SET)
    bench.works(THIRD, (4, 5))
    (reduce,) = bench.kinds(ef.Reduce)
    bench.feed(ev.ReduceRefused(1, SHARD, reduce.ticket, 2, "values beyond the grid"))
    assert THIRD in bench.plans()[-1].excluded


def test_a_reduce_that_was_given_up_is_not_used() -> None:
    bench = Bench()
    bench.feed(computed((0, 1)))
    bench.works(PEER, SET)
    bench.works(THIRD, (4, 5))
    (reduce,) = bench.kinds(ef.Reduce)
    bench.tell(PEER, m.Accuse(RUN, THIRD, 1, -1, "wrong"))
    low, high = SHARD.bounds(toy.PARAMETERS)
    bench.feed(ev.Reduced(1, SHARD, reduce.ticket, toy.pack([7] * (high - low))))
    assert SHARD not in bench.core._shelf.sums.get(1, {})


def sums(bench: Bench, summaries: dict[int, m.Summary]) -> None:
    for index, sender in ((0, ME), (1, PEER), (2, THIRD)):
        if index in summaries:
            low, high = m.Shard(index, 3).bounds(toy.PARAMETERS)
            message = m.ShardSum(RUN, 1, STATE.hash, m.Shard(index, 3), summaries[index])
            bench.tell(sender, message, toy.pack([0] * (high - low)))


def test_summaries_that_contradict_each_other_are_recounted() -> None:
    bench = Bench()
    bench.feed(computed((0, 1)))
    bench.works(PEER, SET)
    bench.works(THIRD, (4, 5))
    (reduce,) = bench.kinds(ef.Reduce)
    low, high = SHARD.bounds(toy.PARAMETERS)
    bench.feed(ev.Reduced(1, SHARD, reduce.ticket, toy.pack([0] * (high - low))))
    right = summarise([toy.gradient(STATE, 1, slot)[0] for slot in range(6)])
    sums(bench, {1: right, 2: structs.replace(right, loss=0)})
    bench.feed(ev.Tick())
    assert not bench.kinds(ef.Apply)
    sums(bench, {1: right, 2: right})
    bench.feed(ev.Tick(), later=3.0)
    assert not bench.kinds(ef.Apply), "sums of others are taken no more"


def test_a_state_that_is_not_finite_ends_the_run_before_it() -> None:
    bench = Bench()
    bench.feed(ev.ApplyRefused(1, "weights are not finite", non_finite=True))
    (finished,) = bench.kinds(ef.Finished)
    assert (finished.step, finished.ending) == (0, ef.Ending.NON_FINITE)


def test_contradictory_sums_are_recounted_and_then_given_up() -> None:
    bench = Bench()
    bench.feed(ev.ApplyRefused(1, "checksum"))
    assert not bench.core._shelf.own
    bench.feed(ev.ApplyRefused(1, "checksum"))
    assert not bench.kinds(ef.Failed)
    assert bench.core._shelf.own, "what is not of one worker is computed here"
    bench.feed(ev.ApplyRefused(1, "checksum"))
    assert bench.kinds(ef.Failed)[0].fault is ef.Fault.DIVERGENCE


def test_claims_about_other_steps_are_not_kept() -> None:
    bench = Bench()
    for step in range(2, 500):
        bench.status(PEER, claim=m.Claim(step, step % 6))
    assert not bench.core._guard._checks


def test_a_host_that_kicks_this_node_ends_it() -> None:
    bench = Bench(me=PEER)
    effects = bench.feed(ev.RosterChanged((ME, THIRD), kicked=(PEER,)))
    assert bench.kinds(ef.Failed, effects)[0].fault is ef.Fault.REMOVED


def test_a_link_that_is_up_before_its_peer_is_known_is_remembered() -> None:
    bench = Bench()
    bench.feed(ev.LinkUp(STRANGER))
    effects = bench.feed(ev.RosterChanged((ME, PEER, THIRD, STRANGER)))
    assert STRANGER in {e.peer for e in bench.kinds(ef.Send, effects)}


def test_no_member_uses_up_the_terms() -> None:
    """The last term there is would leave no later one to whoever rises next."""
    bench = Bench()
    (drop,) = bench.kinds(ef.DropPeer, bench.status(PEER, term=2**53 - 1, leader=PEER))
    assert drop.peer == PEER
    assert bench.core.leading
    later = next_term(TERM + TERM_LEAP // 2, 1, 1)
    assert not bench.kinds(ef.DropPeer, bench.status(THIRD, term=later, leader=PEER))
    assert bench.core.term >= later
