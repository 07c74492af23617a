"""Sums that contradict their evidence: get the step right all the same, and name who was wrong.

May import: board, effects, guard, messages, reduce.

No sum alone shows that it is wrong: the checksum is of the whole vector. So the sums are first
asked for again (it may have been an accident on the way), then taken from one source at a time:
from each peer that says it has applied the step, and if none has, from nobody: this node asks the
workers for all their contributions and adds every shard itself. When at last the step can be
applied, each sum that was refused and differs from the one applied was wrong, and its sender is
accused.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import Fault, Kind
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.messages import PeerId, Plan, Shard, Slots
from p2pnode.protocol.reduce import Shelf, Sum

EASY_TRIES = 2
"""Refusals of one step after which the sums are taken from one source at a time."""


class Recount:
    """Finds right sums of a step, and who sent wrong ones."""

    def __init__(self, board: Board, shelf: Shelf, guard: Guard) -> None:
        self._board = board
        self._shelf = shelf
        self._guard = guard
        self._step = 0
        self._refusals = 0
        self._refused: dict[tuple[Shard, PeerId], Sum] = {}
        self._tried: set[PeerId] = set()
        self._since = 0.0

    def refused(self, step: int, sums: Sequence[Sum], reason: str) -> None:
        """These sums of all shards can not be applied."""
        board = self._board
        if step != self._step:
            self._step, self._refusals, self._refused, self._tried = step, 0, {}, set()
        self._refusals += 1
        board.report(Kind.REFUSED, f"sums of step {step}: {reason}", None, step)
        for index, held in enumerate(sums):
            self._refused[Shard(index, len(sums)), held.peer] = held
        source = self._source()
        self._shelf.forget_sums(step)
        self._shelf.sole_source = None
        if source == board.me:
            board.fail(
                Fault.DIVERGENCE,
                f"The sums of step {step} contradict their evidence, also when all contributions "
                f"are added here ({reason}). The run stopped here at step {board.committed}.",
            )
        elif source is not None:
            self._tried.add(source)

    def settle(self) -> None:
        """Choose the source of the step's sums, if easy tries have failed."""
        board = self._board
        step = board.applied + 1
        if step != self._step or self._refusals < EASY_TRIES:
            return
        source = self._source()
        donors = [
            peer
            for peer, status in board.good_peers()
            if status.kept_from <= step <= status.applied and peer not in self._tried
        ]
        if source in donors:
            if board.now - self._since < 4 * board.limits.silence:
                return
            self._tried.add(source)  # it says that it has them, but never sends them
            donors.remove(source)
        chosen = donors[0] if donors else board.me
        if chosen != source:
            self._shelf.forget_sums(step)
            self._shelf.sole_source = (step, chosen)
            self._since = board.now

    def orphans(self, plan: Plan | None) -> list[Slots]:
        """Sets that have to be computed here because nobody who has them is there any more."""
        board = self._board
        if plan is None or not self._shelf.recounting(plan.step):
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
        if step != self._step:
            return
        source = self._source()
        self._step, self._shelf.sole_source = 0, None
        right = {Shard(index, len(sums)): held for index, held in enumerate(sums)}
        for (shard, peer), held in self._refused.items():
            truth = right.get(shard)
            if truth is None:
                continue
            if held.summary == truth.summary and bytes(held.payload) == bytes(truth.payload):
                continue
            if peer == self._board.me:
                if source == peer:  # from the same contributions; others may have had other ones
                    self._board.fail(
                        Fault.UNSOUND,
                        f"This machine added shard {shard.index} of step {step} wrongly. Start "
                        "it again to run the gates.",
                    )
            else:
                what = f"its sum of shard {shard.index} is not that of the contributions"
                self._guard.accuse(peer, step, what)
        self._refused = {}

    def _source(self) -> PeerId | None:
        source = self._shelf.sole_source
        return source[1] if source is not None and source[0] == self._step else None
