"""Sums that contradict their evidence: get the step right all the same, and name who was wrong.

May import: board, effects, guard, messages, reduce.

No sum alone shows that it is wrong: the checksum is of the whole vector. Nor do sums that another
peer has show it, since that peer may be the one who lies. So this node asks the workers for all
their contributions, computes the sets that nobody has any more, and adds every shard itself. When
the step can be applied, each sum that was refused and differs from its own was wrong, and its
sender is accused.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import Fault, Kind
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.messages import PeerId, Plan, Shard, Slots
from p2pnode.protocol.reduce import Shelf, Sum


class Recount:
    """Finds right sums of a step, and who sent wrong ones."""

    def __init__(self, board: Board, shelf: Shelf, guard: Guard) -> None:
        self._board = board
        self._shelf = shelf
        self._guard = guard
        self._refused: dict[tuple[Shard, PeerId], Sum] = {}
        self._since = 0.0

    def refused(self, step: int, sums: Sequence[Sum], reason: str) -> None:
        """These sums of all shards can not be applied: add everything here."""
        board = self._board
        board.report(Kind.REFUSED, f"sums of step {step}: {reason}", None, step)
        if self._shelf.recounted == step:
            board.fail(
                Fault.DIVERGENCE,
                f"The sums of step {step} contradict their evidence, also when all contributions "
                f"are added here ({reason}). The run stopped here at step {board.committed}.",
            )
            return
        self._refused = {
            (Shard(index, len(sums)), held.peer): held for index, held in enumerate(sums)
        }
        self._shelf.forget_sums(step)
        self._shelf.recounted = step
        self._since = board.now

    def orphans(self, plan: Plan | None) -> list[Slots]:
        """Sets that have to be computed here because nobody who has them is there any more."""
        board = self._board
        if plan is None or self._shelf.recounted != plan.step:
            return []
        if board.now - self._since < board.limits.silence:
            return []
        held = {
            slots
            for _, status in board.good_peers()
            if status.applied == board.applied
            for slots in status.sets
        }
        missing = {
            slots
            for index in range(len(plan.owners))
            for slots in self._shelf.missing_parts(plan, index)
        }
        return sorted(missing - held)

    def applied(self, step: int, sums: Sequence[Sum]) -> None:
        """These sums were right: whoever sent others for the same shards was wrong."""
        if step != self._shelf.recounted:
            return
        right = {Shard(index, len(sums)): held for index, held in enumerate(sums)}
        for (shard, peer), held in self._refused.items():
            truth = right.get(shard)
            if truth is None:
                continue
            if held.summary == truth.summary and bytes(held.payload) == bytes(truth.payload):
                continue
            if peer == self._board.me:
                self._board.fail(
                    Fault.UNSOUND,
                    f"This machine added shard {shard.index} of step {step} wrongly. Start it "
                    "again to run the gates.",
                )
            else:
                what = f"its sum of shard {shard.index} is not that of the contributions"
                self._guard.accuse(peer, step, what)
        self._refused = {}
