"""Seeded chaos: a world, what happens in it, and the oracle.

The oracle: no node ever commits a state other than that of the undisturbed one-node run, and every
node that lives at the end has finished with the hash of the last step, in bounded time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2pnode.protocol import events as ev
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.effects import Kind, Report
from p2pnode.protocol.messages import StopOrder
from tests.harness import toy
from tests.harness.machine import Faults, Machine
from tests.harness.world import World

PATIENCE = 200.0
"""Simulated seconds after the last disturbance within which everybody must have finished, beyond
what the slowest machine would need alone."""


class OracleError(AssertionError):
    """A run broke the promise; the message says how."""


@dataclass
class Outcome:
    """What a finished scenario was like."""

    world: World
    story: list[str] = field(default_factory=list)
    took: float = 0.0


def check(world: World) -> None:
    """Raise OracleError unless the world kept the promise (call when it is over)."""
    expected = toy.undisturbed(world.slots, world.steps)
    for step, hashes in world.commits.items():
        if hashes != {expected[step]}:
            raise OracleError(f"a state of step {step} was committed that is not the right one")
    ends = set()
    for machine in world.machines.values():
        if not machine.up or machine.faults.wrong_apply_at:
            continue
        if machine.failed is not None:
            # Of two that differ nobody can say who is right, if the wrong one is gone.
            undecided = "no majority" in machine.failed.text and any(
                other.faults.wrong_apply_at for other in world.machines.values()
            )
            if machine.faults == Faults() and not undecided:
                raise OracleError(f"{machine.name} is sound, but failed: {machine.failed.text}")
            continue
        if machine.stripped and not any(
            isinstance(report, Report) and report.kind is Kind.REFUSED and report.peer == machine.me
            for _, report in world.reports
        ):
            raise OracleError(f"{machine.name} sent work without a probe and was not refused")
        if machine.finished is None:
            raise OracleError(
                f"{machine.name} did not finish: it is at step {machine.core.applied} of "
                f"{machine.core.last_step} after {world.now:.0f} s"
            )
        if machine.finished.state_hash != expected[machine.finished.step]:
            raise OracleError(f"{machine.name} finished with another hash")
        ends.add(machine.finished.step)
    if len(ends) > 1:
        raise OracleError(f"the nodes ended at different steps: {sorted(ends)}")


def over(world: World) -> bool:
    """Every machine that runs has finished or failed."""
    return all(
        machine.finished is not None or machine.failed is not None
        for machine in world.machines.values()
        if machine.up
    )


class Scenario:
    """A world with disturbances drawn from its seed."""

    def __init__(
        self, seed: int, *, trace: bool = False, core_class: type[StepCore] = StepCore
    ) -> None:
        world = self.world = World(seed, trace=trace, core_class=core_class)
        random = world.random
        self.story: list[str] = []
        self.end_of_trouble = 0.0
        self._slowest = 0.0
        world.slots = random.choice([3, 6, 8])
        world.steps = random.choice([4, 8, 8, 14, 24])
        world.bandwidth = random.choice([3_000.0, 20_000.0, 200_000.0])
        world.delay = random.choice([(0.001, 0.01), (0.005, 0.08), (0.05, 0.4)])
        self.first = [
            world.add(random.choice([0.02, 0.1, 0.1, 0.3]))
            for _ in range(random.choice([1, 2, 3, 3, 4, 5]))
        ]
        self.safe = random.choice(self.first)
        """Lives to the end."""
        self._span = 0.3 * world.steps
        for i, a in enumerate(self.first):
            for b in self.first[:i]:
                if len(self.first) > 2 and random.random() < 0.1:
                    self._tell(0.0, f"{a.name} and {b.name} can never link")
                    world.never_link(a, b)
        if len(self.first) > 1 and random.random() < 0.1:
            sick = random.choice([machine for machine in self.first if machine is not self.safe])
            step = random.randint(1, world.steps)
            sick.faults = random.choice(
                [
                    Faults(bad_probe_at=step),
                    Faults(no_probe_at=step),
                    Faults(wrong_apply_at=step),
                    Faults(false_claim_at=step),
                    Faults(strips_probe_at=1),
                ]
            )
            self._tell(0.0, f"{sick.name} is sick: {sick.faults}")
        world.start(self.first, after=random.choice([0.0, 0.6, 0.6]))
        kinds = [
            self._crash,
            self._crash,
            self._crash_and_restart,
            self._pause,
            self._flap,
            self._flap,
            self._partition,
            self._one_way,
            self._slow,
            self._join,
            self._join,
            self._leave,
        ]
        troubles = random.choice([0, 1, 1, 2, 3, 5])
        if any(m.faults.wrong_apply_at or m.faults.strips_probe_at for m in self.first):
            troubles = 0  # alone with a wrong machine, nobody could tell
        for _ in range(troubles):
            random.choice(kinds)(random.uniform(0.0, self._span))
        if random.random() < 0.1:
            self._stop(random.uniform(0.6, 0.6 + self._span))

    def run(self) -> Outcome:
        """Run to the end and check. Raises OracleError."""
        world = self.world
        slowest = max(self._slowest, *(m.slot_time for m in world.machines.values()))
        alone = 1.5 * slowest * world.slots * world.steps
        limit = self.end_of_trouble + PATIENCE + alone
        settled = lambda: world.now >= self.end_of_trouble and over(world)  # noqa: E731
        world.run(limit, settled)
        check(world)
        return Outcome(world, self.story, world.now)

    # Disturbances

    def _tell(self, when: float, text: str, until: float | None = None) -> None:
        self.story.append(f"{when:6.2f} {text}")
        self.end_of_trouble = max(self.end_of_trouble, when if until is None else until)

    def _victims(self) -> list[Machine]:
        return [machine for machine in self.world.machines.values() if machine is not self.safe]

    def _pair(self) -> tuple[Machine, Machine] | None:
        machines = list(self.world.machines.values())
        if len(machines) < 2:
            return None
        a, b = self.world.random.sample(machines, 2)
        return a, b

    def _crash(self, when: float) -> None:
        victims = self._victims()
        if victims:
            victim = self.world.random.choice(victims)
            self._tell(when, f"{victim.name} crashes for good")
            self.world.at(when, lambda: self.world.crash(victim))

    def _crash_and_restart(self, when: float) -> None:
        victim = self.world.random.choice(list(self.world.machines.values()))
        back = when + self.world.random.choice([0.1, 1.0, 5.0, 15.0])
        self._tell(when, f"{victim.name} crashes and restarts at {back:.2f}", back)
        self.world.at(when, lambda: self.world.crash(victim))
        self.world.at(back, lambda: self.world.restart(victim))

    def _pause(self, when: float) -> None:
        victim = self.world.random.choice(list(self.world.machines.values()))
        until = when + self.world.random.choice([1.0, 6.0, 12.0, 40.0])
        self._tell(when, f"{victim.name} stands still until {until:.2f}", until)
        self.world.at(when, lambda: setattr(victim, "paused_until", until))

    def _flap(self, when: float) -> None:
        pair = self._pair()
        if pair is not None:
            seconds = self.world.random.choice([0.1, 1.0, 5.0, 20.0])
            self._tell(
                when, f"{pair[0].name}-{pair[1].name} is down for {seconds} s", when + seconds
            )
            self.world.at(when, lambda: self.world.flap(*pair, seconds))

    def _partition(self, when: float) -> None:
        machines = list(self.world.machines.values())
        if len(machines) > 1:
            group = self.world.random.sample(
                machines, self.world.random.randint(1, len(machines) - 1)
            )
            seconds = self.world.random.choice([2.0, 12.0, 40.0])
            names = ", ".join(machine.name for machine in group)
            self._tell(when, f"{names} cut off for {seconds} s", when + seconds + 2.0)
            self.world.at(when, lambda: self.world.partition(group, seconds))

    def _one_way(self, when: float) -> None:
        pair = self._pair()
        if pair is not None:
            seconds = self.world.random.choice([3.0, 15.0, 60.0])
            self._tell(
                when,
                f"frames {pair[0].name} -> {pair[1].name} vanish for {seconds} s",
                when + seconds,
            )
            self.world.at(when, lambda: self.world.block(*pair, seconds))

    def _slow(self, when: float) -> None:
        victim = self.world.random.choice(list(self.world.machines.values()))
        self._tell(when, f"{victim.name} becomes very slow")
        self._slowest = 2.0
        self.world.at(when, lambda: setattr(victim, "slot_time", 2.0))

    def _join(self, when: float) -> None:
        world = self.world
        machine = world.add(world.random.choice([0.05, 0.1]))
        self._tell(when, f"{machine.name} joins", when + 1.0)

        def happen() -> None:
            # Else there is no run to join, or nobody to ask.
            running = any(other.up and other.finished is None for other in self.first)
            if running and not world.stopped:
                world.admit(machine)

        world.at(when, happen)

    def _leave(self, when: float) -> None:
        victims = self._victims()
        if victims:
            victim = self.world.random.choice(victims)
            self._tell(when, f"{victim.name} leaves")
            self.world.at(when, lambda: victim.feed(ev.LeaveRequested()))

    def _stop(self, when: float) -> None:
        world, host = self.world, self.first[0]

        def order() -> None:
            # A host that is cut off orders in ignorance; what follows then is tested apart.
            linked = all(
                world.link(host.me, other.me).up and not world.link(host.me, other.me).blocked
                for other in world.machines.values()
                if other is not host and other.up
            )
            if (
                host.up
                and not host.released
                and host.failed is None
                and host.core.committed > 0
                and linked
                and world.now >= host.paused_until
            ):
                world.stopped = True
                host.feed(ev.StopRequested(StopOrder(host.core.stop_step(), b"host")))

        self._tell(when, "the host orders to stop")
        world.at(when, order)
