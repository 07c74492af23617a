"""A simulated world: machines, a network, time. Discrete events, one seeded generator, no real
clock.

May import: protocol, defects, machine, network, toy.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import random
import re
from collections import Counter
from collections.abc import Callable

from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol.chain import begin
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.messages import PeerId, Priority, decode, encode
from p2pnode.rehearse import toy
from p2pnode.rehearse.defects import Defects
from p2pnode.rehearse.machine import ROOM, Machine
from p2pnode.rehearse.network import Network


@functools.cache
def identity(number: int) -> Identity:
    """Key of the machine with this number."""
    return Identity(hashlib.sha256(f"machine {number}".encode()).digest())


class World:
    """Machines and the links between them."""

    def __init__(
        self,
        seed: int,
        *,
        slots: int = 6,
        steps: int = 8,
        trace: Callable[[str], object] | None = None,
        core_class: type[StepCore] = StepCore,
    ) -> None:
        self.random = random.Random(seed)
        self.slots = slots
        self.steps = steps
        self.trace = trace
        self.core_class = core_class
        self.now = 0.0
        self.machines: dict[PeerId, Machine] = {}
        self.members: tuple[PeerId, ...] = ()
        self.reports: list[tuple[str, ef.Effect]] = []
        self.commits: dict[int, set[bytes]] = {}
        self.not_finite: tuple[int, int] | None = None
        self.audit = 0.0
        """Share of others' sets that every machine computes again."""
        self.happened: Counter[str] = Counter()
        """How many faults of each kind took effect."""
        self.events = 0
        self.first_chain = begin(identity(0), ROOM, toy.run_config(slots, steps), b"")
        """The run as it was started."""
        self.wrong_commits: list[str] = []
        self.wrong_alone = False
        """A machine made a step wrongly that nobody but it took part in: the others may have its
        state from it, and nothing to compare it with."""
        self.net = Network(self)
        self.observe: Callable[[Machine, ef.Effect], object] | None = None
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    # Time

    def at(self, when: float, action: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, action))

    def feed_at(
        self, when: float, machine: Machine, event: ev.Event, valid: Callable[[], bool]
    ) -> None:
        """Give a machine an event at a time, if that is still true then."""

        def happen() -> None:
            if valid():
                machine.feed(event)

        self.at(when, happen)

    def run(self, until: float, done: Callable[[], bool]) -> bool:
        """Let time pass; True if `done` came true before `until`."""
        while self._heap and not done():
            when, _, action = self._heap[0]
            if when > until:
                self.now = until
                return done()
            heapq.heappop(self._heap)
            self.now = when
            self.events += 1
            action()
        return done()

    # Machines

    def add(self, slot_time: float = 0.1, defects: Defects | None = None) -> Machine:
        """A new machine, not started and no member yet."""
        number = len(self.machines)
        machine = Machine(
            self,
            identity(number),
            f"n{number}",
            slot_time,
            self.core_class,
            defects or Defects(),
        )
        me = machine.me
        machine.offset = 1000.0 * number  # clocks agree on nothing
        self.net.add(me, self.machines)
        self.machines[me] = machine
        return machine

    def admit(self, machine: Machine) -> None:
        """The host lets a newcomer in: it starts, and the others hear of it."""
        self.members = (*self.members, machine.me)
        machine.boot(machine.disk)
        self.announce()
        self.net.connect(machine, 1.0)

    def announce(self, kicked: tuple[PeerId, ...] = ()) -> None:
        """The member list reaches everybody, at different times."""

        def tell(machine: Machine) -> None:
            machine.feed(ev.RosterChanged(self.members, kicked))

        for machine in self.machines.values():
            self.at(self.now + self.random.uniform(0.0, 0.5), functools.partial(tell, machine))

    def start(self, machines: list[Machine], after: float = 0.6) -> None:
        """All run and link up; the first is the host and begins to lead `after` so long."""
        self.members = tuple(machine.me for machine in machines)
        host = machines[0]
        for machine in machines:
            machine.boot(machine.disk, start=machine is not host)
        for machine in machines:
            self.net.connect(machine, 0.3)
        boot = host.boots
        self.feed_at(after, host, ev.Start(lead=True), lambda: host.boots == boot)

    def crash(self, machine: Machine) -> None:
        machine.crash()
        for other in self.machines.values():
            if other is not machine:
                # A dead peer is noticed late, if at all.
                self.net.link_down(machine, other, notice=8.0)

    def restart(self, machine: Machine, wiped: bool = False) -> None:
        """A member starts again, from what is on its disk."""
        if machine.up:
            self.crash(machine)
        if wiped:
            machine.chain = self.first_chain
            machine.stored = []
        machine.boot(toy.initial() if wiped else machine.disk)
        self.net.connect(machine, 3.0)

    def saves(self, machine: Machine, step: int) -> bool:
        """Whether a machine writes this state to disk."""
        return step % 3 == 0 and self.now >= machine.full_until

    def committed(self, machine: Machine, commit: ef.Commit) -> None:
        """A machine that applies wrongly cannot know it while it is alone; the others must."""
        right = toy.line(machine.chain.config)[commit.step]
        wrong_at = (
            machine.defects.wrong_apply_at,
            machine.defects.wrong_gradient_at,
            machine.defects.hides_at,
            machine.defects.misreads_at,
        )
        if commit.step in wrong_at and commit.state_hash != right:
            self.wrong_alone |= machine.rosters.get(commit.step) == (machine.me,)
        if not machine.defects.wrong_state:
            self.commits.setdefault(commit.step, set()).add(commit.state_hash)
            # What only an audit finds may be committed first, and is taken back.
            unseen = any(other.defects.unseen for other in self.machines.values())
            if not unseen and commit.state_hash != right:
                self.wrong_commits.append(f"{machine.name} committed a wrong state {commit.step}")

    def ended(self, machine: Machine) -> None:
        machine.disk = machine.work.state

    def closed(self, machine: Machine) -> None:
        """A node went away in good order: its links close and the others notice soon."""
        for other in self.machines.values():
            if other is not machine:
                close = functools.partial(self.net.link_down, machine, other, notice=0.2)
                self.at(self.now + 1.0, close)

    # Records

    def tell_all(self, machine: Machine) -> None:
        """A machine tells its chain to everybody it has a link to."""
        for peer in self.net.links(machine):
            self.tell(machine, self.machines[peer])

    def greet(self, a: Machine, b: Machine) -> None:
        """Two machines have a new link: each tells its chain."""
        self.tell(a, b)
        self.tell(b, a)

    def tell(self, machine: Machine, other: Machine) -> None:
        if machine.released or machine.failed:
            return
        signed = machine.chain.signed
        raw = machine.chain.encode()
        self.net.hop(machine.me, other.me, raw, False, lambda: other.hear(machine.me, signed))

    # Messages

    def transmit(self, machine: Machine, send: ef.Send) -> None:
        raw = b"".join(encode(send.message, send.payload))
        bulk = send.priority is not Priority.CONTROL
        first = machine.me if send.via is None else send.via
        target = send.peer if send.via is None else send.via

        def delivered() -> None:
            relay = self.machines[first]
            if send.via is None:
                self._deliver(machine.me, send.peer, raw, None)
            elif self.now < relay.paused_until:  # who stands still passes nothing on
                self.at(relay.paused_until, delivered)
            elif relay.up and not relay.released and relay.failed is None:
                relay.feed(ev.Heard(machine.me, len(raw) if bulk else 0))
                self.net.hop(
                    send.via,
                    send.peer,
                    raw,
                    bulk,
                    lambda: self._deliver(machine.me, send.peer, raw, send.via),
                )

        item = (send.peer, send.key) if bulk and send.key is not None else None
        self.net.hop(machine.me, target, raw, bulk, delivered, item)

    def _deliver(self, sender: PeerId, receiver: PeerId, raw: bytes, via: PeerId | None) -> None:
        machine = self.machines[receiver]
        message, payload = decode(raw)
        if len(payload):
            carrier = sender if via is None else via
            machine.feed(ev.Heard(carrier, len(payload)))
        machine.feed(ev.MessageReceived(sender, message, payload, via))

    # Trace

    def note(self, name: str, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:9.3f} {name} {text}")

    def summary(self, machine: Machine) -> str:
        """One line on where a machine stands."""
        if not machine.up:
            return f"{machine.name}: down"
        core = machine.core
        plan = core.plan
        told = plan and (plan.key, plan.step, plan.roster, plan.observers, plan.owners)
        return self.show(
            (
                *(machine.name, core.applied, core.committed, core.last_step, core.term),
                *(core.leader, core.leading, told, machine.failed, machine.released),
            )
        )

    def show(self, item: object) -> str:
        """One line for an event, an effect or a report; hashes and payloads are shortened."""
        text = repr(item)
        for peer, machine in self.machines.items():
            text = text.replace(repr(peer), machine.name)
        text = re.sub(r"SlotEvidence\(slot=(\d+).*?tokens=\d+\)", r"\1", text)
        text = re.sub(r"Shard\(index=(\d+), count=(\d+)\)", r"\1/\2", text)
        text = re.sub(r"<memory at \w+>", "<..>", text)
        return re.sub(
            r"b(['\"]).*?(?<!\\\\)\1",
            lambda match: "#" + hashlib.sha256(match[0].encode()).hexdigest()[:4],
            text,
        )
