"""What the computing thread of a simulated machine does: the tasks of its core, on the toy model.

May import: protocol, defects, toy. `Work` is for a machine what a node's jobs and trainer are; what
is wrong with its machine it does wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol import fetch
from p2pnode.protocol.messages import Buffer, Shard, as_weight
from p2pnode.protocol.pieces import digest_pieces
from p2pnode.rehearse import toy
from p2pnode.rehearse.defects import Defects, forge, off_by_one

if TYPE_CHECKING:
    from p2pnode.rehearse.machine import Machine

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


class Work:
    """The work of one life of a machine, and the states it has in memory."""

    def __init__(self, machine: Machine, state: toy.State) -> None:
        self._machine = machine
        self._world = machine.world
        self.state = state
        self.previous: toy.State | None = None
        """The state before it, until it is committed."""
        self.lent: dict[int, toy.State] = {}
        """States before steps that are to be audited."""

    @property
    def _defects(self) -> Defects:
        return self._machine.defects  # a fault may change them

    def states(self) -> Iterable[toy.State]:
        """All that are in memory."""
        here = (self.state, self.previous, *self.lent.values())
        return (state for state in here if state is not None)

    def usable(self, state: toy.State, limit: int) -> bool:
        """Whether the chain's run can go on from a state, of which those up to `limit` count."""
        made_by, _ = toy.made_by(self._machine.chain.config, state.step)
        return state.step <= limit and state.run == made_by

    def lend(self, step: int) -> None:
        """Keep the state before a step, if it is here."""
        for state in (self.state, self.previous):
            if state is not None and state.step == step - 1:
                self.lent.setdefault(step, state)

    def perform(self, task: Task) -> ev.Event | None:
        """What comes of a task; None: nothing that the core hears of."""
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
        if self._machine.no_data:
            self._world.crash(self._machine)
            return None
        states = [self.state, self.previous]
        state = next((s for s in states if s is not None and s.step == task.step - 1), None)
        if state is None:
            return None  # the state moved on while the task waited
        results = []
        for slot in task.slots:
            false_claim = self._defects.false_claim_at == task.step and not task.reference
            if (task.step, slot) == self._world.not_finite or (false_claim and slot % 2):
                return ev.SetRefused(task.step, task.slots, task.reference, slot, "NaN")
            results.append(toy.gradient(state, self._text_of(task.step, slot), slot))
            self._machine.cheated |= self._misreads(task.step, slot)
        if self._defects.wrong_gradient_at == task.step and not task.reference:
            results = [toy.wrong_gradient(task.step, slot) for slot in task.slots]
            self._machine.cheated = True
        probe = toy.PROBE
        if self._defects.bad_probe_at and task.step >= self._defects.bad_probe_at:
            probe = b"x" * 32
        if self._defects.no_probe_at and task.step >= self._defects.no_probe_at:
            probe = b""
        payload = toy.pack(toy.add([values for _, values in results]))
        if self._defects.contradicts_evidence_at == task.step and not task.reference:
            payload = bytes(off_by_one(payload))
            self._machine.cheated = True
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
        return step == self._defects.misreads_at and slot == step % self._world.slots

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
                if self._machine.lacking or here == stated:
                    continue
                if self._misreads(task.step, slot) and not self._defects.denies:
                    self._world.crash(self._machine)
                    return None
                self._machine.cheated |= self._misreads(task.step, slot)
                what = f"is of other text: the tokens of slot {slot} are not those here"
                return ev.ReduceRefused(task.step, task.shard, task.ticket, i, what, slot, here)
        total = toy.add([toy.unpack(part) for part in task.parts])
        if task.step == self._defects.adds_wrongly_at and self._machine.mistakes < 1:
            self._machine.mistakes += 1
            total = tuple(value + 1 for value in total)
        if self._hides(task.step, task.shard):
            self._machine.cheated = True
            total = toy.unpack(forge(toy.pack(total), task.shard.bounds(toy.PARAMETERS)[0]))
        payload = toy.pack(total)
        return ev.Reduced(task.step, task.shard, task.ticket, payload, not self._machine.lacking)

    def _hides(self, step: int, shard: Shard) -> bool:
        """Whether this machine adds something else to this shard of its own than it pledged."""
        low, high = shard.bounds(toy.PARAMETERS)
        return step == self._defects.hides_at and high - low > 1

    def _apply(self, task: ef.Apply) -> ev.Event:
        assert self.state.step == task.step - 1, "applied out of order"
        total = tuple(value for part in task.sums for value in toy.unpack(part))
        if toy.checksum(total) != task.summary.checksum:
            return ev.ApplyRefused(task.step, "the sums do not match their checksum")
        self.previous, self.state = (
            self.state,
            toy.apply(self._machine.chain.config, self.state, total, task.summary),
        )
        if self._defects.wrong_apply_at == task.step:
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
        step = self._defects.hides_at
        plan = self._machine.core._board.plans.get(step)
        held = [computed.payload for computed in self._machine.core._contributor.of(step).values()]
        if plan is None or not held or payload is not held[0]:
            return 0
        added = [0] * toy.PARAMETERS
        for index, owner in enumerate(plan.owners):
            shard = Shard(index, len(plan.owners))
            if plan.roster[owner] == self._machine.me and self._hides(step, shard):
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
        self._world.committed(self._machine, task)
        if self._world.saves(self._machine, task.step):
            self._machine.disk = self.state

    def _verify(self, task: ef.Verify) -> ev.Event:
        wrong = self._defects.wrong_apply_at == task.step and not self._defects.denies
        return ev.Verified(task.step, "layers.0.attn" if wrong else None, "Adam, weights")

    def _diagnose(self, task: ef.Diagnose) -> ev.Event | None:
        """Which operation it was: found only where it is made wrong each time."""
        defects = self._defects
        if self._misreads(task.step, task.slot) and not defects.denies:
            self._world.crash(self._machine)
            return None
        wrong = task.peer == self._machine.me and defects.wrong_gradient_at == task.step
        tensor = "layers.0.q" if wrong else None
        return ev.Diagnosed(task.step, task.slot, task.peer, tensor, "product (int8)", "")

    def _audit(self, task: ef.Audit) -> ev.Event:
        state = self.lent.get(task.step)
        if state is None or self._machine.lacking:
            return ev.Audited(task.step, task.slots, task.reference, None)
        if any((task.step, slot) == self._world.not_finite for slot in task.slots):
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
        if not self._machine.stored or self._machine.stored[0].root != task.root:
            self._machine.stored = []
            return ev.Recalled(task.root)
        first, blob = self._machine.stored[0], bytearray(self._machine.stored[0].size)
        for kept in self._machine.stored:
            blob[kept.start : kept.start + len(kept.payload)] = kept.payload
        parts = fetch.right_parts(first.hashes, blob)
        return ev.Recalled(task.root, first.size, first.hashes, blob, parts)

    def _store(self, task: ef.Store) -> None:
        self._machine.stored = [kept for kept in self._machine.stored if kept.root == task.root]
        if self._world.now >= self._machine.full_until:
            self._machine.stored.append(task)

    def _spool(self, task: ef.Spool) -> ev.Event:
        if self._world.now < self._machine.full_until:
            return ev.Spooled(task.step, None, "the disk is full")
        copies = tuple(memoryview(bytes(payload)) for payload in task.payloads)
        self._machine.on_disk.update(map(id, copies))
        return ev.Spooled(task.step, copies)

    def _load(self, task: ef.Load) -> ev.Event:
        try:
            state = toy.from_bytes(task.blob)
        except ValueError as error:
            return ev.LoadRefused(task.step, str(error))
        if not self.usable(state, self._machine.chain.last_step):
            return ev.LoadRefused(task.step, "it is of another run")
        self.state, self.previous = state, None
        return ev.Loaded(state.step, state.hash)
