"""Directed runs: one disturbance each, and what the design promises about it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol.join import CatchUp
from p2pnode.protocol.messages import Contribution, Plan, ShardSum, Status, Want
from p2pnode.rehearse import toy
from p2pnode.rehearse.oracle import over
from tests.harness.calm import Recorder


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_any_number_of_nodes_gives_the_undisturbed_hash(count: int) -> None:
    run = Recorder(count)
    run.finish()
    assert {node.core.committed for node in run.nodes} == {8}
    for commit in run.of(ef.Commit):
        assert sum(slots for _, slots in commit.credits) in {0, run.world.slots}


def test_slots_follow_measured_speed() -> None:
    run = Recorder(2, slots=8)
    run.nodes[1].slot_time = 0.3
    run.at_step(6)
    plan = run.nodes[0].core.plan
    assert plan is not None
    assert sorted(len(work.slots) for work in plan.work) == [2, 6]


def test_plan_of_the_next_step_is_sent_during_the_step() -> None:
    run = Recorder(3)
    run.finish()
    applied: dict[int, float] = {}
    planned: dict[int, float] = {}
    for at, name, effect in run.effects:
        if isinstance(effect, ef.Apply) and name == "n0":
            applied[effect.step] = at
        if isinstance(effect, ef.Send) and isinstance(effect.message, Plan):
            planned.setdefault(effect.message.step, at)
    assert all(planned[step + 1] < applied[step] for step in range(2, 8))


@pytest.mark.parametrize("moment", [0.65, 0.75, 0.85, 0.95, 1.05, 1.15, 1.3, 1.9, 2.6])
@pytest.mark.parametrize("victim", [0, 2])
def test_crash_at_any_moment(moment: float, victim: int) -> None:
    run = Recorder(4)
    run.world.at(moment, lambda: run.world.crash(run.nodes[victim]))
    run.finish()
    assert run.world.now < 8 * 2.0 + 12.0, "no pause beyond the detection of one silence"


def test_silent_peer_is_dropped_within_ten_seconds() -> None:
    run = Recorder(3, steps=40)
    run.at_step(3)
    run.nodes[2].crash()  # no link goes down: only silence tells
    died = run.world.now
    me = run.nodes[2].me
    run.when(lambda: any(me not in plan.roster for plan in run.messages(Plan)))
    assert run.world.now - died < 10.0
    run.finish()


def test_who_dies_on_the_last_step_is_not_waited_for() -> None:
    run = Recorder(3, steps=6)
    run.when(lambda: any(e.step == 6 for e in run.of(ef.Apply, "n2")))
    run.nodes[2].crash()
    died = run.world.now
    run.finish()
    assert run.world.now - died < 15.0


def test_sets_of_live_peers_stay_when_one_is_lost() -> None:
    run = Recorder(3, slots=9, slot_time=1.0)
    run.pass_time(2.0)
    run.world.crash(run.nodes[2])
    run.finish()
    plans = run.messages(Plan, "n0")
    first = next(plan for plan in plans if plan.step == 1)
    again = next(plan for plan in plans if plan.step == 1 and len(plan.roster) == 2)
    kept = {work.slots for work in first.work if 2 not in work.workers}
    assert kept < {work.slots for work in again.work}
    assert len(again.owners) == len(first.owners), "shard boundaries stay"


def test_next_in_order_leads_when_the_leader_dies_and_a_returning_host_does_not() -> None:
    run = Recorder(3, steps=60)
    run.at_step(4)
    run.world.crash(run.nodes[0])
    run.when(lambda: run.nodes[1].core.leading)
    run.at_step(8, node=1)
    run.world.restart(run.nodes[0])
    run.finish()
    assert run.leaders() == {"n1"}
    assert not run.nodes[2].core.leading


def test_leader_that_restarts_unnoticed_is_no_gap() -> None:
    run = Recorder(3, steps=60)
    run.at_step(4)
    run.world.crash(run.nodes[0])
    run.pass_time(0.5)
    crashed = run.world.now
    run.world.restart(run.nodes[0])
    run.when(lambda: bool(run.leaders()))
    run.at_step(run.nodes[1].core.committed + 2, node=1)
    assert run.world.now - crashed < 8.0, "it does not take a silence to find a new leader"
    run.finish()
    assert len({node.core.leader for node in run.nodes}) == 1


def test_a_leader_that_has_forgotten_everything_does_not_lead_in_its_old_term() -> None:
    run = Recorder(3, steps=60, slot_time=0.5)
    run.when(lambda: run.nodes[2].core.plan is not None)
    old = run.nodes[0].core.term
    run.world.net.partition([run.nodes[2]], 30.0)
    for node in run.nodes[:2]:  # the only others who know of that term
        run.world.restart(node, wiped=True)
    run.when(lambda: run.nodes[0].core.leading)
    assert run.nodes[0].core.term != old
    run.finish()
    keys = {}
    for plan in run.messages(Plan):
        assert keys.setdefault((plan.key, plan.step), plan) == plan


def test_two_leaders_of_one_round_the_earlier_wins() -> None:
    run = Recorder(3, steps=200)
    run.at_step(3)
    run.world.crash(run.nodes[0])
    run.world.net.partition([run.nodes[1]], 30.0)
    run.when(lambda: run.nodes[1].core.leading and run.nodes[2].core.leading)
    terms = run.nodes[1].core.term, run.nodes[2].core.term
    run.when(lambda: len(run.leaders()) == 1)
    assert run.leaders() == {"n1"}
    assert terms[0] > terms[1]
    run.finish()


def test_partition_goes_on_on_both_sides_and_heals() -> None:
    run = Recorder(4, steps=100)
    run.at_step(3)
    run.world.net.partition(run.nodes[2:], 40.0)
    run.pass_time(30.0)
    assert run.nodes[0].core.committed > 5
    assert run.nodes[2].core.committed > 5
    assert run.leaders() == {"n0", "n2"}
    run.finish()
    assert len({node.core.leader for node in run.nodes}) == 1


def test_a_joiner_takes_a_state_in_parts_and_then_works() -> None:
    run = Recorder(2, steps=60)
    run.at_step(12)
    joiner = run.join()
    run.when(lambda: any(peer == joiner.me for c in run.of(ef.Commit) for peer, _ in c.credits))
    loads = run.of(ef.Load, joiner.name)
    assert len(loads) == 1
    donors = {name for _, name, effect in run.effects if isinstance(effect, ef.Freeze)}
    assert donors == {"n0", "n1"}
    run.finish()
    assert joiner.work.state.hash == toy.undisturbed(6, 60)[60]


def test_a_donor_that_dies_costs_the_joiner_no_more_than_time() -> None:
    run = Recorder(3, steps=80)
    run.at_step(12)
    joiner = run.join()
    run.when(lambda: bool(run.of(ef.Freeze)))
    run.world.crash(run.nodes[0])
    run.finish()
    assert joiner.finished is not None


def test_small_lag_is_caught_up_from_kept_sums() -> None:
    run = Recorder(3, steps=30, slot_time=0.8)
    run.at_step(10)
    run.world.net.partition([run.nodes[2]], 12.5)
    run.when(lambda: run.nodes[0].core.committed - run.nodes[2].core.committed >= 2)
    run.when(lambda: run.nodes[2].core.committed >= run.nodes[0].core.committed - 1)
    run.finish()
    assert not run.of(ef.Load)


def test_one_who_joins_when_the_run_is_over_still_gets_the_result() -> None:
    run = Recorder(2, steps=12)
    run.world.net.bandwidth = 2_000.0
    run.at_step(11)
    joiner = run.join()
    run.finish()
    assert joiner.finished is not None


def test_leader_holds_a_boundary_for_one_that_cannot_catch_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Recorder(2, steps=80, slots=2)
    run.at_step(20)
    with monkeypatch.context() as patch:
        patch.setattr(CatchUp, "serve", lambda *_: None)  # the transfer does not move
        joiner = run.join()
        run.when(lambda: bool(run.reports(ef.Kind.CATCH_UP, "n0")))
        run.pass_time(2.0)
        held = run.nodes[0].core.applied
        run.pass_time(4.0)
        assert run.nodes[0].core.applied == held
    run.when(lambda: joiner.core.applied >= held)
    run.finish()
    assert any(peer == joiner.me for c in run.of(ef.Commit) for peer, _ in c.credits)


def test_nobody_is_waited_for_who_makes_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Recorder(2, steps=60, slots=2)
    run.at_step(20)
    monkeypatch.setattr(CatchUp, "serve", lambda *_: None)
    joiner = run.join()
    run.when(lambda: bool(run.reports(ef.Kind.CATCH_UP, "n0")))
    held = run.world.now
    run.when(lambda: run.nodes[0].finished is not None)
    assert run.world.now - held < 60.0
    assert joiner.finished is None


def test_a_pair_without_a_link_goes_through_a_neighbour() -> None:
    run = Recorder(3, apart=((0, 2),))
    run.finish()
    relayed = [send for send in run.sent(Contribution) if send.via is not None]
    assert relayed
    assert {send.via for send in relayed} == {run.nodes[1].me}
    for node in run.nodes:
        assert sum(slots for _, slots in run.of(ef.Commit)[-1].credits) == 6
        assert node.finished is not None


def test_who_is_beyond_one_neighbour_has_no_work_but_the_result() -> None:
    run = Recorder(4, steps=12, apart=((0, 2), (0, 3), (1, 3)))  # a chain 0-1-2-3
    run.at_step(8)
    plan = run.nodes[0].core.plan
    assert plan is not None
    assert run.nodes[3].me not in plan.roster
    assert run.leaders() == {"n0"}
    run.finish()


def test_one_way_silence_is_seen_from_the_other_statuses() -> None:
    run = Recorder(3, steps=60)
    run.at_step(3)
    link = run.world.net.link(run.nodes[0].me, run.nodes[2].me)
    link.blocked.add(run.nodes[2].me)  # n0 does not hear n2 any more, n2 hears n0
    run.pass_time(12.0)
    before = run.nodes[0].core.committed
    run.pass_time(10.0)
    assert run.nodes[0].core.committed > before
    assert any(send.via == run.nodes[1].me for send in run.sent(Contribution, "n2"))
    run.finish()


def test_a_slow_peers_set_is_computed_twice() -> None:
    run = Recorder(3, steps=6)
    run.at_step(2)
    run.nodes[2].slot_time = 200.0
    run.finish(limit=60.0)
    backed = [work for plan in run.messages(Plan) for work in plan.work if len(work.workers) > 1]
    assert backed


@pytest.mark.parametrize("count", [2, 3])
def test_a_slow_but_moving_transfer_is_not_asked_for_again(count: int) -> None:
    run = Recorder(count, steps=3)
    run.world.net.bandwidth = 40.0  # a contribution takes about a quarter of a minute
    run.finish(limit=600.0)
    assert not [want for want in run.messages(Want) if want.slots]
    for kind in (Contribution, ShardSum):
        keys = [(send.peer, send.key) for send in run.sent(kind)]
        assert len(keys) == len(set(keys))


def test_what_was_lost_with_a_link_is_asked_for() -> None:
    run = Recorder(2, steps=6)
    run.world.net.bandwidth = 300.0
    run.when(lambda: bool(run.sent(Contribution)))
    run.world.net.flap(run.nodes[0], run.nodes[1], 1.0)
    run.finish()
    assert run.sent(Want)


def test_nodes_serve_until_everybody_has_the_last_commit() -> None:
    run = Recorder(3, steps=6)
    run.at_step(4)
    run.world.net.partition([run.nodes[2]], 6.0)
    run.finish()
    last = max(
        at for at, name, effect in run.effects if isinstance(effect, ef.Finished) and name == "n2"
    )
    run.pass_time(20.0)
    for at, name, effect in run.effects:
        if isinstance(effect, ef.Released) and name != "n2":
            assert at >= last
    assert all(node.released for node in run.nodes)


def test_a_host_that_has_just_started_cannot_tell_where_to_stop() -> None:
    run = Recorder(3, steps=60)
    run.at_step(5)
    run.world.crash(run.nodes[0])
    run.world.restart(run.nodes[0], wiped=True)
    assert run.nodes[0].core.horizon() is None, "step 0 would undo the run"
    run.when(lambda: run.nodes[0].core.horizon() is not None)
    assert (run.nodes[0].core.horizon() or 0) >= 5


def test_a_kicked_node_stops_and_the_others_go_on() -> None:
    run = Recorder(3, steps=20)
    run.at_step(4)
    victim = run.nodes[2]
    run.world.members = tuple(peer for peer in run.world.members if peer != victim.me)
    run.world.announce(kicked=(victim.me,))
    run.when(lambda: victim.failed is not None)
    assert victim.failed is not None
    assert victim.failed.fault is ef.Fault.REMOVED
    victim.up = False
    run.finish()


def test_a_member_that_is_missing_from_one_roster_takes_part_again() -> None:
    """A node that had restarted was shown an old roster before the new one, and from then on took
    nothing of the member that the old one lacked: the run stood still."""
    run = Recorder(3, steps=20)
    run.at_step(4)
    everybody = run.world.members
    gone = run.nodes[2].me
    for node in run.nodes[:2]:
        node.feed(ev.RosterChanged(tuple(peer for peer in everybody if peer != gone), (gone,)))
        node.feed(ev.RosterChanged(everybody))
        run.world.net.flap(node, run.nodes[2], 0.5)
    run.finish()
    credits = [effect.credits for effect in run.of(ef.Commit, "n0")][-1]
    assert gone in dict(credits), "its work is taken"


def test_who_leaves_in_good_order_is_replaced_at_once() -> None:
    run = Recorder(3, steps=20)
    run.at_step(4)
    asked = run.world.now
    run.nodes[0].feed(ev.LeaveRequested())
    run.when(lambda: run.nodes[1].core.leading)
    assert run.world.now - asked < 1.0, "no silence has to pass"
    run.finish()
    assert run.nodes[0].released


def test_statuses_come_every_heartbeat() -> None:
    run = Recorder(2, steps=2, slot_time=3.0)
    run.pass_time(8.0)
    times = [
        at
        for at, name, effect in run.effects
        if name == "n1" and isinstance(effect, ef.Send) and isinstance(effect.message, Status)
    ]
    assert max(b - a for a, b in pairwise(times)) <= 1.01
    assert not over(run.world)


def test_sums_go_to_roster_and_observers_and_are_served_by_others() -> None:
    run = Recorder(3, steps=30)
    run.at_step(10)
    joiner = run.join()
    run.when(lambda: any(send.peer == joiner.me for send in run.sent(ShardSum)))
    run.finish()
