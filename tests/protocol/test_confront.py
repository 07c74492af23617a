"""Who is wrong is confronted with it, finds the operation, and everybody hears which it was."""

from __future__ import annotations

import pytest
from msgspec import structs

from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol import messages as m
from p2pnode.rehearse import toy
from tests.protocol.core_bench import ME, PEER, RUN, THIRD, Bench, computed, plan

STATE = toy.initial()
TRUTH = toy.gradient(STATE, 1, 4)[0]
WRONG = structs.replace(TRUTH, digest=b"w" * 32)
ACCUSATION = m.Accuse(RUN, PEER, 1, 4, "its gradient of slot 4 is wrong")


def accused() -> Bench:
    """A member that has stated something about slots 4 and 5."""
    bench = Bench(me=PEER)
    bench.tell(ME, plan())
    bench.feed(computed((4, 5), evidence=(WRONG, toy.gradient(STATE, 1, 5)[0])))
    return bench


def test_the_accused_is_told_and_finds_out_how() -> None:
    bench = accused()
    effects = bench.tell(ME, ACCUSATION)
    assert bench.kinds(ef.Diagnose, effects) == [ef.Diagnose(1, 4, PEER, WRONG)]
    effects = bench.feed(ev.Diagnosed(1, 4, PEER, "layers.0.q", "product (int8)", ""))
    told = {
        e.peer: e.message for e in bench.kinds(ef.Send, effects) if isinstance(e.message, m.Confess)
    }
    assert told == dict.fromkeys((ME, THIRD), m.Confess(RUN, 1, 4, "layers.0.q", "product (int8)"))
    assert bench.kinds(ef.Failed, effects)


def test_who_is_put_out_meanwhile_still_says_what_it_was() -> None:
    bench = accused()
    bench.tell(ME, ACCUSATION)
    out = plan(
        key=m.PlanKey(plan().key.term, 60), roster=(ME, THIRD), owners=(0, 1), excluded=(PEER,)
    )
    bench.tell(ME, out)
    assert not bench.kinds(ef.Failed)
    effects = bench.feed(ev.Diagnosed(1, 4, PEER, "embed", "lookup", ""))
    assert any(isinstance(e.message, m.Confess) for e in bench.kinds(ef.Send, effects))
    assert "embed, lookup" in bench.kinds(ef.Failed, effects)[0].text


def test_who_is_put_out_and_finds_nothing_says_so() -> None:
    bench = accused()
    bench.tell(ME, ACCUSATION)
    out = plan(
        key=m.PlanKey(plan().key.term, 60), roster=(ME, THIRD), owners=(0, 1), excluded=(PEER,)
    )
    bench.tell(ME, out)
    effects = bench.feed(ev.Diagnosed(1, 4, PEER, None, "", ""))
    assert not any(isinstance(e.message, m.Confess) for e in bench.kinds(ef.Send, effects))
    assert "passing fault" in bench.kinds(ef.Failed, effects)[0].text


def test_an_accusation_without_ground_changes_nothing() -> None:
    bench = accused()
    bench.tell(ME, ACCUSATION)
    effects = bench.feed(ev.Diagnosed(1, 4, PEER, None, "", ""))
    assert not bench.kinds(ef.Failed)
    (report,) = bench.kinds(ef.Report, effects)
    assert "is right" in report.text


@pytest.mark.parametrize(
    "message",
    [
        structs.replace(ACCUSATION, slot=0),  # not computed here
        structs.replace(ACCUSATION, slot=-1),
        structs.replace(ACCUSATION, step=2),
        structs.replace(ACCUSATION, peer=THIRD),
    ],
)
def test_other_accusations_start_no_computation(message: m.Accuse) -> None:
    bench = accused()
    bench.tell(ME, message)
    assert not bench.kinds(ef.Diagnose)


def test_a_peer_can_make_us_compute_once() -> None:
    bench = accused()
    for _ in range(3):
        bench.tell(ME, ACCUSATION)
        bench.feed(ev.Diagnosed(1, 4, PEER, None, "", ""))
    assert len(bench.kinds(ef.Diagnose)) == 1


def test_the_finder_keeps_a_bundle_and_tells_the_accused() -> None:
    bench = Bench()
    wrong = structs.replace(toy.gradient(STATE, 1, 2)[0], digest=b"w" * 32)
    bench.core._guard.agrees(PEER, 1, (wrong,))
    bench.core._guard.agrees(THIRD, 1, (toy.gradient(STATE, 1, 2)[0],))
    bench.feed(ev.Tick())
    effects = bench.feed(computed((2,), reference=True))
    assert bench.kinds(ef.Diagnose, effects) == [ef.Diagnose(1, 2, PEER, wrong)]
    told = [e for e in bench.kinds(ef.Send, effects) if isinstance(e.message, m.Accuse)]
    assert [(e.peer, e.message.slot) for e in told] == [(PEER, 2)]
    effects = bench.feed(ev.Diagnosed(1, 2, PEER, None, "", "A bundle is in x."))
    assert [e.text for e in bench.kinds(ef.Report, effects)] == ["A bundle is in x."]
    assert not bench.kinds(ef.Failed)


def test_a_confession_is_told_to_the_owner_of_every_machine() -> None:
    bench = Bench()
    bench.tell(PEER, m.Confess(RUN, 1, 3, "layers.1.v", "product (int8)"))
    texts = [e.text for e in bench.kinds(ef.Report)]
    assert any(
        "computed slot 3 wrongly: tensor layers.1.v, product (int8)" in text for text in texts
    )
    assert PEER in bench.plans()[-1].excluded


def test_a_confession_of_one_already_accused_is_still_told_once() -> None:
    bench = Bench()
    bench.core._guard.accuse(PEER, 1, "its gradient of slot 3 is wrong", 3)
    for _ in range(3):
        bench.tell(PEER, m.Confess(RUN, 1, 3, "layers.1.v", "product (int8)"))
    texts = [e.text for e in bench.kinds(ef.Report) if "layers.1.v" in e.text]
    assert len(texts) == 1
