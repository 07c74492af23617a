"""A peer whose text is lacking takes part without work, as long as others have it."""

from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol import messages as m
from tests.protocol.core_bench import ME, PEER, SET, THIRD, Bench, computed


def workers(plan: m.Plan) -> set[bytes]:
    return {plan.roster[i] for work in plan.work for i in work.workers}


def test_its_sets_go_to_others_and_it_stays_in_the_roster() -> None:
    bench = Bench()
    bench.status(PEER, lacking=True)
    plan = bench.plans()[-1]
    assert plan.roster == (ME, PEER, THIRD)
    assert plan.owners == (0, 1, 2)
    assert workers(plan) == {ME, THIRD}
    assert sorted(slot for work in plan.work for slot in work.slots) == list(range(6))
    kept = {work.slots for work in plan.work}
    assert {(0, 1), (4, 5)} <= kept, "sets of the others stay as they are"
    count = len(bench.plans())
    for _ in range(5):
        bench.status(PEER, lacking=True)
    assert len(bench.plans()) == count


def test_a_set_that_it_has_done_stays_its_own() -> None:
    bench = Bench()
    bench.status(PEER, lacking=True, sets=(SET,))
    assert workers(bench.plans()[0]) == {ME, PEER, THIRD}
    assert all(work.workers == (1,) for work in bench.plans()[-1].work if work.slots == SET)


def test_if_all_lack_it_the_run_waits_as_it_is() -> None:
    bench = Bench()
    count = len(bench.plans())
    bench.feed(ev.Supply(True))
    assert bench.statuses()[-1].lacking, "others are told at once"
    bench.status(PEER, lacking=True)
    bench.status(THIRD, lacking=True)
    plans = bench.plans()[count:]
    assert sorted(slot for work in bench.plans()[-1].work for slot in work.slots) == list(range(6))
    bench.status(PEER, lacking=True)
    assert bench.plans()[count:] == plans
    bench.feed(ev.Supply(False))
    assert workers(bench.plans()[-1]) == {ME}
    bench.feed(computed(bench.kinds(ef.Compute)[-1].slots))
