"""A simulated machine: a step core, the toy model, a computing thread, a disk and a clock.

May import: errors, limits, protocol, defects, toy. Runs the core's effects; the network and time
belong to `world`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from p2pnode.errors import PeerError
from p2pnode.limits import LIMITS
from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol import fetch
from p2pnode.protocol.chain import Chain, SignedRecord, open_chain
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.messages import (
    Answer,
    Buffer,
    Contribution,
    PeerId,
    Pledge,
    Shard,
    ShardSum,
    as_weight,
    pledge_digest,
)
from p2pnode.protocol.pieces import digest_pieces
from p2pnode.protocol.setup import Setup
from p2pnode.rehearse import toy
from p2pnode.rehearse.defects import Defects, forge, off_by_one

if TYPE_CHECKING:
    from p2pnode.rehearse.world import World

ROOM = b"r" * 32
SMALL = replace(LIMITS, kept_bytes=3 * 4 * toy.PARAMETERS)
"""Sums of three steps may be in memory: there is something to spool in every run."""
GRACE = 2.0
"""Seconds that text may take to come before a machine says that it lacks it (see supply)."""
Task = (
    ef.Compute
    | ef.Reduce
    | ef.Weigh
    | ef.Apply
    | ef.Rollback
    | ef.Commit
    | ef.Verify
    | ef.Diagnose
    | ef.Audit
    | ef.Freeze
    | ef.Load
    | ef.Recall
    | ef.Store
    | ef.Spool
)
COMMON, OWN, SPARE = 0, 1, 2
"""Lanes of the computing thread: what the group waits for, own slots, and others' slots."""


def sign(peer: PeerId, digest: bytes) -> bytes:
    """Stands for a signature: nothing in a simulated world makes one for somebody else."""
    return hashlib.sha256(peer + digest).digest()


@dataclass
class Lane:
    """Tasks that run one after the other."""

    waiting: deque[Task] = field(default_factory=deque)
    running: Task | None = None


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
        self.boots += 1
        self.up, self.released, self.finished, self.failed = True, False, None, None
        self.paused_until, self.no_data = 0.0, False
        self.state = state
        self.previous: toy.State | None = None
        self.lent: dict[int, toy.State] = {}
        self.lanes = Lane(), Lane(), Lane()
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
                sign=lambda digest: sign(self.me, digest),
                secret=self.me + bytes([self.boots % 256]),
                signed=lambda peer, digest, signature: signature == sign(peer, digest),
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
        kept = (self.state, self.previous, self.disk, *self.lent.values())
        committed = [state for state in kept if state is not None and state.step <= core.committed]
        usable = [state for state in committed if self._usable(state, chain.limit(old))]
        self.boot(max(usable, key=lambda state: state.step, default=toy.initial()), lead=here)
        for peer in world.links(self):
            self.feed(ev.LinkUp(peer))

    def _usable(self, state: toy.State, limit: int) -> bool:
        made_by, _ = toy.made_by(self.chain.config, state.step)
        return state.step <= limit and state.run == made_by

    def crash(self) -> None:
        self.up = False
        self.heard.clear()
        self.boots += 1  # whatever still waits for the old process finds another one
        self.lanes = Lane(), Lane(), Lane()

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
                self._next_task()

        self.world.at(self.world.now + GRACE, say)
        self.world.at(self.lacks_until, come)

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
                changed = self._tamper(effect)
                self.cheated |= changed is not effect
                if changed is not None:
                    self.world.transmit(self, changed)
            case ef.CancelCompute(step, slots):
                lane = self.lanes[OWN]
                unwanted = ef.Compute(step, slots)
                if lane.running == unwanted:
                    lane.running = None
                lane.waiting = deque(task for task in lane.waiting if task != unwanted)
                self._next_task()
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
                self.lent.pop(step, None)
            case ef.Rewind(step, state_hash, culprits):
                if not set(culprits) <= set(self.chain.excluded):
                    chain = self.chain.rewind(self.identity, step, state_hash, culprits)
                    self.take(chain, here=True)
            case ef.Compute():
                self._queue(OWN, effect)
            case ef.Audit() | ef.Diagnose():
                self._lend(effect.step)
                self._queue(SPARE, effect)
            case _:
                self._queue(COMMON, effect)

    def _queue(self, lane: int, task: Task) -> None:
        self.lanes[lane].waiting.append(task)
        self._next_task()

    def _lend(self, step: int) -> None:
        """Keep the state before a step, if it is here."""
        for state in (self.state, self.previous):
            if state is not None and state.step == step - 1:
                self.lent.setdefault(step, state)

    def _tamper(self, send: ef.Send) -> ef.Send | None:
        """What a machine with these defects sends in its place; None: nothing."""
        message, defects = send.message, self.defects
        members = self.world.members
        odd = send.peer in members and members.index(send.peer) % 2 == 1
        changed = send
        if isinstance(message, Pledge):
            if 0 < defects.strips_probe_at <= message.step:
                changed = replace(send, message=self._signed_anew(message, probe=b""))
            if message.step == defects.two_faced_work_at and odd and message.peer == self.me:
                held = self.core._contributor.of(message.step)[message.slots]
                forged = digest_pieces(forge(held.payload, 0), Shard(0, 1), toy.PARAMETERS)
                changed = replace(send, message=self._signed_anew(message, pieces=forged))
        elif isinstance(message, Contribution):
            if message.step == defects.corrupts_parts_at:
                changed = replace(send, payload=off_by_one(send.payload))
            if message.step == defects.two_faced_work_at and odd:
                held = self.core._contributor.of(message.step)[message.slots]
                low, high = message.shard.bounds(toy.PARAMETERS)
                changed = replace(send, payload=forge(held.payload, 0)[4 * low : 4 * high])
        elif isinstance(message, Answer):
            if message.step == defects.lies_in_check_at and message.values:
                values = tuple((slots, value ^ 1) for slots, value in message.values)
                changed = replace(send, message=structs.replace(message, values=values))
            if message.step == defects.withholds_at:
                return None
        elif isinstance(message, ShardSum):
            low, high = message.shard.bounds(toy.PARAMETERS)
            forger = message.step in (defects.forges_sums_at, defects.forges_some_at if odd else 0)
            if forger and high - low > 1:
                changed = replace(send, payload=forge(send.payload, low))
            if message.step in (defects.corrupts_sums_at, defects.two_faced_at if odd else 0):
                changed = replace(send, payload=off_by_one(send.payload))
            if message.step == defects.wrong_summary_at:
                wrong = structs.replace(message.summary, loss=message.summary.loss + 1)
                changed = replace(send, message=structs.replace(message, summary=wrong))
        return changed

    def _signed_anew(self, pledge: Pledge, **changes: object) -> Pledge:
        changed = structs.replace(pledge, **changes)
        return structs.replace(changed, signature=sign(self.me, pledge_digest(changed)))

    def _next_task(self) -> None:
        """Sets are computed in the background, slot by slot; everything else goes first."""
        for lane in self.lanes:
            waits = self.lacking and lane is self.lanes[OWN]
            if lane.running is None and lane.waiting and not waits:
                self._start(lane, lane.waiting.popleft())

    def _start(self, lane: Lane, task: Task) -> None:
        lane.running = task
        boot = self.boots

        def done() -> None:
            if self.boots != boot or lane.running is not task:
                return
            if self.world.now < self.paused_until:
                self.world.at(self.paused_until, done)
                return
            lane.running = None
            event = self._perform(task)
            self._next_task()
            if event is not None:
                self.feed(event)

        self.world.at(self.world.now + self._duration(task), done)

    def _duration(self, task: Task) -> float:
        if isinstance(task, ef.Diagnose):
            return 10.0 * self.slot_time
        if isinstance(task, ef.Compute | ef.Audit):
            factor = 5.0 if task.reference else 1.0
            return self.slot_time * len(task.slots) * factor
        return 0.0 if isinstance(task, ef.Commit) else min(0.1 * self.slot_time, 0.05)

    def _perform(self, task: Task) -> ev.Event | None:
        perform: dict[type, Callable[..., ev.Event | None]] = {
            ef.Compute: self._compute,
            ef.Reduce: self._reduce,
            ef.Weigh: self._weigh,
            ef.Apply: self._apply,
            ef.Rollback: self._rollback,
            ef.Commit: self._commit,
            ef.Verify: self._verify,
            ef.Diagnose: self._diagnose,
            ef.Audit: self._audit,
            ef.Freeze: self._freeze,
            ef.Load: self._load,
            ef.Recall: self._recall,
            ef.Store: self._store,
            ef.Spool: self._spool,
        }
        return perform[type(task)](task)

    def _compute(self, task: ef.Compute) -> ev.Event | None:
        if self.no_data:
            self.world.crash(self)
            return None
        states = [self.state, self.previous]
        state = next((s for s in states if s is not None and s.step == task.step - 1), None)
        if state is None:
            return None  # the state moved on while the task waited
        results = []
        for slot in task.slots:
            false_claim = self.defects.false_claim_at == task.step and not task.reference
            if (task.step, slot) == self.world.not_finite or (false_claim and slot % 2):
                return ev.SetRefused(task.step, task.slots, task.reference, slot, "NaN")
            results.append(toy.gradient(state, self._text_of(task.step, slot), slot))
            self.cheated |= self._misreads(task.step, slot)
        if self.defects.wrong_gradient_at == task.step and not task.reference:
            results = [toy.wrong_gradient(task.step, slot) for slot in task.slots]
            self.cheated = True
        probe = toy.PROBE
        if self.defects.bad_probe_at and task.step >= self.defects.bad_probe_at:
            probe = b"x" * 32
        if self.defects.no_probe_at and task.step >= self.defects.no_probe_at:
            probe = b""
        payload = toy.pack(toy.add([values for _, values in results]))
        if self.defects.contradicts_evidence_at == task.step and not task.reference:
            payload = bytes(off_by_one(payload))
            self.cheated = True
        return ev.Computed(
            task.step,
            task.slots,
            task.reference,
            probe,
            tuple(evidence for evidence, _ in results),
            payload,
            digest_pieces(payload, Shard(0, 1), toy.PARAMETERS),
        )

    def _misreads(self, step: int, slot: int) -> bool:
        return step == self.defects.misreads_at and slot == step % self.world.slots

    def _text_of(self, step: int, slot: int) -> int:
        """The step whose text it reads for a slot."""
        return step + 1_000_000 if self._misreads(step, slot) else step

    def _reduce(self, task: ef.Reduce) -> ev.Event | None:
        for i, (part, digests) in enumerate(zip(task.parts, task.digests, strict=True)):
            if digests and digest_pieces(part, task.shard, toy.PARAMETERS) != digests:
                what = "has other bytes than it pledged"
                return ev.ReduceRefused(task.step, task.shard, task.ticket, i, what)
        for i, text in enumerate(task.texts):
            for slot, stated in text:
                here = toy.token_hash(self._text_of(task.step, slot), slot)
                if self.lacking or here == stated:
                    continue
                if self._misreads(task.step, slot) and not self.defects.denies:
                    self.world.crash(self)
                    return None
                self.cheated |= self._misreads(task.step, slot)
                what = f"is of other text: the tokens of slot {slot} are not those here"
                return ev.ReduceRefused(task.step, task.shard, task.ticket, i, what, slot, here)
        total = toy.add([toy.unpack(part) for part in task.parts])
        if task.step == self.defects.adds_wrongly_at and self.mistakes < 1:
            self.mistakes += 1
            total = tuple(value + 1 for value in total)
        if self._hides(task.step, task.shard):
            self.cheated = True
            total = toy.unpack(forge(toy.pack(total), task.shard.bounds(toy.PARAMETERS)[0]))
        payload = toy.pack(total)
        return ev.Reduced(task.step, task.shard, task.ticket, payload, not self.lacking)

    def _hides(self, step: int, shard: Shard) -> bool:
        """Whether this machine adds something else to this shard of its own than it pledged."""
        low, high = shard.bounds(toy.PARAMETERS)
        return step == self.defects.hides_at and high - low > 1

    def _apply(self, task: ef.Apply) -> ev.Event:
        assert self.state.step == task.step - 1, "applied out of order"
        total = tuple(value for part in task.sums for value in toy.unpack(part))
        if toy.checksum(total) != task.summary.checksum:
            return ev.ApplyRefused(task.step, "the sums do not match their checksum")
        self.previous, self.state = (
            self.state,
            toy.apply(self.chain.config, self.state, total, task.summary),
        )
        if self.defects.wrong_apply_at == task.step:
            wrong = (self.state.weights[0] + 1, *self.state.weights[1:])
            self.state = replace(self.state, weights=wrong)
        return ev.Applied(task.step, self.state.hash)

    def _weigh(self, task: ef.Weigh) -> ev.Event:
        values = [value for part in task.parts for value in toy.unpack(part)]
        known = task.nonce is None
        value = toy.checksum(values) if known else toy.weigh(values, task.nonce or b"")
        if not known and len(task.parts) == 1:
            value = as_weight(value + self._hidden(task.parts[0], task.nonce or b""))
        return ev.Weighed(task.ticket, value)

    def _hidden(self, payload: Buffer, nonce: bytes) -> int:
        """What the checksum of its first set has to be wrong by for what it hides to fit."""
        step = self.defects.hides_at
        plan = self.core._board.plans.get(step)
        held = [computed.payload for computed in self.core._contributor.of(step).values()]
        if plan is None or not held or payload is not held[0]:
            return 0
        added = [0] * toy.PARAMETERS
        for index, owner in enumerate(plan.owners):
            shard = Shard(index, len(plan.owners))
            if plan.roster[owner] == self.me and self._hides(step, shard):
                low = shard.bounds(toy.PARAMETERS)[0]
                added[low], added[low + 1] = low + 2, -low - 1
        return toy.weigh(added, nonce)

    def _rollback(self, task: ef.Rollback) -> None:
        assert self.previous is not None, "nothing to go back to"
        assert self.previous.step == task.step - 1, "rolled back another step"
        self.state, self.previous = self.previous, None

    def _commit(self, task: ef.Commit) -> None:
        assert (self.state.step, self.state.hash) == (task.step, task.state_hash)
        self.previous = None
        self.world.committed(self, task)
        if self.world.saves(self, task.step):
            self.disk = self.state

    def _verify(self, task: ef.Verify) -> ev.Event:
        wrong = self.defects.wrong_apply_at == task.step and not self.defects.denies
        return ev.Verified(task.step, "layers.0.attn" if wrong else None, "Adam, weights")

    def _diagnose(self, task: ef.Diagnose) -> ev.Event | None:
        """Which operation it was: found only where it is made wrong each time."""
        defects = self.defects
        if self._misreads(task.step, task.slot) and not defects.denies:
            self.world.crash(self)
            return None
        wrong = task.peer == self.me and defects.wrong_gradient_at == task.step
        tensor = "layers.0.q" if wrong else None
        return ev.Diagnosed(task.step, task.slot, task.peer, tensor, "product (int8)", "")

    def _audit(self, task: ef.Audit) -> ev.Event:
        state = self.lent.get(task.step)
        if state is None or self.lacking:
            return ev.Audited(task.step, task.slots, task.reference, None)
        if any((task.step, slot) == self.world.not_finite for slot in task.slots):
            return ev.Audited(task.step, task.slots, task.reference, ())
        results = [toy.gradient(state, self._text_of(task.step, slot), slot) for slot in task.slots]
        payload = toy.pack(toy.add([values for _, values in results]))
        return ev.Audited(
            task.step,
            task.slots,
            task.reference,
            tuple(evidence for evidence, _ in results),
            digest_pieces(payload, Shard(0, 1), toy.PARAMETERS),
            b"" if task.reference else payload,
        )

    def _freeze(self, task: ef.Freeze) -> ev.Event:
        assert self.state.step == task.step, "froze another state"
        blob = self.state.to_bytes()
        return ev.Frozen(task.step, self.state.hash, blob, fetch.part_hashes(blob))

    def _recall(self, task: ef.Recall) -> ev.Event:
        if not self.stored or self.stored[0].root != task.root:
            self.stored = []
            return ev.Recalled(task.root)
        first, blob = self.stored[0], bytearray(self.stored[0].size)
        for kept in self.stored:
            blob[kept.start : kept.start + len(kept.payload)] = kept.payload
        parts = fetch.right_parts(first.hashes, blob)
        return ev.Recalled(task.root, first.size, first.hashes, blob, parts)

    def _store(self, task: ef.Store) -> None:
        self.stored = [kept for kept in self.stored if kept.root == task.root]
        if self.world.now >= self.full_until:
            self.stored.append(task)

    def _spool(self, task: ef.Spool) -> ev.Event:
        if self.world.now < self.full_until:
            return ev.Spooled(task.step, None, "the disk is full")
        copies = tuple(memoryview(bytes(payload)) for payload in task.payloads)
        self.on_disk.update(map(id, copies))
        return ev.Spooled(task.step, copies)

    def _load(self, task: ef.Load) -> ev.Event:
        try:
            state = toy.from_bytes(task.blob)
        except ValueError as error:
            return ev.LoadRefused(task.step, str(error))
        if not self._usable(state, self.chain.last_step):
            return ev.LoadRefused(task.step, "it is of another run")
        self.state, self.previous = state, None
        return ev.Loaded(state.step, state.hash)
