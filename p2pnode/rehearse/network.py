"""The links of a simulated world, and what can happen to them.

A link carries two ordered channels (control, bulk) in each direction. A reset loses what is on
its way. Delays differ from message to message, so channels and links overtake each other.

May import: limits, protocol; machine and world for their types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2pnode.limits import LIMITS
from p2pnode.protocol import events as ev
from p2pnode.protocol.messages import PeerId

if TYPE_CHECKING:
    from p2pnode.rehearse.machine import Machine
    from p2pnode.rehearse.world import World

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


class Network:
    """All links of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
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
        self._links: dict[frozenset[PeerId], Link] = {}
        self._missing: set[frozenset[PeerId]] = set()
        self._cut: dict[frozenset[PeerId], float] = {}
        """Pairs on two sides of a partition, and until when."""

    def add(self, me: PeerId, others: Iterable[PeerId]) -> None:
        """A new machine, without connections yet."""
        for other in others:
            self._links[frozenset((me, other))] = Link()

    def connect(self, machine: Machine, within: float) -> None:
        """Links to all running machines come up."""
        for other in self._world.machines.values():
            if other is not machine and other.up:
                self.link_up(machine, other, self._world.now + self._random.uniform(0.0, within))

    def links(self, machine: Machine) -> list[PeerId]:
        """Whom it has a link to, as it knows."""
        return [
            other
            for other in self._world.machines
            if other != machine.me and self.link(machine.me, other).up
        ]

    def link(self, a: PeerId, b: PeerId) -> Link:
        return self._links[frozenset((a, b))]

    def never_link(self, a: Machine, b: Machine) -> None:
        """No direct connection between these two is possible."""
        self._missing.add(frozenset((a.me, b.me)))

    def link_up(self, a: Machine, b: Machine, when: float) -> None:
        def happen() -> None:
            if self._world.now < self.signaling_back:  # a link is made through the server
                self._world.at(self.signaling_back + self._random.uniform(0.0, 3.0), happen)
                return
            if self._world.now < self._cut.get(frozenset((a.me, b.me)), 0.0):
                self._world.at(self._cut[frozenset((a.me, b.me))], happen)
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
            self._world.greet(a, b)
            session = link.session
            self._world.feed_at(
                self._world.now + self._random.uniform(0.0, 0.2),
                b,
                ev.LinkUp(a.me),
                lambda: link.up and link.session == session,
            )

        self._world.at(when, happen)

    def link_down(self, a: Machine, b: Machine, notice: float = 2.0) -> None:
        """The link breaks now; each end notices within `notice` seconds."""
        link = self.link(a.me, b.me)
        if not link.up:
            return
        link.up = False
        link.session += 1
        session = link.session
        for one, other in ((a, b), (b, a)):
            self._world.feed_at(
                self._world.now + self._random.uniform(0.0, notice),
                one,
                ev.LinkDown(other.me),
                lambda: link.session == session,
            )

    def flap(self, a: Machine, b: Machine, seconds: float) -> None:
        self.link_down(a, b)
        self.link_up(a, b, self._world.now + seconds)

    def partition(self, group: list[Machine], seconds: float) -> None:
        """Cut `group` off from the rest for a while."""
        for a in group:
            for b in self._world.machines.values():
                if b not in group:
                    lasts = seconds + self._random.uniform(0.0, 2.0)
                    pair = frozenset((a.me, b.me))
                    self._cut[pair] = max(self._cut.get(pair, 0.0), self._world.now + lasts)
                    self.flap(a, b, lasts)

    def block(self, sender: Machine, receiver: Machine, seconds: float) -> None:
        """Frames of one direction vanish for a while."""
        world, link = self._world, self.link(sender.me, receiver.me)
        link.blocked.add(sender.me)
        world.at(world.now + seconds, lambda: link.blocked.discard(sender.me))
        if seconds > 8.0:  # the receiving end closes a silent link
            world.at(world.now + 8.0, lambda: self.flap(sender, receiver, seconds - 8.0))

    def stall(self, sender: Machine, receiver: Machine) -> None:
        """Bulk frames of one direction vanish while control frames pass, until the sending end
        has waited long enough for an acknowledgement and makes a new connection."""
        link = self.link(sender.me, receiver.me)
        link.stalled.add(sender.me)
        session = link.session

        def give_up() -> None:
            if link.up and link.session == session:
                self.flap(sender, receiver, 1.0)

        self._world.at(self._world.now + LIMITS.stall, give_up)

    def hop(
        self,
        sender: PeerId,
        receiver: PeerId,
        raw: bytes,
        bulk: bool,
        then: Callable[[], None],
        item: tuple[PeerId, object] | None = None,
    ) -> None:
        """Carry a message over one link, if it holds until then; `then` it has arrived. What waits
        under the same `item` is not queued again."""
        world = self._world
        link = self._links.get(frozenset((sender, receiver)))
        if link is None or not link.up:
            return
        queued = None if item is None else (sender, item)
        if queued is not None:
            if queued in link.queued:
                return
            link.queued.add(queued)
        channel = (sender, bulk)
        starts = max(world.now, link.free_at.get(channel, 0.0))
        on_wire = len(raw) / self.bandwidth if bulk else 0.0
        arrives = starts + on_wire + self._random.uniform(*self.delay)
        if world.now < self.delayed_until:
            arrives += self._random.uniform(0.0, DELAYED)
        if world.now >= self.reordered_until:
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
            receiving = world.machines[receiver]
            moment = starts + FRAGMENT_TIME
            while moment < arrives:
                world.feed_at(
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
        world.at(arrives, arrive)
        if self._random.random() < (0.3 if world.now < self.repeated_until else self.duplicates):
            world.at(arrives + self._random.uniform(0.0, 5.0), arrive)
