"""Machines that compute or state something wrong: found, named, left out; the others go on."""

from __future__ import annotations

import pytest

from p2pnode.protocol import effects as ef
from p2pnode.protocol.identity import short_id
from p2pnode.protocol.messages import Contribution
from p2pnode.rehearse.defects import Defects
from p2pnode.rehearse.oracle import check, over
from tests.harness.calm import Recorder


def test_failed_probe_stops_the_machine_itself() -> None:
    run = Recorder(3, defects={1: Defects(bad_probe_at=4)})
    run.finish()
    failed = run.nodes[1].failed
    assert failed is not None
    assert failed.fault is ef.Fault.UNSOUND
    assert not [c for c in run.messages(Contribution, "n1") if c.step >= 4]


@pytest.mark.parametrize("sick", [0, 1])
def test_work_without_a_probe_is_refused_and_its_sender_gets_no_more(sick: int) -> None:
    run = Recorder(3, defects={sick: Defects(strips_probe_at=4)})
    run.finish()
    failed = run.nodes[sick].failed
    assert failed is not None
    assert failed.fault is ef.Fault.UNSOUND
    assert any("did not run" in text for text in run.reports(ef.Kind.REFUSED))


@pytest.mark.parametrize("sick", [0, 1])
def test_wrong_apply_is_confessed_with_step_and_tensor(sick: int) -> None:
    run = Recorder(2, defects={sick: Defects(wrong_apply_at=5)})
    run.finish()
    failed = run.nodes[sick].failed
    assert failed is not None
    assert failed.fault is ef.Fault.DIVERGENCE
    texts = run.reports(ef.Kind.REFUSED, f"n{1 - sick}")
    name = short_id(run.nodes[sick].me)
    assert any(name in text and "step 5" in text and "layers.0.attn" in text for text in texts)


def test_nothing_is_applied_while_hashes_differ() -> None:
    run = Recorder(3, defects={1: Defects(wrong_apply_at=5, denies=True)}, slot_time=0.5)
    run.when(lambda: bool(run.reports(ef.Kind.DIVERGENCE)))
    assert all(node.core.committed <= 4 for node in run.nodes)
    assert all(node.core.applied <= 5 for node in run.nodes)


def test_majority_decides_if_nobody_confesses() -> None:
    run = Recorder(3, defects={1: Defects(wrong_apply_at=5, denies=True)})
    run.finish()
    failed = run.nodes[1].failed
    assert failed is not None
    assert failed.fault is ef.Fault.DIVERGENCE
    assert {run.nodes[0].core.committed, run.nodes[2].core.committed} == {8}


def test_without_a_majority_the_run_stops_at_the_last_committed_state() -> None:
    run = Recorder(2, defects={1: Defects(wrong_apply_at=5, denies=True)})
    run.when(lambda: over(run.world))
    assert {node.core.committed for node in run.nodes} == {4}
    for node in run.nodes:
        assert node.failed is not None
        assert node.failed.fault is ef.Fault.DIVERGENCE
        assert "no majority" in node.failed.text


@pytest.mark.parametrize("count", [1, 3])
def test_a_slot_that_is_not_finite_ends_the_run_before_it_everywhere(count: int) -> None:
    run = Recorder(count)
    run.world.not_finite = (5, 2)
    run.finish()
    for node in run.nodes:
        assert node.finished is not None
        assert (node.finished.step, node.finished.ending) == (4, ef.Ending.NON_FINITE)
        assert "slot 2 of step 5" in node.finished.detail
    checks = [e for e in run.of(ef.Compute) if isinstance(e, ef.Compute) and e.reference]
    assert len(checks) == count, "everybody has seen for itself"


def test_a_slot_called_not_finite_that_is_costs_the_caller_its_place() -> None:
    run = Recorder(3, defects={2: Defects(false_claim_at=5)})
    run.finish()
    failed = run.nodes[2].failed
    assert failed is not None
    assert failed.fault is ef.Fault.UNSOUND
    assert run.nodes[0].core.committed == 8


SUMS = ("corrupts_sums_at", "two_faced_at", "wrong_summary_at")


@pytest.mark.parametrize("defect", SUMS)
@pytest.mark.parametrize(("count", "sick"), [(2, 0), (2, 1), (3, 0), (3, 2), (4, 1), (5, 0)])
def test_an_owner_that_sends_wrong_sums_is_named_and_left_out(
    defect: str, count: int, sick: int
) -> None:
    if defect == "two_faced_at" and (count, sick) == (2, 1):
        sick = 0  # the only other one must be among those who are lied to
    run = Recorder(count, defects={sick: Defects(**{defect: 4})})
    run.finish()
    liar = run.nodes[sick]
    assert liar.failed is not None
    assert liar.failed.fault is ef.Fault.UNSOUND
    named = [
        effect
        for _, name, effect in run.effects
        if isinstance(effect, ef.Report) and effect.peer == liar.me and name != liar.name
    ]
    assert any("at step 4" in report.text for report in named)
    sound = [node for node in run.nodes if node is not liar]
    assert all(node.failed is None and node.core.committed == 8 for node in sound)
    accused = {r.peer for _, _, r in run.effects if isinstance(r, ef.Report) and "its s" in r.text}
    assert accused == {liar.me}, "nobody else is suspected"


def named(run: Recorder, sick: int) -> str:
    """What the others report of the sick one; fails if they report a sound one, or do not end
    with the undisturbed hash."""
    liar = run.nodes[sick]
    sound = [node for node in run.nodes if node is not liar]
    assert all(node.failed is None and node.core.committed == 8 for node in sound)
    refusals = [
        (effect.peer, effect.text)
        for _, name, effect in run.effects
        if isinstance(effect, ef.Report) and effect.kind is ef.Kind.REFUSED and name != liar.name
    ]
    blamed = {peer for peer, text in refusals if peer is not None and "and" not in text[:12]}
    assert blamed == {liar.me}
    assert liar.failed is not None
    assert liar.failed.fault is ef.Fault.UNSOUND
    return "; ".join(text for peer, text in refusals if peer == liar.me)


GROUPS = [(2, 0), (3, 0), (3, 2), (4, 1), (5, 0)]


@pytest.mark.parametrize(("count", "sick"), GROUPS)
def test_an_owner_that_forges_the_checksum_is_named(count: int, sick: int) -> None:
    run = Recorder(count, defects={sick: Defects(forges_sums_at=4)})
    run.finish()
    assert "is not that of the contributions" in named(run, sick)
    steps = {e.step for e in run.of(ef.Rollback)}
    assert 4 in steps, "found in the same step"
    assert steps <= {4, 5}, "and what it had done for the next is not used either"


@pytest.mark.parametrize(("count", "sick"), [(2, 0), (3, 0), (4, 1), (5, 0)])
def test_an_owner_that_forges_sums_for_some_only_is_named(count: int, sick: int) -> None:
    run = Recorder(count, defects={sick: Defects(forges_some_at=4)})
    run.finish()
    assert "is not that of the contributions" in named(run, sick)


@pytest.mark.parametrize(("count", "sick"), GROUPS)
def test_a_worker_whose_bytes_contradict_its_evidence_is_named(count: int, sick: int) -> None:
    run = Recorder(count, defects={sick: Defects(contradicts_evidence_at=4)})
    run.finish()
    failed = run.nodes[sick].failed
    assert failed is not None
    assert "contradicts its evidence" in failed.text or "take no more work" in failed.text
    sound = [node for node in run.nodes if node is not run.nodes[sick]]
    assert all(node.failed is None and node.core.committed == 8 for node in sound)


@pytest.mark.parametrize(("count", "sick"), [(3, 0), (3, 2), (4, 1), (5, 0)])
def test_a_worker_with_two_faces_is_named_and_no_owner(count: int, sick: int) -> None:
    run = Recorder(count, defects={sick: Defects(two_faced_work_at=4)})
    run.finish()
    assert "pledged" in named(run, sick)


@pytest.mark.parametrize(("count", "sick"), GROUPS)
def test_a_worker_that_lies_in_the_check_is_named(count: int, sick: int) -> None:
    run = Recorder(count, defects={sick: Defects(lies_in_check_at=4)})
    run.finish()
    assert "the checksum it told" in named(run, sick)


@pytest.mark.parametrize(("count", "sick"), GROUPS)
def test_a_worker_that_withholds_its_checksum_is_named(count: int, sick: int) -> None:
    run = Recorder(count, defects={sick: Defects(withholds_at=4)})
    run.finish()
    assert "withholds" in named(run, sick)


def test_a_worker_lost_before_the_check_holds_nobody_up() -> None:
    run = Recorder(3, steps=8)
    run.when(lambda: any(e.step == 4 for e in run.of(ef.Apply, "n0")))
    run.world.crash(run.nodes[2])
    died = run.world.now
    run.finish()
    again = [e for e in run.of(ef.Compute) if e.step == 4]
    assert len(again) > 3, "its set was computed by those who check"
    assert not run.of(ef.Rollback)
    assert run.world.now - died < 20.0


def test_alone_nothing_is_checked_and_nothing_is_sent() -> None:
    run = Recorder(1)
    run.finish()
    assert not run.of(ef.Weigh)
    assert not run.of(ef.Send)


@pytest.mark.parametrize(("count", "sick"), [(1, 0), (2, 0), (3, 1)])
def test_an_owner_that_adds_wrongly_finds_itself(count: int, sick: int) -> None:
    run = Recorder(count, defects={sick: Defects(adds_wrongly_at=4)})
    run.finish()
    failed = run.nodes[sick].failed
    assert failed is not None
    assert "added shard" in failed.text or "take no more work" in failed.text
    sound = [node for node in run.nodes if node is not run.nodes[sick]]
    assert all(node.failed is None and node.core.committed == 8 for node in sound)


def test_a_recount_survives_the_loss_of_a_worker() -> None:
    run = Recorder(4, defects={1: Defects(corrupts_sums_at=4)}, slot_time=0.3)
    run.when(lambda: any("checksum" in text for text in run.reports(ef.Kind.REFUSED)))
    run.world.crash(run.nodes[3])
    run.when(lambda: over(run.world))
    check(run.world, disturbed=True)  # what the lost one sent may have been wrong: nobody is blamed
    assert {run.nodes[0].core.committed, run.nodes[2].core.committed} == {8}


@pytest.mark.parametrize(("count", "sick"), [(2, 0), (2, 1), (3, 0), (5, 2)])
def test_a_contribution_of_other_bytes_than_pledged_names_its_worker(count: int, sick: int) -> None:
    run = Recorder(count, defects={sick: Defects(corrupts_parts_at=4)})
    run.finish()
    assert run.nodes[sick].failed is not None
    assert any("other bytes than it pledged" in text for text in run.reports(ef.Kind.REFUSED))
    sound = [node for node in run.nodes if node is not run.nodes[sick]]
    assert all(node.failed is None and node.core.committed == 8 for node in sound)
