"""A simulated world: machines, links, time. Discrete events, one seeded generator, no real clock.

A link carries two ordered channels (control, bulk) in each direction. A reset loses what is on
its way. Delays differ from message to message, so channels and links overtake each other.

May import: limits, protocol, defects, machine, toy.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from p2pnode.limits import LIMITS
from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol.chain import begin
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.messages import PeerId, Priority, decode, encode
from p2pnode.rehearse import toy
from p2pnode.rehearse.defects import Defects
from p2pnode.rehearse.machine import ROOM, Machine

DELAYED = 3.0
"""Seconds: well below the silence after which a peer is given up."""
FRAGMENT_TIME = 0.5
"""A bulk message longer than this on the wire is heard of in between."""


@dataclass
class Link:
    """One pair's connection. `session` changes with every reset."""

    up: bool = False
    session: int = 0
    blocked: set[PeerId] = field(default_factory=set)
    """Senders whose frames vanish although the link looks up (one-way silence)."""
    stalled: set[PeerId] = field(default_factory=set)
    """Senders whose bulk frames vanish, for as long as the session lasts."""
    free_at: dict[tuple[PeerId, bool], float] = field(default_factory=dict)
    """When (sender, bulk) can put the next message on the wire."""
    last_at: dict[tuple[PeerId, bool], float] = field(default_factory=dict)
    """Arrival of the latest message of (sender, bulk): a channel keeps its order."""
    queued: set[tuple[PeerId, object]] = field(default_factory=set)


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
        self.delay = (0.005, 0.08)
        self.bandwidth = 20_000.0
        self.duplicates = 0.01
        self.delayed_until = 0.0
        """Until then frames take up to DELAYED seconds longer."""
        self.reordered_until = 0.0
        """Until then messages of one channel overtake each other, as the transport never lets."""
        self.repeated_until = 0.0
        """Until then every third message comes twice."""
        self.signaling_back = 0.0
        """When the signaling server is back: before that, no link comes up and nobody joins."""
        self.happened: Counter[str] = Counter()
        """How many faults of each kind took effect."""
        self.events = 0
        self.first_chain = begin(identity(0), ROOM, toy.run_config(slots, steps), b"")
        """The run as it was started."""
        self.wrong_commits: list[str] = []
        self.wrong_alone = False
        """A machine made a step wrongly that nobody but it took part in: the others may have its
        state from it, and nothing to compare it with."""
        self.observe: Callable[[Machine, ef.Effect], object] | None = None
        self._links: dict[frozenset[PeerId], Link] = {}
        self._missing: set[frozenset[PeerId]] = set()
        self._cut: dict[frozenset[PeerId], float] = {}
        """Pairs on two sides of a partition, and until when."""
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
        for other in self.machines:
            self._links[frozenset((me, other))] = Link()
        self.machines[me] = machine
        return machine

    def admit(self, machine: Machine) -> None:
        """The host lets a newcomer in: it starts, and the others hear of it."""
        self.members = (*self.members, machine.me)
        machine.boot(machine.disk)
        self.announce()
        self.connect(machine, 1.0)

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
            self.connect(machine, 0.3)
        boot = host.boots
        self.feed_at(after, host, ev.Start(lead=True), lambda: host.boots == boot)

    def connect(self, machine: Machine, within: float) -> None:
        """Links to all running machines come up."""
        for other in self.machines.values():
            if other is not machine and other.up:
                self.link_up(machine, other, self.now + self.random.uniform(0.0, within))

    def crash(self, machine: Machine) -> None:
        machine.crash()
        for other in self.machines.values():
            if other is not machine:
                # A dead peer is noticed late, if at all.
                self.link_down(machine, other, notice=8.0)

    def restart(self, machine: Machine, wiped: bool = False) -> None:
        """A member starts again, from what is on its disk."""
        if machine.up:
            self.crash(machine)
        if wiped:
            machine.chain = self.first_chain
            machine.stored = []
        machine.boot(toy.initial() if wiped else machine.disk)
        self.connect(machine, 3.0)

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
                self.at(
                    self.now + 1.0, functools.partial(self.link_down, machine, other, notice=0.2)
                )

    # Records

    def tell_all(self, machine: Machine) -> None:
        """A machine tells its chain to everybody it has a link to."""
        for peer in self.links(machine):
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
        self._hop(machine.me, other.me, raw, False, lambda: other.hear(machine.me, signed))

    # Links

    def links(self, machine: Machine) -> list[PeerId]:
        """Whom it has a link to, as it knows."""
        return [
            other
            for other in self.machines
            if other != machine.me and self.link(machine.me, other).up
        ]

    def link(self, a: PeerId, b: PeerId) -> Link:
        return self._links[frozenset((a, b))]

    def never_link(self, a: Machine, b: Machine) -> None:
        """No direct connection between these two is possible."""
        self._missing.add(frozenset((a.me, b.me)))

    def link_up(self, a: Machine, b: Machine, when: float) -> None:
        def happen() -> None:
            if self.now < self.signaling_back:  # a link is made through the server
                self.at(self.signaling_back + self.random.uniform(0.0, 3.0), happen)
                return
            if self.now < self._cut.get(frozenset((a.me, b.me)), 0.0):
                self.at(self._cut[frozenset((a.me, b.me))], happen)
                return
            link = self.link(a.me, b.me)
            if link.up or not a.up or not b.up or frozenset((a.me, b.me)) in self._missing:
                return
            link.up = True
            link.session += 1
            link.free_at.clear()
            link.last_at.clear()
            link.queued.clear()
            link.stalled.clear()
            a.feed(ev.LinkUp(b.me))
            self.greet(a, b)
            session = link.session
            self.feed_at(
                self.now + self.random.uniform(0.0, 0.2),
                b,
                ev.LinkUp(a.me),
                lambda: link.up and link.session == session,
            )

        self.at(when, happen)

    def link_down(self, a: Machine, b: Machine, notice: float = 2.0) -> None:
        """The link breaks now; each end notices within `notice` seconds."""
        link = self.link(a.me, b.me)
        if not link.up:
            return
        link.up = False
        link.session += 1
        session = link.session
        for one, other in ((a, b), (b, a)):
            self.feed_at(
                self.now + self.random.uniform(0.0, notice),
                one,
                ev.LinkDown(other.me),
                lambda: link.session == session,
            )

    def flap(self, a: Machine, b: Machine, seconds: float) -> None:
        self.link_down(a, b)
        self.link_up(a, b, self.now + seconds)

    def partition(self, group: list[Machine], seconds: float) -> None:
        """Cut `group` off from the rest for a while."""
        for a in group:
            for b in self.machines.values():
                if b not in group:
                    lasts = seconds + self.random.uniform(0.0, 2.0)
                    pair = frozenset((a.me, b.me))
                    self._cut[pair] = max(self._cut.get(pair, 0.0), self.now + lasts)
                    self.flap(a, b, lasts)

    def block(self, sender: Machine, receiver: Machine, seconds: float) -> None:
        """Frames of one direction vanish for a while."""
        link = self.link(sender.me, receiver.me)
        link.blocked.add(sender.me)
        self.at(self.now + seconds, lambda: link.blocked.discard(sender.me))
        if seconds > 8.0:  # the receiving end closes a silent link
            self.at(self.now + 8.0, lambda: self.flap(sender, receiver, seconds - 8.0))

    def stall(self, sender: Machine, receiver: Machine) -> None:
        """Bulk frames of one direction vanish while control frames pass, until the sending end
        has waited long enough for an acknowledgement and makes a new connection."""
        link = self.link(sender.me, receiver.me)
        link.stalled.add(sender.me)
        session = link.session

        def give_up() -> None:
            if link.up and link.session == session:
                self.flap(sender, receiver, 1.0)

        self.at(self.now + LIMITS.stall, give_up)

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
                self._hop(
                    send.via,
                    send.peer,
                    raw,
                    bulk,
                    lambda: self._deliver(machine.me, send.peer, raw, send.via),
                )

        item = (send.peer, send.key) if bulk and send.key is not None else None
        self._hop(machine.me, target, raw, bulk, delivered, item)

    def _hop(
        self,
        sender: PeerId,
        receiver: PeerId,
        raw: bytes,
        bulk: bool,
        then: Callable[[], None],
        item: tuple[PeerId, object] | None = None,
    ) -> None:
        link = self._links.get(frozenset((sender, receiver)))
        if link is None or not link.up:
            return
        queued = None if item is None else (sender, item)
        if queued is not None:
            if queued in link.queued:
                return
            link.queued.add(queued)
        channel = (sender, bulk)
        starts = max(self.now, link.free_at.get(channel, 0.0))
        on_wire = len(raw) / self.bandwidth if bulk else 0.0
        arrives = starts + on_wire + self.random.uniform(*self.delay)
        if self.now < self.delayed_until:
            arrives += self.random.uniform(0.0, DELAYED)
        if self.now >= self.reordered_until:
            arrives = max(arrives, link.last_at.get(channel, 0.0))
        link.free_at[channel] = starts + on_wire
        link.last_at[channel] = arrives
        session = link.session

        def arrive() -> None:
            if bulk and sender in link.stalled and link.session == session:
                return  # and it stays queued: whatever repeats it waits behind it
            if queued is not None and link.session == session:
                link.queued.discard(queued)
            if link.up and link.session == session and sender not in link.blocked:
                then()

        if bulk:
            receiving = self.machines[receiver]
            moment = starts + FRAGMENT_TIME
            while moment < arrives:
                self.feed_at(
                    moment,
                    receiving,
                    ev.Heard(sender, 1000),
                    lambda: (
                        link.up
                        and link.session == session
                        and sender not in link.blocked | link.stalled
                    ),
                )
                moment += FRAGMENT_TIME
        self.at(arrives, arrive)
        if self.random.random() < (0.3 if self.now < self.repeated_until else self.duplicates):
            self.at(arrives + self.random.uniform(0.0, 5.0), arrive)

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
