"""What this node holds of other peers' work: contributions to its shards, and sums.

May import: board, effects, evidence, messages, pledges. Whether a contribution may be taken is
decided in guard; here it is only kept, within bounds.
"""

from __future__ import annotations

import dataclasses

from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import Reduce
from p2pnode.protocol.evidence import summarise
from p2pnode.protocol.messages import (
    Buffer,
    PeerId,
    Plan,
    Pledge,
    Priority,
    Shard,
    ShardSum,
    Slots,
    Summary,
)
from p2pnode.protocol.pledges import Pledges

BACKLOG = 32
"""Most steps whose sums are kept before they are applied (a joiner receives state meanwhile)."""
LAYOUTS = 4
"""Most different cuts into shards kept of one step."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A contribution as kept by the owner of its shard."""

    peer: PeerId
    base: bytes
    payload: Buffer


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """A shard's sum over all slots, and who said so."""

    peer: PeerId
    base: bytes
    summary: Summary
    payload: Buffer


@dataclasses.dataclass(frozen=True, slots=True)
class _Reduction:
    """A Reduce whose result is awaited. `ticket` tells it from one that was given up."""

    ticket: int
    summary: Summary
    peers: tuple[PeerId, ...]
    texts: dict[int, bytes]
    """Hash of the tokens that others computed a slot on."""


class Shelf:
    """Contributions and sums by their coordinates."""

    def __init__(self, board: Board, pledges: Pledges) -> None:
        self._board = board
        self._pledges = pledges
        self.parts: dict[int, dict[tuple[Slots, Shard], Part]] = {}
        self.sums: dict[int, dict[Shard, Sum]] = {}
        self._reducing: dict[tuple[int, Shard], _Reduction] = {}
        self._tickets = 0
        # One set for each slot and every shard owned here: no honest peer sends more of a step.
        self._most = 4 * board.setup.parameters * board.setup.slots
        self._pushed: set[tuple[int, Shard, PeerId]] = set()
        self.read: dict[tuple[int, int], bytes] = {}
        """By step and slot: hash of the tokens that another computed on, which are those here."""
        self.own: set[tuple[int, Slots]] = set()
        """Sets of a step whose contributions are taken from nobody else."""
        self.recounted = 0
        """Of this step no sums of others are taken: this node adds every shard (see recount)."""
        self.kept_from = board.applied + 1
        """First of the unbroken steps up to the applied one whose sums can be had here."""

    def state_changed(self) -> None:
        """Forget what the new state has no use for; sums of the last steps are kept to serve."""
        applied, kept = self._board.applied, self._board.limits.kept_steps
        self.parts = {step: parts for step, parts in self.parts.items() if step > applied}
        self.own = {(step, slots) for step, slots in self.own if step > applied}
        self.sums = {step: sums for step, sums in self.sums.items() if step > applied - kept}
        self.read = {key: value for key, value in self.read.items() if key[0] > applied - kept}
        self._reducing = {key: value for key, value in self._reducing.items() if key[0] > applied}
        self._pushed = {item for item in self._pushed if item[0] > applied - kept}
        base = self._board.hashes[applied]
        early = self.parts.get(applied + 1, {})
        for key in [key for key, part in early.items() if part.base != base]:
            del early[key]  # computed from another state; the commit rule finds out whose is wrong
        step = applied
        while step > 0 and self.complete(step) is not None:
            step -= 1
        self.kept_from = step + 1

    def put_part(self, step: int, slots: Slots, shard: Shard, part: Part) -> bool:
        """Keep a contribution; False if there is a pledged one for these coordinates or no
        room."""
        if (step, slots) in self.own and part.peer != self._board.me:
            return False
        parts = self.parts.setdefault(step, {})
        known = parts.get((slots, shard))
        if known is not None and (known.peer == part.peer or self._pledge(step, slots, known)):
            return False
        held = sum(len(kept.payload) for kept in parts.values() if kept.peer == part.peer)
        # A recount takes all shards of every cut; what is this node's own takes no memory.
        most = self._most * (LAYOUTS if step == self.recounted else 1)
        if part.peer != self._board.me and held + len(part.payload) > most:
            return False
        parts[slots, shard] = part
        return True

    def _pledge(self, step: int, slots: Slots, part: Part) -> Pledge | None:
        """The pledge that goes with a contribution, if it is here."""
        pledge = self._pledges.get(step, slots, part.peer)
        return pledge if pledge is not None and pledge.base == part.base else None

    def missing_parts(self, plan: Plan, index: int) -> dict[Slots, PeerId | None]:
        """Sets of the plan that its shard number `index` lacks here; those that lack only their
        pledge with the peer who owes it."""
        parts = self.parts.get(plan.step, {})
        shard = Shard(index, len(plan.owners))
        missing: dict[Slots, PeerId | None] = {}
        for work in plan.work:
            part = parts.get((work.slots, shard))
            if part is None:
                missing[work.slots] = None
            elif self._pledge(plan.step, work.slots, part) is None:
                missing[work.slots] = part.peer
        return missing

    def reduce(self, plan: Plan | None) -> None:
        """Add the contributions of every shard that is mine and complete."""
        board = self._board
        if plan is None:
            return
        for index, owner in enumerate(plan.owners):
            shard = Shard(index, len(plan.owners))
            if (
                (plan.roster[owner] != board.me and self.recounted != plan.step)
                or shard in self.sums.get(plan.step, {})
                or (plan.step, shard) in self._reducing
                or self.missing_parts(plan, index)
            ):
                continue
            order = sorted(plan.work, key=lambda work: (work.workers[0], work.slots))
            sets = [work.slots for work in order]
            parts = [self.parts[plan.step][slots, shard] for slots in sets]
            pledges = [
                pledge
                for slots, part in zip(sets, parts, strict=True)
                if (pledge := self._pledge(plan.step, slots, part)) is not None
            ]
            first, last = shard.pieces
            texts = tuple(
                tuple((item.slot, item.token_hash) for item in pledge.evidence)
                if pledge.peer != board.me
                else ()
                for pledge in pledges
            )
            self._tickets += 1
            self._reducing[plan.step, shard] = _Reduction(
                self._tickets,
                summarise([item for pledge in pledges for item in pledge.evidence]),
                tuple(part.peer for part in parts),
                {slot: token_hash for text in texts for slot, token_hash in text},
            )
            board.out.append(
                Reduce(
                    plan.step,
                    shard,
                    self._tickets,
                    tuple(part.payload for part in parts),
                    tuple(len(slots) for slots in sets),
                    tuple(
                        pledge.pieces[first:last] if pledge.peer != board.me else ()
                        for pledge in pledges
                    ),
                    texts,
                )
            )

    def owes(self, plan: Plan) -> bool:
        """Whether a shard of the plan that is mine is not added yet."""
        sums = self.sums.get(plan.step, {})
        return any(
            plan.roster[owner] == self._board.me and Shard(index, len(plan.owners)) not in sums
            for index, owner in enumerate(plan.owners)
        )

    def reduced(self, step: int, shard: Shard, ticket: int, payload: Buffer, *, read: bool) -> None:
        """A sum of my own. It stands, whatever plan its sets came from."""
        reduction = self._take(step, shard, ticket)
        if reduction is not None:
            if read:
                self.read |= {(step, slot): text for slot, text in reduction.texts.items()}
            base = self._board.hashes[self._board.applied]
            mine = Sum(self._board.me, base, reduction.summary, payload)
            self.sums.setdefault(step, {})[shard] = mine

    def reduce_refused(self, step: int, shard: Shard, ticket: int, part: int) -> PeerId | None:
        """Who sent the refused part; None if nobody waits for this Reduce any more."""
        reduction = self._take(step, shard, ticket)
        return reduction.peers[part] if reduction is not None else None

    def _take(self, step: int, shard: Shard, ticket: int) -> _Reduction | None:
        reduction = self._reducing.get((step, shard))
        if reduction is None or reduction.ticket != ticket:
            return None
        return self._reducing.pop((step, shard))

    def put_sum(self, message: ShardSum, peer: PeerId, payload: Buffer) -> bool:
        """Keep a sum another peer sent; False if it is known, stale, or there is no room."""
        if message.step <= self._board.applied:
            return False
        if message.step == self.recounted:
            return False
        sums = self.sums.get(message.step)
        if sums is None:
            if sum(step > self._board.applied for step in self.sums) >= BACKLOG:
                return False
            sums = self.sums.setdefault(message.step, {})
        layouts = {shard.count for shard in sums}
        if message.shard in sums:
            return False
        if message.shard.count not in layouts and len(layouts) >= LAYOUTS:
            return False
        sums[message.shard] = Sum(peer, message.base, message.summary, payload)
        return True

    def push(self, plan: Plan | None) -> None:
        """Send the sums that are mine to everybody who takes part or catches up."""
        board = self._board
        if plan is None or board.me not in plan.roster:
            return
        mine = plan.roster.index(board.me)
        for shard, held in self.sums.get(plan.step, {}).items():
            if held.peer != board.me and not (
                shard.count == len(plan.owners) and plan.owners[shard.index] == mine
            ):
                continue
            for peer in (*plan.roster, *plan.observers):
                item = (plan.step, shard, peer)
                if peer != board.me and item not in self._pushed and self.give(*item):
                    self._pushed.add(item)

    def give(self, step: int, shard: Shard, peer: PeerId) -> bool:
        """Send one held sum; False if there is no way to the peer now."""
        held = self.sums[step][shard]
        message = ShardSum(self._board.setup.run, step, held.base, shard, held.summary)
        key = ("sum", step, shard)
        return self._board.send(peer, message, held.payload, Priority.SHARD, key)

    def complete(self, step: int) -> list[Sum] | None:
        """The sums of a cut of which every shard is here, in order; None if there is none."""
        sums = self.sums.get(step)
        if not sums:
            return None
        for count in sorted({shard.count for shard in sums}):
            chosen = [sums.get(Shard(index, count)) for index in range(count)]
            if None not in chosen:
                return [held for held in chosen if held is not None]
        return None

    def settled(self, step: int, count: int) -> None:
        """The step was applied with the cut into `count` shards: what there is of others is
        unproven, and must not be handed out."""
        sums = self.sums.get(step, {})
        self.sums[step] = {shard: held for shard, held in sums.items() if shard.count == count}

    def give_up(self, step: int) -> None:
        """There is no room for the sums of this step: serve later steps only. Of a step ahead they
        are asked for again when its turn has come."""
        if step > self._board.applied:
            self.forget_sums(step)
            return
        self.sums = {known: sums for known, sums in self.sums.items() if known > step}
        self.kept_from = max(self.kept_from, step + 1)

    def distrust(self, peer: PeerId) -> None:
        """A peer's work turned out to be wrong: drop what it sent, and every sum not applied
        yet, because its work may be in it."""
        for parts in self.parts.values():
            for key in [key for key, part in parts.items() if part.peer == peer]:
                del parts[key]
        under_way = {step for step, _ in self._reducing}
        for step in [*under_way, *self.sums]:
            if step > self._board.applied:
                self.forget_sums(step)

    def rolled_back(self) -> None:
        """The applied step is open again: nothing that this node made from its state holds."""
        step = self._board.applied + 2
        parts = self.parts.get(step, {})
        self.parts[step] = {key: part for key, part in parts.items() if part.peer != self._board.me}
        self.forget_sums(step)

    def take_own(self, step: int, slots: Slots) -> None:
        """Let go of all contributions of a set, for this node's own."""
        self.own.add((step, slots))
        parts = self.parts.get(step, {})
        for key in [key for key in parts if key[0] == slots]:
            del parts[key]

    def whole(
        self, step: int, slots: Slots, count: int
    ) -> tuple[PeerId, tuple[Buffer, ...]] | None:
        """Who contributed a set, and all its shards of a cut; None if that is not one peer."""
        parts = self.parts.get(step, {})
        shards = [parts.get((slots, Shard(index, count))) for index in range(count)]
        found = [part for part in shards if part is not None]
        if len(found) < count or len({part.peer for part in found}) != 1:
            return None
        return found[0].peer, tuple(part.payload for part in found)

    def forget_sums(self, step: int) -> None:
        """Drop the sums of a step, to be made and asked for again; contributions stay."""
        self.sums.pop(step, None)
        self._reducing = {key: value for key, value in self._reducing.items() if key[0] != step}
        self._pushed = {item for item in self._pushed if item[0] != step}
