"""Nodes that read other text than each other: nothing of it is added, and the leader's text decides
who goes."""

from __future__ import annotations

import pytest
from msgspec import structs

from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol import messages as m
from p2pnode.rehearse import toy
from tests.protocol.core_bench import ME, PEER, RUN, SET, SHARD, STATE, THIRD, Bench, computed, plan

HERE = toy.gradient(STATE, 1, SET[0])[0].token_hash
OTHER = b"o" * 32
OUT = plan(key=m.PlanKey(plan().key.term, 60), roster=(ME, THIRD), owners=(0, 1), excluded=(PEER,))


def accusation(peer: bytes, slot: int, token_hash: bytes) -> m.Accuse:
    return m.Accuse(RUN, peer, 1, slot, "its contribution is of other text", token_hash)


def reducing() -> tuple[Bench, ef.Reduce]:
    """A leader that adds its shard of all three sets."""
    bench = Bench()
    bench.feed(computed((0, 1)))
    bench.works(PEER, SET)
    bench.works(THIRD, (4, 5))
    (reduce,) = bench.kinds(ef.Reduce)
    return bench, reduce


def add(bench: Bench, reduce: ef.Reduce, *, read: bool) -> None:
    low, high = SHARD.bounds(toy.PARAMETERS)
    bench.feed(ev.Reduced(1, SHARD, reduce.ticket, toy.pack([0] * (high - low)), read))


def accused(bench: Bench) -> dict[bytes, m.Accuse]:
    """What was told to those whose text differs."""
    sent = [e for e in bench.kinds(ef.Send) if isinstance(e.message, m.Accuse)]
    return {e.peer: e.message for e in sent if e.message.peer == e.peer}


def test_others_texts_are_compared_before_they_are_added() -> None:
    _, reduce = reducing()
    assert reduce.texts[0] == ()
    assert [[slot for slot, _ in text] for text in reduce.texts] == [[], [2, 3], [4, 5]]
    assert reduce.texts[1][0] == (SET[0], HERE)


def test_whose_text_differs_from_the_leaders_is_told_and_left_out() -> None:
    bench, reduce = reducing()
    what = "is of other text: the tokens of slot 2 are not those here"
    bench.feed(ev.ReduceRefused(1, SHARD, reduce.ticket, 1, what, 2, OTHER))
    assert bench.plans()[-1].excluded == (PEER,)
    assert SHARD not in bench.core._shelf.sums.get(1, {})
    assert accused(bench)[PEER].token_hash == OTHER
    assert "slot 2" in bench.refusals()


def test_of_two_others_that_differ_the_one_goes_whose_text_is_not_the_leaders() -> None:
    bench, reduce = reducing()
    bench.tell(THIRD, accusation(PEER, 2, OTHER))
    assert not bench.plans()[-1].excluded, "its own comparison is still under way"
    add(bench, reduce, read=True)
    bench.tell(THIRD, accusation(PEER, 2, OTHER))
    assert bench.plans()[-1].excluded == (THIRD,)
    assert accused(bench)[THIRD].token_hash == HERE


def test_a_leader_without_the_text_believes_who_has_it() -> None:
    bench, reduce = reducing()
    add(bench, reduce, read=False)
    bench.tell(THIRD, accusation(PEER, 2, OTHER))
    assert bench.plans()[-1].excluded == (PEER,)


def test_a_leader_that_is_doubted_looks_at_its_own_text_first() -> None:
    bench, _ = reducing()
    effects = bench.tell(PEER, accusation(ME, 0, OTHER))
    said = toy.gradient(STATE, 1, 0)[0]
    assert bench.kinds(ef.Diagnose, effects) == [ef.Diagnose(1, 0, ME, said)]
    assert not bench.plans()[-1].excluded
    bench.feed(ev.Diagnosed(1, 0, ME, None, "", ""))
    assert bench.plans()[-1].excluded == (PEER,)
    assert accused(bench)[PEER].token_hash == said.token_hash
    assert not bench.kinds(ef.Failed)


def member() -> Bench:
    bench = Bench(me=PEER)
    bench.tell(ME, plan())
    bench.feed(computed((4, 5)))
    return bench


def failure(bench: Bench) -> ef.Failed:
    (failed,) = bench.kinds(ef.Failed)
    return failed


def test_a_member_that_is_left_out_for_its_text_says_what_to_do() -> None:
    bench = member()
    bench.tell(ME, accusation(PEER, 4, OTHER))
    bench.tell(ME, OUT)
    assert failure(bench).fault is ef.Fault.TEXT
    assert "slot 4 of step 1" in failure(bench).text
    assert "Install" in failure(bench).text


def test_so_does_one_that_has_doubted_the_leader() -> None:
    bench = member()
    slots = (0, 1, 2, 3)
    bench.works(ME, slots)
    low, high = m.Shard(1, 3).bounds(toy.PARAMETERS)
    share = toy.pack(toy.add([toy.gradient(STATE, 1, slot)[1] for slot in slots])[low:high])
    bench.tell(ME, m.Contribution(RUN, 1, STATE.hash, slots, m.Shard(1, 3)), share)
    (reduce,) = bench.kinds(ef.Reduce)
    bench.feed(ev.ReduceRefused(1, reduce.shard, reduce.ticket, 0, "is of other text", 0, OTHER))
    assert accused(bench)[ME].token_hash == OTHER
    bench.tell(ME, accusation(PEER, 0, HERE))
    bench.tell(ME, OUT)
    assert failure(bench).fault is ef.Fault.TEXT


@pytest.mark.parametrize("token_hash", [b"", OTHER])
def test_a_doubt_that_nobody_shares_changes_nothing(token_hash: bytes) -> None:
    """Also if the machine is left out later, for something else."""
    bench = member()
    bench.tell(THIRD, accusation(PEER, 4, token_hash))
    bench.feed(ev.Diagnosed(1, 4, PEER, None, "", ""))
    assert not bench.kinds(ef.Failed)
    board = bench.core._board
    board.applied, board.committed, board.hashes[1] = 1, 1, STATE.hash
    bench.tell(ME, structs.replace(OUT, step=2))
    assert failure(bench).fault is ef.Fault.UNSOUND


def test_an_audit_of_other_text_is_no_verdict_about_the_gradient() -> None:
    """The auditor may be the one whose text is another: nothing goes back."""
    bench = Bench(audit=lambda: True)
    bench.works(PEER, SET)
    ours = tuple(
        structs.replace(toy.gradient(STATE, 1, slot)[0], token_hash=OTHER, digest=OTHER)
        for slot in SET
    )
    for reference in (False, True):
        bench.feed(ev.Audited(1, SET, reference, ours, (b"p",), b""))
    assert not bench.kinds(ef.Rewind)
    assert not any(isinstance(e.message, m.Wrong) for e in bench.kinds(ef.Send))
    assert accused(bench)[PEER].token_hash == OTHER
