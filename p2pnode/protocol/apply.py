"""From complete sums to a committed state.

May import: board, check, effects, events, guard, messages, recount, reduce,
verdict.
"""

from __future__ import annotations

from collections import Counter

from p2pnode.protocol.board import Board
from p2pnode.protocol.check import Check
from p2pnode.protocol.effects import Apply, Commit, Ending, Fault, Kind
from p2pnode.protocol.events import ApplyRefused
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.messages import PeerId, Summary
from p2pnode.protocol.recount import Recount
from p2pnode.protocol.reduce import Shelf, Sum
from p2pnode.protocol.verdict import Verdict


class Applier:
    """Applies a step when the one before it is committed and the sums agree."""

    def __init__(
        self,
        board: Board,
        shelf: Shelf,
        guard: Guard,
        verdict: Verdict,
        recount: Recount,
        check: Check,
    ) -> None:
        self._board = board
        self._shelf = shelf
        self._guard = guard
        self._verdict = verdict
        self._recount = recount
        self._check = check
        self.sums: list[Sum] = []
        """What is being applied, or was."""
        self._summary: Summary | None = None
        self.running = False
        """Apply runs: the state is about to change."""

    def commit(self) -> None:
        """Commit the applied state if its sums are checked and the hashes say so."""
        board = self._board
        if board.applied == board.committed or self._check.passed < board.applied:
            return
        if not self._check.witnessed(self._verdict.voices(board.applied).values()):
            return
        if not self._verdict.committed():
            return
        board.committed = board.applied
        plan = board.plans.get(board.applied)
        credits = Counter[PeerId]()
        if plan is not None:
            for work in plan.work:
                credits[plan.roster[work.workers[0]]] += len(work.slots)
        state_hash = board.hashes[board.applied]
        board.out.append(Commit(board.applied, state_hash, self._summary, tuple(credits.items())))

    def apply(self) -> None:
        """Start the next step's apply if everything for it is here."""
        board = self._board
        step = board.applied + 1
        if self.running or board.applied != board.committed or self._guard.disputed(step):
            return
        if self._recount.busy:
            return
        sums = self._shelf.complete(step)
        if sums is None or not self._same_base(step, sums) or not self._same_summary(step, sums):
            return
        self.running = True
        self.sums = sums
        self._check.begins(sums)
        self._summary = sums[0].summary
        board.out.append(Apply(step, tuple(held.payload for held in sums), self._summary))

    def applied(self, step: int) -> None:
        """The state has changed; call before anything else forgets the old one."""
        self.running = False
        self._shelf.settled(step, len(self.sums))
        self._recount.applied(step, self.sums)

    def loaded(self) -> None:
        """The state came from others: there is no summary of its last step."""
        self._summary = None

    def refused(self, event: ApplyRefused) -> None:
        """The sums contradict their summary: get right ones. A state that would not be finite
        is the same for everybody: the run ends before it."""
        board = self._board
        self.running = False
        if event.step != board.applied + 1:
            return
        if event.non_finite:
            board.last_step, board.ending = event.step - 1, Ending.NON_FINITE
            board.detail = f"step {event.step} gives a state that is not finite ({event.reason})"
            board.report(Kind.NON_FINITE, board.detail, None, event.step)
            return
        if not self._check.outdated(event.step):
            self._recount.refused(event.step, self.sums, event.reason)

    def _same_base(self, step: int, sums: list[Sum]) -> bool:
        """All sums must start from our committed state; if not, the majority is right."""
        board = self._board
        mine = board.hashes[board.applied]
        bases = {held.peer: held.base for held in sums if held.peer != board.me}
        astray = [peer for peer, base in bases.items() if base != mine]
        if not astray:
            return True
        if 2 * len(astray) < 1 + len(bases):
            for peer in astray:
                self._guard.accuse(peer, step, "its sum starts from another state than ours")
        else:
            board.fail(
                Fault.DIVERGENCE,
                f"This machine committed another state of step {board.applied} than the others, "
                "and no majority agrees with it.",
            )
        return False

    def _same_summary(self, step: int, sums: list[Sum]) -> bool:
        """Owners must say the same of the step. A majority would not show who is right: one who
        lies may have sent most of the sums."""
        if all(held.summary == sums[0].summary for held in sums):
            return True
        self._recount.refused(step, sums, "their owners contradict each other")
        return False
