"""Audits in one core fed by hand: what is drawn, what is believed, and who has the run go back."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from msgspec import structs

from p2pnode.errors import PeerError
from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol import messages as m
from p2pnode.protocol.check import Check
from p2pnode.protocol.identity import short_id
from p2pnode.rehearse import toy
from tests.protocol.core_bench import (
    ME,
    PEER,
    RUN,
    SET,
    STRANGER,
    THIRD,
    Bench,
    computed,
    plan,
    pledge,
    sound_work,
)

STATE = toy.initial()
LIE = structs.replace(toy.gradient(STATE, 1, 2)[0], digest=b"w" * 32)
TRUE = toy.gradient(STATE, 1, 2)[0]
PAYLOAD = toy.pack(toy.add([toy.gradient(STATE, 1, slot)[1] for slot in SET]))
Patch = pytest.MonkeyPatch


def always() -> Bench:
    return Bench(audit=lambda: True)


def lie(worker: bytes = PEER) -> m.Pledge:
    """A pledge whose first slot is wrong, in the same way in all that it says."""
    return pledge(worker, SET, evidence=(LIE, toy.gradient(STATE, 1, 3)[0]))


def audited(slots: tuple[int, ...], *, reference: bool = False, **changes: Any) -> ev.Audited:
    """What a sound machine finds."""
    evidence, _, pieces = sound_work(slots)
    return dataclasses.replace(ev.Audited(1, slots, reference, evidence, pieces), **changes)


def found() -> Bench:
    """A node that has found a lie of PEER."""
    bench = always()
    bench.tell(PEER, lie())
    bench.feed(audited(SET))
    bench.feed(audited((2,), reference=True))
    return bench


def wrongs(bench: Bench, effects: list[ef.Effect] | None = None) -> list[tuple[bytes, m.Wrong]]:
    sent = bench.kinds(ef.Send, effects)
    return [(e.peer, e.message) for e in sent if isinstance(e.message, m.Wrong)]


# Drawing


def test_each_pledge_of_another_is_drawn_for_once() -> None:
    draws = iter([True, False, True, True])
    bench = Bench(audit=lambda: next(draws))
    bench.feed(computed((0, 1)))  # its own is not drawn for
    for _ in range(3):
        bench.tell(PEER, pledge(PEER, SET))
    bench.tell(THIRD, pledge(THIRD, (4, 5)))
    assert bench.kinds(ef.Audit) == [ef.Audit(1, SET)]
    assert next(draws), "two draws were made"


def test_nobody_knows_before_the_pledge_is_here() -> None:
    asked = itertools.count()
    bench = Bench(audit=lambda: next(asked) < 0)
    bench.feed(ev.Tick())
    assert next(asked) == 0
    bench.tell(PEER, pledge(PEER, SET))
    assert next(asked) == 2


def test_a_pledge_from_another_state_is_not_computed_here() -> None:
    bench = always()
    bench.tell(PEER, pledge(PEER, SET, base=b"o" * 32))
    assert not bench.kinds(ef.Audit)


def test_an_early_pledge_is_drawn_for_when_its_step_has_come() -> None:
    bench = always()
    bench.tell(PEER, pledge(PEER, SET, step=2, base=b"s" * 32))
    assert not bench.kinds(ef.Audit)
    bench.feed(ev.Applied(1, b"s" * 32))
    assert bench.kinds(ef.Audit) == [ef.Audit(2, SET)]


def test_states_kept_for_audits_are_bounded_and_what_is_left_out_is_counted() -> None:
    bench = always()
    bench.tell(PEER, pledge(PEER, SET))
    for step in (2, 3):
        state = bytes([step]) * 32
        bench.core._board.committed = step - 2
        bench.feed(ev.Applied(step - 1, state))
        bench.tell(PEER, pledge(PEER, SET, step=step, base=state))
    assert [e.step for e in bench.kinds(ef.Audit)] == [1, 2]
    assert bench.core.audits_missed == 1


# Judging


def test_right_work_has_no_consequence_and_its_state_is_let_go() -> None:
    bench = always()
    bench.tell(PEER, pledge(PEER, SET))
    assert bench.core._board.auditing == 1
    bench.feed(audited(SET, payload=PAYLOAD))
    assert not bench.kinds(ef.LetGo), "its worker has not said in the check what it weighs"
    bench.core._board.committed = 1
    effects = bench.feed(ev.Tick())
    assert bench.kinds(ef.LetGo, effects) == [ef.LetGo(1)], (
        "nobody asked it: the sums were made here"
    )
    assert bench.core._board.auditing == 0
    assert not bench.refusals()
    assert not wrongs(bench)


@pytest.mark.parametrize("lies", [False, True])
def test_what_is_right_is_weighed_as_its_worker_said(lies: bool, monkeypatch: Patch) -> None:
    bench = always()
    bench.tell(PEER, pledge(PEER, SET))
    monkeypatch.setattr(Check, "told", lambda self, *_: (b"nonce", 7))
    effects = bench.feed(audited(SET, payload=PAYLOAD))
    (weigh,) = bench.kinds(ef.Weigh, effects)
    assert (weigh.nonce, weigh.parts) == (b"nonce", (PAYLOAD,))
    effects = bench.feed(ev.Weighed(weigh.ticket, 7 + lies))
    assert ("told the check another checksum" in bench.refusals()) == lies
    assert {wrong.pledge.peer for _, wrong in wrongs(bench, effects)} == ({PEER} if lies else set())
    assert bool(bench.kinds(ef.LetGo, effects)) != lies, "a state to go back to is kept"


def test_a_difference_is_first_confirmed_by_the_reference() -> None:
    bench = always()
    bench.tell(PEER, lie())
    effects = bench.feed(audited(SET))
    assert bench.kinds(ef.Audit, effects) == [ef.Audit(1, (2,), reference=True)]
    assert not bench.refusals()
    assert not bench.kinds(ef.LetGo), "the state is still needed"
    effects = bench.feed(audited((2,), reference=True))
    assert "gradient of slot 2 is wrong" in bench.refusals()
    assert bench.kinds(ef.Diagnose, effects) == [ef.Diagnose(1, 2, PEER, LIE)]
    assert {peer for peer, _ in wrongs(bench, effects)} >= {THIRD}
    assert wrongs(bench, effects)[0][1] == m.Wrong(RUN, lie(), 2, TRUE)
    assert not bench.kinds(ef.LetGo), "the run goes back to it"


def test_who_pledges_the_same_set_rightly_meanwhile_convicts_nobody() -> None:
    """The reference then agrees with a pledge that the kernels in use have not contradicted."""
    bench = always()
    bench.tell(PEER, lie())
    bench.feed(audited(SET))
    bench.tell(THIRD, pledge(THIRD, SET))
    effects = bench.feed(audited((2,), reference=True))
    assert bench.kinds(ef.Diagnose, effects) == [ef.Diagnose(1, 2, PEER, LIE)]
    assert bench.kinds(ef.Audit, effects) == [ef.Audit(1, SET)], "its turn comes now"
    effects = bench.feed(audited(SET))
    assert not bench.kinds(ef.Diagnose, effects)
    assert bench.plans()[-1].excluded == (PEER,)


def test_a_sum_unlike_its_slots_is_found() -> None:
    bench = always()
    bench.tell(PEER, pledge(PEER, SET, pieces=(b"p" * 32,) * m.PIECES))
    bench.feed(audited(SET))
    bench.feed(audited(SET, reference=True))
    assert PEER in bench.plans()[-1].excluded


def test_who_audits_with_wrong_kernels_finds_itself() -> None:
    bench = always()
    bench.tell(PEER, pledge(PEER, SET))
    bench.feed(audited(SET, evidence=(LIE, toy.gradient(STATE, 1, 3)[0])))
    effects = bench.feed(audited((2,), reference=True))
    assert bench.kinds(ef.Diagnose, effects) == [ef.Diagnose(1, 2, ME, LIE)]
    assert not bench.refusals(), "nobody else is accused"
    bench.feed(ev.Diagnosed(1, 2, ME, "layers.0.q", "product (int8)", ""))
    assert bench.kinds(ef.Failed)


def test_a_slot_that_is_not_finite_is_no_pledge() -> None:
    bench = always()
    bench.tell(PEER, pledge(PEER, SET))
    bench.feed(audited(SET, evidence=(), pieces=()))
    bench.feed(audited(SET, evidence=(), pieces=(), reference=True))
    assert PEER in bench.plans()[-1].excluded


def test_a_state_that_is_gone_accuses_nobody() -> None:
    bench = always()
    bench.tell(PEER, lie())
    bench.feed(audited(SET, evidence=None, pieces=()))
    assert not bench.refusals()
    assert bench.core.audits_missed == 1
    assert bench.core._board.auditing == 0


# Going back


def test_the_first_in_join_order_signs() -> None:
    bench = found()
    assert bench.kinds(ef.Rewind) == [ef.Rewind(0, STATE.hash, (PEER,))]
    bench.feed(ev.Tick(), later=1.1)
    assert len(bench.kinds(ef.Rewind)) == 1


def test_a_later_one_signs_when_those_before_are_gone() -> None:
    bench = Bench(me=PEER)
    bench.tell(ME, plan())
    bench.status(THIRD)
    bench.tell(ME, m.Wrong(RUN, lie(THIRD), 2, TRUE))
    assert not bench.kinds(ef.Rewind)
    for _ in range(10):
        bench.feed(ev.Tick(), later=1.1)
    assert bench.kinds(ef.Rewind) == [ef.Rewind(0, STATE.hash, (THIRD,))]


def test_a_later_one_signs_if_the_host_is_the_culprit() -> None:
    bench = Bench(me=PEER)
    bench.tell(ME, plan())
    bench.status(THIRD)
    bench.tell(THIRD, m.Wrong(RUN, lie(ME), 2, TRUE))
    assert bench.kinds(ef.Rewind) == [ef.Rewind(0, STATE.hash, (ME,))]


def test_it_is_told_again_until_there_is_a_record() -> None:
    bench = found()
    before = len(wrongs(bench))
    for _ in range(4):
        bench.status(THIRD)
        bench.feed(ev.Tick(), later=1.1)
    assert len(wrongs(bench)) > before


def test_what_is_heard_is_passed_on_and_names_the_culprit() -> None:
    bench = Bench(me=PEER)
    bench.tell(ME, plan())
    bench.status(THIRD)
    effects = bench.tell(ME, m.Wrong(RUN, lie(THIRD), 2, TRUE))
    what = f"{short_id(THIRD)} at step 1: {short_id(ME)} computed its work again"
    assert what in bench.refusals()
    bench.feed(ev.Tick())
    assert wrongs(bench, effects), "somebody may not have heard it"


def test_two_culprits_go_back_to_before_the_first() -> None:
    bench = always()
    later = pledge(THIRD, (4, 5), step=2, base=b"s" * 32)
    bench.feed(ev.Applied(1, b"s" * 32))
    bench.tell(PEER, m.Wrong(RUN, later, 4, None))
    first = bench.kinds(ef.Rewind)[-1]
    assert (first.step, first.culprits) == (1, (THIRD,))


@pytest.mark.parametrize(
    "changes",
    [
        {"slot": 0},  # not in the pledge
        {"truth": toy.gradient(STATE, 1, 3)[0]},
        {"pledge": structs.replace(lie(), signature=b"x" * 64)},
    ],
)
def test_an_audit_that_does_not_fit_costs_its_sender_the_link(changes: dict[str, Any]) -> None:
    bench = Bench()
    message = structs.replace(m.Wrong(RUN, lie(), 2, TRUE), **changes)
    bench.tell(THIRD, message)
    assert bench.kinds(ef.DropPeer)[0].peer == THIRD
    assert not bench.kinds(ef.Rewind)
    with pytest.raises(PeerError):
        bench.core._auditor.heard(THIRD, message)


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (PEER, m.Wrong(RUN, lie(PEER), 2, TRUE)),  # of itself
        (THIRD, m.Wrong(RUN, lie(STRANGER), 2, TRUE)),
        (THIRD, m.Wrong(RUN, pledge(PEER, SET, base=b"o" * 32), 2, TRUE)),  # another state
        (THIRD, m.Wrong(RUN, pledge(PEER, SET, step=9), 2, TRUE)),
    ],
)
def test_other_audits_change_nothing(sender: bytes, message: m.Wrong) -> None:
    bench = Bench()
    bench.tell(sender, message)
    assert not bench.kinds(ef.Rewind)
    assert not bench.refusals()


def test_who_is_not_trusted_any_more_takes_nothing_back() -> None:
    bench = Bench()
    bench.core._guard.accuse(THIRD, 1, "its kernel probe failed")
    bench.tell(THIRD, m.Wrong(RUN, lie(), 2, TRUE))
    assert not bench.kinds(ef.Rewind)


# The end of a run


def at_the_end(bench: Bench) -> Bench:
    bench.core._board.last_step = 0
    return bench


def test_the_run_does_not_end_while_this_node_audits() -> None:
    bench = always()
    bench.tell(PEER, pledge(PEER, SET))
    at_the_end(bench).feed(ev.Tick())
    assert not bench.kinds(ef.Finished)
    assert bench.kinds(ef.Finished, bench.feed(audited(SET)) + bench.feed(ev.Tick()))


def test_the_run_does_not_end_while_others_audit_but_not_for_ever() -> None:
    bench = Bench()
    bench.status(PEER, auditing=1)
    at_the_end(bench).feed(ev.Tick())
    assert not bench.kinds(ef.Finished)
    for _ in range(40):
        bench.status(PEER, auditing=1, speed=10.0)
        bench.feed(ev.Tick(), later=1.0)
    assert not bench.kinds(ef.Finished), "six slots may take it 12 s with the reference kernels"
    for _ in range(10):
        bench.status(PEER, auditing=1, speed=10.0)
        bench.feed(ev.Tick(), later=1.0)
    assert bench.kinds(ef.Finished)


def test_the_run_does_not_end_before_wrong_work_is_taken_back() -> None:
    bench = at_the_end(found())
    for _ in range(40):
        bench.status(THIRD)
        bench.feed(ev.Tick(), later=1.0)
    assert not bench.kinds(ef.Finished)
