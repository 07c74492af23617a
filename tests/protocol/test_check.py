"""The check of a step, at one core fed by hand: what it asks, what it believes, what it answers."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol import messages as m
from p2pnode.protocol.evidence import summarise
from p2pnode.rehearse import toy
from tests.harness.calm import Recorder
from tests.protocol.core_bench import ME, PEER, RUN, STATE, THIRD, Bench, computed, pledge

SETS = {ME: (0, 1), PEER: (2, 3), THIRD: (4, 5)}
APPLIED = b"a" * 32


def gradient_sum(slots: Any) -> tuple[int, ...]:
    return toy.add([toy.gradient(STATE, 1, slot)[1] for slot in slots])


def applied(bench: Bench, forged: int = 0) -> list[ef.Effect]:
    """All sums of step 1 are here and applied; `forged` is added to one value of another's."""
    bench.feed(computed((0, 1)))
    for peer in (PEER, THIRD):
        bench.works(peer, SETS[peer])
        bench.status(peer, sets=(SETS[peer],))
    (reduce,) = bench.kinds(ef.Reduce)
    total = gradient_sum(range(6))
    summary = summarise([toy.gradient(STATE, 1, slot)[0] for slot in range(6)])
    for index, peer in enumerate((ME, PEER, THIRD)):
        low, high = m.Shard(index, 3).bounds(toy.PARAMETERS)
        values = list(total[low:high])
        if peer == ME:
            bench.feed(ev.Reduced(1, m.Shard(0, 3), reduce.ticket, toy.pack(values)))
            continue
        values[0] += forged if peer == PEER else 0
        message = m.ShardSum(RUN, 1, STATE.hash, m.Shard(index, 3), summary)
        bench.tell(peer, message, toy.pack(values))
    assert bench.kinds(ef.Apply)
    effects = bench.feed(ev.Applied(1, APPLIED))
    for peer in (PEER, THIRD):
        bench.status(peer, applied=1, state_hash=APPLIED, checked=1, before=(SETS[peer],))
    return effects


def weigh(bench: Bench, effects: list[ef.Effect]) -> None:
    """Carry out Weigh effects."""
    for effect in bench.kinds(ef.Weigh, effects):
        values = [value for part in effect.parts for value in toy.unpack(part)]
        bench.feed(ev.Weighed(effect.ticket, toy.weigh(values, effect.nonce)))


def challenges(bench: Bench) -> dict[bytes, m.Challenge]:
    return {e.peer: e.message for e in bench.kinds(ef.Send) if isinstance(e.message, m.Challenge)}


def answer(bench: Bench, peer: bytes, change: int = 0) -> list[ef.Effect]:
    nonce = challenges(bench)[peer].nonce
    value = toy.weigh(gradient_sum(SETS[peer]), nonce) + change
    return bench.tell(peer, m.Answer(RUN, 1, nonce, ((SETS[peer], value),), ()))


def test_a_step_is_committed_when_its_sums_are_those_of_all_workers() -> None:
    bench = Bench()
    weigh(bench, applied(bench))
    assert set(challenges(bench)) == {PEER, THIRD}
    answer(bench, PEER)
    assert not bench.kinds(ef.Commit), "one answer is missing"
    answer(bench, THIRD)
    assert [commit.step for commit in bench.kinds(ef.Commit)] == [1]


def test_wrong_sums_are_rolled_back_and_recounted() -> None:
    bench = Bench()
    weigh(bench, applied(bench, forged=1))
    answer(bench, PEER)
    effects = answer(bench, THIRD)
    assert ef.Rollback(1) in effects
    assert bench.core.applied == 0
    bench.feed(ev.Tick(), later=2.5)
    wants = {e.peer: e.message for e in bench.kinds(ef.Send) if isinstance(e.message, m.Want)}
    assert {peer: want.slots for peer, want in wants.items()} == {PEER: (2, 3), THIRD: (4, 5)}
    assert not bench.kinds(ef.Commit)


def test_answers_count_only_from_those_asked_under_the_nonce_asked() -> None:
    bench = Bench()
    weigh(bench, applied(bench))
    value = toy.weigh(gradient_sum((4, 5)), b"another nonce 16")
    bench.tell(THIRD, m.Answer(RUN, 1, b"another nonce 16", (((4, 5), value),), ()))
    answer(bench, PEER)
    assert not bench.kinds(ef.Commit)
    assert not bench.kinds(ef.Rollback)


def test_the_hash_of_a_state_that_its_owner_has_not_checked_says_nothing() -> None:
    bench = Bench()
    weigh(bench, applied(bench))
    bench.status(THIRD, applied=1, state_hash=b"other" * 6 + b"xx", checked=0, before=((4, 5),))
    answer(bench, PEER)
    answer(bench, THIRD)
    assert not bench.kinds(ef.Verify), "no inquiry, it may yet be rolled back"
    assert not bench.kinds(ef.Commit), "but it is waited for"


def test_no_nonce_comes_twice() -> None:
    run = Recorder(3)
    run.finish()
    drawn = {(c.step, c.nonce) for c in run.messages(m.Challenge)}
    assert len(drawn) == len({nonce for _, nonce in drawn}) == 3 * 8, "of each node for each step"


def test_a_nonce_costs_one_look_and_only_a_few_are_answered() -> None:
    bench = Bench()
    bench.feed(computed((0, 1)))
    before = len(bench.all)
    for number in (1, 1, 1, 2, 3, 4, 5, 6, 7):
        nonce = bytes([number]) * 16
        effects = bench.tell(PEER, m.Challenge(RUN, 1, STATE.hash, nonce, ()))
        weigh(bench, effects)
    assert len(bench.kinds(ef.Weigh, bench.all[before:])) == 4
    answers = [e.message for e in bench.kinds(ef.Send) if isinstance(e.message, m.Answer)]
    assert [message.nonce[0] for message in answers] == [1, 1, 1, 2, 3, 4]
    expected = toy.weigh(gradient_sum((0, 1)), b"\1" * 16)
    assert answers[0].values == (((0, 1), expected),)


def test_a_challenge_about_another_state_is_not_answered() -> None:
    bench = Bench()
    bench.feed(computed((0, 1)))
    effects = bench.tell(PEER, m.Challenge(RUN, 1, b"o" * 32, b"n" * 16, ()))
    assert not bench.kinds(ef.Weigh, effects)


def test_who_names_another_pledge_is_sent_ours() -> None:
    bench = Bench()
    bench.tell(THIRD, pledge(PEER, (2, 3)))
    name = m.Seen(PEER, (2, 3), STATE.hash, b"d" * 32)
    effects = bench.tell(THIRD, m.Challenge(RUN, 1, STATE.hash, b"", (name,)))
    sent = [e.message for e in bench.kinds(ef.Send, effects) if e.peer == THIRD]
    assert pledge(PEER, (2, 3)) in sent
    same = structs.replace(name, base=b"o" * 32)
    effects = bench.tell(THIRD, m.Challenge(RUN, 1, STATE.hash, b"", (same,)))
    assert not [e for e in bench.kinds(ef.Send, effects) if isinstance(e.message, m.Pledge)]


def test_who_denies_its_own_pledge_is_named() -> None:
    bench = Bench()
    bench.tell(PEER, pledge(PEER, (2, 3)))
    name = m.Seen(PEER, (2, 3), STATE.hash, b"d" * 32)
    bench.tell(PEER, m.Answer(RUN, 1, b"", (), (name,)))
    assert PEER in bench.plans()[-1].excluded
