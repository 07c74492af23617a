"""Records in a group: stops and changed settings, on one side of a cut, on both, late, and by a
successor. The answer is always the undisturbed one-node run of the chain that wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from p2pnode.protocol import effects as ef
from p2pnode.protocol.chain import END, Chain
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.ending import Finish
from p2pnode.protocol.events import MessageReceived, Redirected
from p2pnode.protocol.messages import Contribution
from p2pnode.rehearse import toy
from p2pnode.rehearse.faults import Kind
from p2pnode.rehearse.machine import Machine
from p2pnode.rehearse.scenario import Outcome, attempt, write
from p2pnode.rehearse.work import Work
from p2pnode.rehearse.world import World
from tests.harness.calm import Recorder


def ended(run: Recorder, nodes: list[Machine] | None = None) -> Chain:
    """Let the run end; all must hold one chain and have its hash."""
    run.finish()
    chains = {node.chain.ids: node.chain for node in nodes or run.nodes}
    assert len(chains) == 1
    chain = next(iter(chains.values()))
    right = toy.line(chain.config)[chain.last_step]
    assert {node.finished.state_hash for node in nodes or run.nodes if node.finished} == {right}
    return chain


def test_a_stop_ends_the_run_at_one_step_everywhere() -> None:
    run = Recorder(3, steps=60)
    run.at_step(5)
    step = run.stop(0)
    assert 5 <= step <= 7
    assert ended(run).last_step == step
    assert {node.finished.ending for node in run.nodes if node.finished} == {ef.Ending.STOPPED}
    assert all(node.boots == 1 for node in run.nodes), "nobody had to begin again"


def test_changed_settings_hold_from_one_step_on_everywhere() -> None:
    run = Recorder(3, steps=20)
    run.at_step(5)
    step = run.change(0, steps=30, lr=0.009)
    chain = ended(run)
    assert chain.last_step == 30
    assert toy.line(chain.config)[step] == toy.undisturbed(6, 20)[step]
    assert toy.line(chain.config)[20] != toy.undisturbed(6, 20)[20]
    assert all(node.boots == 1 for node in run.nodes), "nobody had to begin again"


def test_who_finished_goes_on_when_steps_are_added() -> None:
    run = Recorder(2, steps=8, apart=())
    run.world.net.partition([run.nodes[1]], 4.0)
    run.when(lambda: run.nodes[0].finished is not None)
    assert not run.nodes[0].released, "the other is cut off, and may need it"
    run.change(0, steps=16)
    assert ended(run).last_step == 16


def test_a_later_stop_reaches_who_has_finished() -> None:
    """A node that serves others after its last step takes up the ordered state."""
    run = Recorder(3, steps=40)
    run.at_step(5)
    host, *others = run.nodes
    host.slot_time = 20.0  # it is still at work when the others have finished
    for peer in others:
        run.world.net.link_down(host, peer)
    run.when(lambda: any(peer.finished and not peer.released for peer in others))
    node, other = sorted(others, key=lambda peer: peer.finished is None)
    assert other.finished is None, "it has not told the first one yet that it has, too"
    run.world.crash(other)
    host.slot_time = 0.1
    step = run.stop(0)
    assert step < 12
    node.hear(host.me, host.chain.signed)
    run.world.net.link_up(host, node, run.world.now + 0.1)
    assert ended(run, [host, node]).last_step == step


def test_a_host_that_is_cut_off_waits_to_hand_out_its_order() -> None:
    run = Recorder(3, steps=300, slot_time=0.2)
    run.at_step(5)
    host = run.nodes[0]
    run.world.net.partition([host], 20.0)
    run.pass_time(10.0)
    step = run.stop(0)
    run.when(lambda: host.finished is not None)
    run.pass_time(3.0)
    assert run.nodes[1].core.last_step == 300, "it has not heard of it"
    assert ended(run).last_step == step


def test_the_longer_chain_wins_though_the_others_are_further() -> None:
    run = Recorder(3, steps=300, slot_time=0.5)
    run.at_step(5)
    host = run.nodes[0]
    run.world.net.partition([host], 30.0)
    run.pass_time(20.0)
    host.slot_time = 5.0
    run.pass_time(8.0)
    assert run.nodes[1].core.committed > host.core.committed + 4
    step = run.stop(0)
    assert ended(run).last_step == step
    assert {node.finished.step for node in run.nodes if node.finished} == {step}


def test_settings_changed_on_both_sides_resolve_to_the_longer_chain() -> None:
    run = Recorder(4, steps=60, slot_time=0.2)
    run.at_step(5)
    run.world.net.partition([run.nodes[0], run.nodes[3]], 25.0)
    run.pass_time(15.0)
    run.change(0, steps=50)
    run.change(1, lr=0.011)
    run.pass_time(5.0)
    run.change(1, steps=40)
    chain = ended(run)
    assert [record.signer for record in chain.records[1:]] == [run.nodes[1].me] * 2
    assert chain.last_step == 40


def test_of_two_equal_chains_the_earlier_signer_in_join_order_wins() -> None:
    run = Recorder(4, steps=60, slot_time=0.2)
    run.at_step(5)
    run.world.net.partition([run.nodes[0], run.nodes[3]], 25.0)
    run.pass_time(15.0)
    run.change(1, steps=40)
    run.change(3, steps=50)
    assert ended(run).newest.signer == run.nodes[1].me


def test_a_returning_host_follows_the_longer_chain() -> None:
    run = Recorder(3, steps=60)
    run.at_step(5)
    run.world.crash(run.nodes[0])
    run.pass_time(15.0)
    run.change(1, steps=40)
    run.pass_time(2.0)
    run.world.restart(run.nodes[0])
    assert len(run.nodes[0].chain.ids) == 1
    assert ended(run).last_step == 40


def test_a_state_that_nobody_has_any_more_is_computed_again() -> None:
    """All who were at the ordered step are gone: it is a function of what everybody knows."""
    run = Recorder(3, steps=60, slot_time=0.2)
    run.at_step(5)
    host = run.nodes[0]
    run.world.net.partition([host], 30.0)
    run.pass_time(25.0)
    step = run.stop(0)
    run.when(lambda: run.nodes[1].chain.stopped)
    run.world.crash(host)
    assert ended(run, run.nodes[1:]).last_step == step


def test_a_newcomer_learns_of_all_that_was_changed() -> None:
    run = Recorder(2, steps=30)
    run.at_step(4)
    run.change(0, lr=0.009)
    run.at_step(8)
    run.change(0, lr=0.004)
    run.at_step(12)
    joiner = run.join()
    chain = ended(run, [*run.nodes, joiner])
    assert len(chain.config.past) == 2


def test_a_rewind_leaves_out_a_peer_and_what_came_after() -> None:
    run = Recorder(3, steps=30)
    run.at_step(12)
    host = run.nodes[0]
    state = toy.undisturbed(6, 30)[9]
    victim = run.nodes[2]
    host.take(host.chain.rewind(host.identity, 9, state, [victim.me]), here=True)
    run.when(lambda: run.nodes[1].chain.excluded != ())
    assert run.nodes[1].work.state.step <= 9
    run.when(lambda: victim.failed is not None)
    victim.up = False
    chain = ended(run, run.nodes[:2])
    assert chain.last_step == 30
    assert run.nodes[1].finished
    assert run.nodes[1].finished.state_hash == toy.undisturbed(6, 30)[30]


def test_messages_of_an_abandoned_record_are_ignored() -> None:
    run = Recorder(2, steps=30)
    run.at_step(4)
    run.change(0, lr=0.009)
    run.when(lambda: len(run.nodes[1].chain.ids) == 2)
    node, before = run.nodes[1], len(run.effects)
    old = next(m for m in run.messages(Contribution, "n0"))
    node.feed(MessageReceived(run.nodes[0].me, old, b"nonsense"))
    assert not [e for _, name, e in run.effects[before:] if name == "n1"]
    ended(run)


@pytest.mark.parametrize("moment", [x * 0.11 for x in range(1, 19)])
@pytest.mark.parametrize("order", ["stop", "change"])
def test_a_successor_takes_over_at_every_point(moment: float, order: str) -> None:
    """The host is lost at some point of a step; the next in order gives the next record."""
    run = Recorder(3, steps=60)
    run.at_step(3)
    run.pass_time(moment)
    run.world.crash(run.nodes[0])
    run.pass_time(12.0 * moment)
    if order == "stop":
        run.stop(1)
    else:
        run.change(1, steps=65, lr=0.005)
    assert ended(run, run.nodes[1:]).newest.signer == run.nodes[1].me


# Rules taken out: each must be seen


Patch = pytest.MonkeyPatch
KINDS = (Kind.PARTITION, Kind.STOP, Kind.CHANGE, Kind.FLAP)


def highest_step_wins(patch: Patch) -> None:
    prefers = Machine.prefers
    patch.setattr(
        Machine,
        "prefers",
        lambda self, chain: prefers(self, chain) and chain.branch(self.chain) >= self.core.applied,
    )


def test_a_step_that_is_being_applied_counts_as_reached() -> None:
    """Its sums are of the old settings: a record that begins before it needs another session."""
    run = Recorder(1)
    host = run.nodes[0]
    run.when(lambda: host.core.applied > 0 and bool(host.core._applier.running))
    after = host.core.applied
    config = host.chain.config.changed(after, steps=None, lr=0.001, warmup=None)
    changed = host.chain.change(host.identity, after, config)
    assert host.core.reached == after + 1
    assert not changed.goes_on(host.chain, host.core.reached)


def a_later_signer_wins(patch: Patch) -> None:
    patch.setattr(
        Machine, "prefers", lambda self, chain: chain.beats(self.chain, self.world.members[::-1])
    )


def first_come_first_served(patch: Patch) -> None:
    prefers = Machine.prefers
    patch.setattr(
        Machine,
        "prefers",
        lambda self, chain: prefers(self, chain) and len(chain.ids) > len(self.chain.ids),
    )


def records_are_told_once(patch: Patch) -> None:
    patch.setattr(World, "greet", lambda *_: None)


def who_is_beyond_goes_on(patch: Patch) -> None:
    patch.setattr(Chain, "goes_on", lambda *_: True)


def what_is_on_its_way_is_forgotten(patch: Patch) -> None:
    """Sums of the old settings that were taken, or are being applied, are used under the new."""
    patch.setattr(StepCore, "reached", StepCore.applied)


def an_old_state_is_taken_up_whatever_made_it(patch: Patch) -> None:
    patch.setattr(Work, "usable", lambda *_: True)


def new_settings_are_not_used(patch: Patch) -> None:
    perform = Work._apply

    def mutant(self: Work, task: ef.Apply) -> Any:
        machine, chain = self._machine, self._machine.chain
        machine.chain = dataclasses.replace(chain, config=chain.config.at(1))
        event = perform(self, task)
        machine.chain = chain
        return event

    patch.setattr(Work, "_apply", mutant)


@pytest.mark.parametrize(
    "mutate",
    [
        highest_step_wins,
        who_is_beyond_goes_on,
        an_old_state_is_taken_up_whatever_made_it,
        new_settings_are_not_used,
    ],
    ids=lambda mutate: mutate.__name__,
)
def test_chaos_sees_a_rule_taken_out(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    scripts = [write(seed, 4, KINDS) for seed in range(150)]
    mutate(monkeypatch)
    caught = next((s.seed for s in scripts if not isinstance(attempt(s), Outcome)), None)
    assert caught is not None


def states_of_a_wrong_past_are_kept(patch: Patch) -> None:
    patch.setattr(Chain, "limit", lambda self, older: self.last_step)
    patch.setattr(Chain, "discarded_after", lambda self, older: END)


def an_order_goes_with_who_gave_it(patch: Patch) -> None:
    redirect = Finish.redirect
    patch.setattr(
        Finish,
        "redirect",
        lambda self, event: redirect(self, dataclasses.replace(event, here=False)),
    )


def any_tag_is_taken(patch: Patch) -> None:
    redirect = Finish.redirect

    def mutant(self: Finish, event: Redirected) -> None:
        redirect(self, dataclasses.replace(event, run=self._board.setup.run))

    patch.setattr(Finish, "redirect", mutant)


@pytest.mark.parametrize(
    ("mutate", "directed"),
    [
        (a_later_signer_wins, test_of_two_equal_chains_the_earlier_signer_in_join_order_wins),
        (first_come_first_served, test_of_two_equal_chains_the_earlier_signer_in_join_order_wins),
        (records_are_told_once, test_a_returning_host_follows_the_longer_chain),
        (an_order_goes_with_who_gave_it, test_a_host_that_is_cut_off_waits_to_hand_out_its_order),
        (states_of_a_wrong_past_are_kept, test_a_rewind_leaves_out_a_peer_and_what_came_after),
        (any_tag_is_taken, test_messages_of_an_abandoned_record_are_ignored),
        (what_is_on_its_way_is_forgotten, test_a_step_that_is_being_applied_counts_as_reached),
    ],
)
def test_a_directed_run_sees_a_rule_taken_out(
    mutate: Callable[[Patch], None], directed: Callable[[], None], monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        directed()
