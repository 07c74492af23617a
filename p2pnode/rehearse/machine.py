"""A simulated machine: a step core, a computing thread, a disk and a clock of its own.

May import: errors, limits, protocol, defects, tamper, thread, toy, work. Carries out the core's
effects; the network and time belong to `world`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from p2pnode.errors import PeerError
from p2pnode.limits import LIMITS
from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol.chain import Chain, SignedRecord, open_chain
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.messages import Buffer, PeerId, Slots
from p2pnode.protocol.setup import Setup
from p2pnode.rehearse import toy
from p2pnode.rehearse.defects import Defects
from p2pnode.rehearse.tamper import tampered
from p2pnode.rehearse.thread import Thread
from p2pnode.rehearse.work import Work

if TYPE_CHECKING:
    from p2pnode.rehearse.world import World

ROOM = b"r" * 32
SMALL = replace(LIMITS, kept_bytes=3 * 4 * toy.PARAMETERS)
"""Sums of three steps may be in memory: there is something to spool in every run."""
GRACE = 2.0
"""Seconds that text may take to come before a machine says that it lacks it (see supply)."""


@dataclass
class Machine:
    """One node of a simulated world."""

    world: World
    identity: Identity
    name: str
    slot_time: float
    core_class: type[StepCore] = StepCore
    defects: Defects = field(default_factory=Defects)
    offset: float = 0.0
    """Of its own monotonic clock: what it reads is the world's time plus this."""
    up: bool = False
    paused_until: float = 0.0
    no_data: bool = False
    """Its training text has gone: the next set it should compute ends its process."""
    lacks_until: float = 0.0
    """Until then its text does not come: it computes no slot, and compares none."""
    full_until: float = 0.0
    """Until then nothing can be written to its disk."""
    stored: list[ef.Store] = field(default_factory=list)
    """Parts of a state on its disk."""
    on_disk: set[int] = field(default_factory=set)
    """`id` of what was spooled."""
    dies_at: int = -1
    """It crashes in the middle of the effects of the event with this number."""
    handled: int = 0
    """Events its cores have taken so far."""
    disk: toy.State = field(default_factory=toy.initial)
    core: StepCore = field(init=False, compare=False)
    work: Work = field(init=False, compare=False)
    thread: Thread = field(init=False, compare=False)
    chain: Chain = field(init=False)
    """What it trains, as far as it knows; on its disk too."""
    heard: dict[tuple[bytes, ...], Chain] = field(default_factory=dict)
    """Chains that this life of it was told."""
    finished: ef.Finished | None = None
    failed: ef.Failed | None = None
    released: bool = False
    boots: int = 0
    mistakes: int = 0
    missed: int = 0
    """Audits that cores before the present one left out."""
    rosters: dict[int, tuple[PeerId, ...]] = field(default_factory=dict)
    """Who took part in each step, by the newest plan seen."""
    cheated: bool = False
    """It has sent something that it must have been refused for."""

    def __post_init__(self) -> None:
        self.chain = self.world.first_chain
        self._begin_life(self.disk)

    @property
    def lacking(self) -> bool:
        return self.world.now < self.lacks_until

    @property
    def me(self) -> PeerId:
        return self.identity.peer_id

    def boot(self, state: toy.State, start: bool = True, lead: bool = False) -> None:
        """Start (again) from a state, with empty memory."""
        if hasattr(self, "core"):
            self.missed += self.core.audits_missed
        self.thread.end()
        self.boots += 1
        self.up, self.released, self.finished, self.failed = True, False, None, None
        self.paused_until, self.no_data = 0.0, False
        self._begin_life(state)
        world = self.world
        self.core = self.core_class(
            Setup(
                me=self.me,
                run=self.chain.tag,
                parameters=toy.PARAMETERS,
                tensors=toy.TENSORS,
                slots=world.slots,
                steps=self.chain.last_step,
                state_hash=state.hash,
                boot=self.boots,
                probe=toy.PROBE,
                members=world.members,
                sign=lambda digest: toy.sign(self.me, digest),
                secret=self.me + bytes([self.boots % 256]),
                signed=lambda peer, digest, signature: signature == toy.sign(peer, digest),
                applied=state.step,
                stopped=self.chain.stopped,
                excluded=self.chain.excluded,
                audit=lambda: world.random.random() < world.audit,
                limits=SMALL,
            )
        )
        if self.lacking:
            self._starve()
        if start:
            self.feed(ev.Start(lead))

    def _begin_life(self, state: toy.State) -> None:
        self.work = Work(self, state)
        self.thread = Thread(self, self.work)

    # Records

    def hear(self, sender: PeerId, signed: tuple[SignedRecord, ...]) -> None:
        """Another machine tells its chain."""
        world = self.world
        if not self.up or self.released or self.failed:
            return
        if world.now < self.paused_until:
            world.at(self.paused_until, lambda: self.hear(sender, signed))
            return
        try:
            chain = open_chain(signed, ROOM, world.members, known=self.chain)
        except PeerError as error:
            raise AssertionError(f"a chain of a sound machine was refused: {error}") from None
        self.heard[chain.ids] = chain
        if self.prefers(chain):
            self.take(chain)

    def prefers(self, chain: Chain) -> bool:
        return chain.beats(self.chain, self.world.members)

    def take(self, chain: Chain, *, here: bool = False) -> None:
        """Another chain holds. `here`: its newest record was signed by this machine's owner."""
        world, old, core = self.world, self.chain, self.core
        self.chain = chain
        if world.trace:
            world.note(self.name, f"-- {chain.newest.kind} after step {chain.newest.step}")
        world.tell_all(self)
        if self.finished is None and chain.goes_on(old, core.reached):
            branch = chain.branch(old)
            self.feed(ev.Redirected(chain.tag, chain.last_step, chain.stopped, branch, here))
            return
        kept = (*self.work.states(), self.disk)
        committed = [state for state in kept if state.step <= core.committed]
        usable = [state for state in committed if self.work.usable(state, chain.limit(old))]
        self.boot(max(usable, key=lambda state: state.step, default=toy.initial()), lead=here)
        for peer in world.net.links(self):
            self.feed(ev.LinkUp(peer))

    # Faults

    def crash(self) -> None:
        self.up = False
        self.heard.clear()
        self.boots += 1  # whatever still waits for the old process finds another one
        self.thread.end()

    def freeze(self, until: float, jump: float | None = None) -> None:
        """Stand still until then (world time). Its clock stands still too, as that of a suspended
        machine, and then is `jump` further; None: it runs on, as that of a stopped process."""
        if jump is not None:
            still = max(until - max(self.world.now, self.paused_until), 0.0)
            self.offset += jump - still
        self.paused_until = max(self.paused_until, until)
        boot = self.boots

        def wake() -> None:
            if self.boots == boot:
                self._arm()  # the timer that was set went by the clock as it was

        self.world.at(self.paused_until, wake)

    def lack(self, until: float) -> None:
        """The text of the next slots does not come until then."""
        self.lacks_until = max(self.lacks_until, until)
        self._starve()

    def _starve(self) -> None:
        boot = self.boots

        def say() -> None:
            if self.boots == boot and self.lacking:
                self.feed(ev.Supply(True))

        def come() -> None:
            if self.boots == boot and not self.lacking:
                self.feed(ev.Supply(False))
                self.thread.go_on()

        self.world.at(self.world.now + GRACE, say)
        self.world.at(self.lacks_until, come)

    # The core

    def feed(self, event: ev.Event) -> None:
        """Give the core an event, and run what it asks for."""
        world = self.world
        if not self.up or self.released or self.failed:
            return
        if world.now < self.paused_until:
            boot = self.boots
            world.feed_at(self.paused_until, self, event, lambda: self.boots == boot)
            return
        if world.trace and not isinstance(event, ev.Tick | ev.Heard):
            world.note(self.name, f"<- {world.show(event)}")
        deadline = self.core.next_deadline()
        effects = self.core.handle(event, world.now + self.offset)
        if (plan := self.core.plan) is not None:
            self.rosters[plan.step] = plan.roster
        dies = self.handled == self.dies_at
        self.handled += 1
        for effect in effects[: len(effects) // 2] if dies else effects:
            if world.trace:
                world.note(self.name, f"-> {world.show(effect)}")
            if world.observe is not None:
                world.observe(self, effect)
            self._run(effect)
        if dies:
            world.crash(self)
        elif self.core.next_deadline() != deadline:
            self._arm()

    def _arm(self) -> None:
        deadline, boot = self.core.next_deadline(), self.boots

        def tick() -> None:
            if self.boots == boot and self.core.next_deadline() == deadline:
                if self.world.now + self.offset < deadline:
                    self._arm()
                else:
                    self.feed(ev.Tick())

        # A little late: by rounding between two clocks it must not be early, and do nothing.
        self.world.at(deadline - self.offset + 1e-6, tick)

    def _run(self, effect: ef.Effect) -> None:
        match effect:
            case ef.Send():
                changed = self._tampered(effect)
                self.cheated |= changed is not effect
                if changed is not None:
                    self.world.transmit(self, changed)
            case ef.CancelCompute(step, slots):
                self.thread.cancel(ef.Compute(step, slots))
            case ef.Report() | ef.DropPeer():
                self.world.reports.append((self.name, effect))
            case ef.Finished():
                self.finished = effect
                self.world.ended(self)
            case ef.Released():
                self.released = True
                self.up = self.finished is not None  # else its owner took it away
                self.world.closed(self)
            case ef.Failed():
                self.failed = effect
                self.world.closed(self)
            case ef.LetGo(step):
                self.work.lent.pop(step, None)
            case ef.Rewind(step, state_hash, culprits):
                if not set(culprits) <= set(self.chain.excluded):
                    chain = self.chain.rewind(self.identity, step, state_hash, culprits)
                    self.take(chain, here=True)
            case ef.Audit() | ef.Diagnose():
                self.work.lend(effect.step)
                self.thread.queue(effect)
            case _:
                self.thread.queue(effect)

    def _tampered(self, send: ef.Send) -> ef.Send | None:
        """What this machine sends in its place; None: nothing."""
        members = self.world.members

        def computed(step: int, slots: Slots) -> Buffer:
            return self.core._contributor.of(step)[slots].payload

        odd = send.peer in members and members.index(send.peer) % 2 == 1
        return tampered(send, self.defects, self.me, odd=odd, computed=computed)
