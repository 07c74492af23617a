"""A step that this node computes whole, because it can check nobody's sums of it.

May import: board, messages, reduce.

Who takes no part in a step has no challenge to its workers: it takes the sums of who applied it. If
those who checked the step deny the state that came of them, the owners may be the liars or the
deniers, and asking again may bring the same. A step is a function of the state before: computing
all of it takes long, and needs nobody.
"""

from __future__ import annotations

from p2pnode.protocol.board import Board
from p2pnode.protocol.messages import Plan, PlanKey, Work
from p2pnode.protocol.reduce import Shelf


class Alone:
    """The step that is computed here without the others, if there is one."""

    def __init__(self, board: Board, shelf: Shelf) -> None:
        self._board = board
        self._shelf = shelf
        self._step = 0

    def begin(self, step: int) -> None:
        """The sums of this step, as others gave them, were denied."""
        self._step = step
        self._shelf.forget_sums(step)
        self._shelf.recounted = step  # of others no sums of it are taken any more

    def plan(self, step: int) -> Plan | None:
        """A plan of the step that has this node only; None if the step is not computed alone."""
        board = self._board
        if step != self._step:
            return None
        every = tuple(range(board.setup.slots))
        return Plan(
            board.setup.run,
            PlanKey(board.term, 0),
            board.me,
            step,
            roster=(board.me,),
            observers=(),
            work=(Work(every, (0,)),),
            owners=(0,),
            excluded=(),
            freeze=False,
        )
