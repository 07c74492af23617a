"""The protocol's invariants under any order of events that hypothesis can think of.

Three nodes. Nothing arrives unless a rule delivers it; time passes only by a rule. After each rule
the invariants must hold, and at the end, when everything is healed, the run must end well.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from p2pnode.protocol import effects as ef
from p2pnode.protocol import recover
from p2pnode.protocol.messages import PeerId, Plan
from p2pnode.protocol.verdict import Verdict
from p2pnode.rehearse import toy
from p2pnode.rehearse.machine import Machine
from p2pnode.rehearse.network import Link, Network
from p2pnode.rehearse.oracle import check, over
from p2pnode.rehearse.world import World

NODES = 3
SETTINGS = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Channel = tuple[PeerId, PeerId, bool]


class Wire(Network):
    """Messages wait on the wire until they are delivered."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.duplicates = 0.0
        self.waiting: dict[Channel, deque[tuple[Link, int, Callable[[], None]]]]
        self.waiting = defaultdict(deque)
        self.automatic = False

    def hop(
        self,
        sender: PeerId,
        receiver: PeerId,
        raw: bytes,
        bulk: bool,
        then: Callable[[], None],
        item: tuple[PeerId, object] | None = None,
    ) -> None:
        if self.automatic:
            super().hop(sender, receiver, raw, bulk, then, item)
            return
        link = self._links.get(frozenset((sender, receiver)))
        if link is not None and link.up:
            self.waiting[sender, receiver, bulk].append((link, link.session, then))

    def channels(self) -> list[Channel]:
        return sorted(channel for channel, queue in self.waiting.items() if queue)

    def deliver(self, channel: Channel, keep: bool = False) -> None:
        queue = self.waiting[channel]
        link, session, then = queue[0] if keep else queue.popleft()
        if link.up and link.session == session:
            then()

    def flush(self) -> None:
        while channels := self.channels():
            for channel in channels:
                self.deliver(channel)


class Protocol(RuleBasedStateMachine):
    """What may happen to three nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(1, slots=4, steps=6)
        self.world.net = self.wire = Wire(self.world)
        self.world.observe = self.observe
        self.reached: dict[PeerId, int] = defaultdict(int)
        """Highest step that each machine ever applied."""
        self.plans: dict[tuple[int, int, int], Plan] = {}
        self.committed: dict[tuple[PeerId, int], int] = {}
        self.leaders: dict[int, PeerId] = {}
        self.breaches: list[str] = []

    def observe(self, machine: Machine, effect: ef.Effect) -> None:
        """Look at what a core just decided."""
        match effect:
            case ef.Commit(step=step):
                plan = machine.core.plan
                for peer in plan.roster if plan is not None else ():
                    if effect.summary is not None and self._reached(peer) < step:
                        self.breaches.append(
                            f"{machine.name} committed step {step} before all had applied it"
                        )
                key = machine.me, machine.boots
                if step <= self.committed.get(key, -1):
                    self.breaches.append(f"{machine.name} committed step {step} again")
                self.committed[key] = step
            case ef.Send(message=Plan() as plan):
                known = self.plans.setdefault((plan.key.term, plan.key.attempt, plan.step), plan)
                if known != plan:
                    self.breaches.append(f"two plans of step {plan.step} have one key")

    def _reached(self, peer: PeerId) -> int:
        machine = self.world.machines[peer]
        if machine.up:
            self.reached[peer] = max(self.reached[peer], machine.work.state.step)
        return self.reached[peer]

    @initialize()
    def start(self) -> None:
        self.nodes = [self.world.add(0.1) for _ in range(NODES)]
        self.world.start(self.nodes, after=0.0)
        self.world.run(0.6, lambda: False)

    # Rules

    @precondition(lambda self: self.wire.channels())
    @rule(data=st.data(), count=st.sampled_from([1, 1, 3, 10]))
    def deliver(self, data: st.DataObject, count: int) -> None:
        channel = data.draw(st.sampled_from(self.wire.channels()))
        for _ in range(min(count, len(self.wire.waiting[channel]))):
            self.wire.deliver(channel)

    @rule()
    def deliver_all(self) -> None:
        for channel in self.wire.channels():
            for _ in range(len(self.wire.waiting[channel])):
                self.wire.deliver(channel)

    @rule(times=st.sampled_from([2, 5, 20]))
    def work(self, times: int) -> None:
        """Everything arrives, time passes: so that runs get somewhere."""
        for _ in range(times):
            self.world.run(self.world.now + 0.1, lambda: False)
            self.wire.flush()

    @precondition(lambda self: self.wire.channels())
    @rule(data=st.data())
    def duplicate(self, data: st.DataObject) -> None:
        self.wire.deliver(data.draw(st.sampled_from(self.wire.channels())), keep=True)

    @rule(a=st.integers(0, NODES - 1), b=st.integers(1, NODES - 1), down=st.floats(0.0, 12.0))
    def drop(self, a: int, b: int, down: float) -> None:
        """A link breaks: what is on the wire is lost."""
        self.world.net.flap(self.nodes[a], self.nodes[(a + b) % NODES], down)

    @rule(node=st.integers(0, NODES - 1))
    def crash(self, node: int) -> None:
        if sum(machine.up for machine in self.nodes) > 1:
            self._reached(self.nodes[node].me)
            self.world.crash(self.nodes[node])

    @rule(node=st.integers(0, NODES - 1), wiped=st.booleans())
    def restart(self, node: int, wiped: bool) -> None:
        if not self.nodes[node].up:
            self.world.restart(self.nodes[node], wiped)

    @rule(node=st.integers(0, NODES - 1), seconds=st.sampled_from([2.0, 12.0]))
    def partition(self, node: int, seconds: float) -> None:
        self.world.net.partition([self.nodes[node]], seconds)

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 4.0, 9.0]))
    def tick(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds, lambda: False)

    # Invariants

    @invariant()
    def nothing_was_breached(self) -> None:
        assert not self.breaches, self.breaches

    @invariant()
    def only_right_states_are_committed(self) -> None:
        right = toy.undisturbed(self.world.slots, self.world.steps)
        for step, hashes in self.world.commits.items():
            assert hashes == {right[step]}

    @invariant()
    def one_leader_for_each_term(self) -> None:
        for machine in self.world.machines.values():
            if machine.up and not machine.released and machine.core.leading:
                leader = self.leaders.setdefault(machine.core.term, machine.me)
                assert leader == machine.me, f"two lead in term {machine.core.term}"

    @invariant()
    def at_most_one_step_waits_for_hashes(self) -> None:
        for machine in self.world.machines.values():
            if machine.up:
                assert machine.core.applied - machine.core.committed in (0, 1)

    def teardown(self) -> None:
        if not self.world.machines:
            return
        self.wire.flush()
        self.wire.automatic = True
        for machine in self.nodes:
            if not machine.up and not machine.released:
                self.world.restart(machine)
        self.world.run(self.world.now + 200.0, lambda: over(self.world))
        check(self.world)
        self.nothing_was_breached()


def test_invariants_hold_whatever_the_order_of_events() -> None:
    run_state_machine_as_test(Protocol, settings=SETTINGS)  # type: ignore[no-untyped-call]


def commits_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Verdict, "committed", lambda self: True)


def terms_have_no_life(patch: pytest.MonkeyPatch) -> None:
    next_term = recover.next_term
    patch.setattr(recover, "next_term", lambda term, rank, boot: next_term(term, rank, 0))


@pytest.mark.parametrize(
    ("mutant", "what"),
    [
        (commits_do_not_wait, "before all had applied it"),
        (terms_have_no_life, "have one key"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_a_broken_protocol_is_seen(
    mutant: Callable[[pytest.MonkeyPatch], None], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    unshrunk = settings(SETTINGS, max_examples=200, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=what):
        run_state_machine_as_test(Protocol, settings=unshrunk)  # type: ignore[no-untyped-call]
