"""What this node computes: its sets of the current step, and handing them to the shard owners.

May import: board, effects, events, messages, pledges, reduce.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import CancelCompute, Compute
from p2pnode.protocol.events import Computed
from p2pnode.protocol.messages import Contribution, PeerId, Plan, Priority, Shard, Slots
from p2pnode.protocol.pledges import Pledges
from p2pnode.protocol.reduce import Part, Shelf

FORGET_SPEED = 32
"""Steps without work after which a speed is unknown again, so that a machine that was slow once
gets another chance."""


class Contributor:
    """Computes this node's sets of step `applied` + 1, pledges and keeps them until that step is
    committed."""

    def __init__(self, board: Board, shelf: Shelf, pledges: Pledges) -> None:
        self._board = board
        self._shelf = shelf
        self._pledges = pledges
        self.held: dict[Slots, Computed] = {}
        self.before: dict[Slots, Computed] = {}
        """Sets of the applied step, until it is committed."""
        self.speed = 0.0
        self._running: Slots | None = None
        self._started = 0.0
        self._measured = 0
        self._sent: set[tuple[int, Slots, Shard | None, PeerId]] = set()
        """Shards of a step's sets, and their pledges (None), and whom they went to."""
        self._hopeless: set[Slots] = set()

    def cancel(self) -> None:
        """Nobody needs the set that is being computed. It took at least this long."""
        if self._running is not None:
            elapsed = self._board.now - self._started
            if self.speed * elapsed > len(self._running) and not self._board.lacking:
                self.speed = len(self._running) / elapsed
            self._board.out.append(CancelCompute(self._board.applied + 1, self._running))
            self._running = None

    def supplied(self) -> None:
        """The text has come, or is waited for: what a set takes is measured from now on."""
        self._started = self._board.now

    def step_changed(self) -> None:
        """Another state: gradients of the old one are of no use but for the check of its step."""
        before, self.held = self.held, {}
        applied = self._board.applied
        self.before = {slots: held for slots, held in before.items() if held.step == applied}
        self._sent = {item for item in self._sent if item[0] >= applied}
        self._hopeless.clear()
        self._running = None
        if applied - self._measured > FORGET_SPEED:
            self.speed = 0.0

    def committed(self) -> None:
        """Nobody checks the applied step any more."""
        self.before.clear()

    def rolled_back(self) -> None:
        """The step is worked on again, with what was computed for it."""
        self.held, self.before = self.before, {}
        again = self._board.applied + 1
        self._sent = {item for item in self._sent if item[0] == again}
        self._hopeless.clear()

    def of(self, step: int) -> dict[Slots, Computed]:
        """What is held of a step's sets."""
        if step == self._board.applied + 1:
            return self.held
        return self.before if step == self._board.applied else {}

    def work(self, plan: Plan | None, orphans: Sequence[Slots] = ()) -> None:
        """Start the next set of the plan that is mine, or of the orphans; give up one that no
        longer is to be computed."""
        board = self._board
        todo: list[Slots] = []
        if plan is not None and board.me in plan.roster and board.good(board.me):
            mine = plan.roster.index(board.me)
            todo = [
                work.slots
                for work in plan.work
                if mine in work.workers
                and work.slots not in self.held
                and work.slots not in self._hopeless
            ]
        todo += [slots for slots in orphans if slots not in {*self.held, *self._hopeless}]
        if self._running is not None and self._running not in todo:
            self.cancel()
        if self._running is None and todo:
            self._running = todo[0]
            self._started = board.now
            board.out.append(Compute(board.applied + 1, todo[0]))

    def computed(self, event: Computed) -> None:
        """Keep a set; measure the speed if it was the one waited for."""
        if event.slots == self._running:
            self._running = None
            rate = len(event.slots) / max(self._board.now - self._started, 1e-6)
            self.speed = rate if self.speed == 0.0 else 0.5 * (self.speed + rate)
            self._measured = event.step
        self.held[event.slots] = event
        self._pledges.make(event)

    def refused(self, slots: Slots) -> None:
        """The set has no finite gradient here; whether that is so is for guard to find out."""
        self._hopeless.add(slots)
        if slots == self._running:
            self._running = None

    def push(self, plan: Plan | None) -> None:
        """Send every set of the plan that is held to the owners that have not had it, and its
        pledge to everybody before."""
        if plan is None or not self.held:
            return
        for work in plan.work:
            if work.slots not in self.held:
                continue
            for peer in (*plan.roster, *plan.observers):
                told = (plan.step, work.slots, None, peer)
                if peer == self._board.me or told in self._sent:
                    continue
                if self.pledge(plan.step, work.slots, peer):
                    self._sent.add(told)
            for index, owner in enumerate(plan.owners):
                peer = plan.roster[owner]
                item = (plan.step, work.slots, Shard(index, len(plan.owners)), peer)
                if item not in self._sent and self.give(*item):
                    self._sent.add(item)

    def keep(self, plan: Plan | None) -> None:
        """Hand every set that is held to this node itself, for every shard."""
        if plan is None:
            return
        for work in plan.work:
            if work.slots in self.held:
                for index in range(len(plan.owners)):
                    shard = Shard(index, len(plan.owners))
                    self.give(plan.step, work.slots, shard, self._board.me)

    def message(self, step: int, slots: Slots, shard: Shard) -> tuple[Contribution, memoryview]:
        """A held set's contribution to one shard."""
        held = self.of(step)[slots]
        low, high = shard.bounds(self._board.setup.parameters)
        base = self._board.hashes[step - 1]
        message = Contribution(self._board.setup.run, step, base, slots, shard)
        return message, memoryview(held.payload)[4 * low : 4 * high]

    def pledge(self, step: int, slots: Slots, peer: PeerId) -> bool:
        """Send the pledge for a held set; False if there is no way to the peer now. It goes the
        way of the contributions, so that it comes before them."""
        pledge = self._pledges.get(step, slots, self._board.me)
        if pledge is None:
            return False
        return self._board.send(peer, pledge, b"", Priority.SHARD, ("pledge", step, slots))

    def give(self, step: int, slots: Slots, shard: Shard, peer: PeerId) -> bool:
        """Hand a held set's contribution to the owner (maybe this node); False if there is no
        way to the peer now."""
        message, payload = self.message(step, slots, shard)
        if peer == self._board.me:
            part = Part(peer, message.base, payload)
            return self._shelf.put_part(message.step, slots, shard, part)
        key = ("contribution", message.step, slots, shard)
        return self._board.send(peer, message, payload, Priority.SHARD, key)
