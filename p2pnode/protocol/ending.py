"""The end of a run: stop orders, the final state, and how long others still need this node.

May import: beacon, board, effects, messages.
"""

from __future__ import annotations

from p2pnode.protocol.beacon import Beacon
from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import Ending, Finished, Kind, Released
from p2pnode.protocol.messages import StopOrder


class Finish:
    """Ends the run at its last step, and the node's service when nobody needs it."""

    def __init__(self, board: Board, beacon: Beacon) -> None:
        self._board = board
        self._beacon = beacon
        self._finished = False
        self._others: object = None
        self._others_at = 0.0
        self._leaving_at: float | None = None

    def stop(self, order: StopOrder) -> None:
        """Take a stop order of the host; the one that names the earliest step counts."""
        board = self._board
        known = board.stop
        if known is not None and known.last_step <= order.last_step:
            return
        if order.last_step >= board.setup.steps or not board.setup.stop_valid(order):
            return
        board.stop = order
        if order.last_step < board.last_step:
            board.last_step, board.ending = order.last_step, Ending.STOPPED
            board.report(Kind.STOP, f"the host ends the run after step {order.last_step}")

    def leave(self) -> None:
        """The owner wants this machine back."""
        self._board.leaving = True
        self._leaving_at = self._board.now

    def settle(self) -> None:
        board = self._board
        if self._leaving_at is not None:
            replaced = board.newest is None or board.me not in board.newest.roster
            if replaced or board.now - self._leaving_at >= 3 * board.limits.heartbeat:
                self._release()
            return
        if board.committed == board.last_step == board.applied and not self._finished:
            self._finished = True
            state_hash = board.hashes[board.applied]
            board.out.append(Finished(board.applied, state_hash, board.ending, board.detail))
        if self._finished and self._nobody_needs_us():
            self._release()

    def _nobody_needs_us(self) -> bool:
        """Everybody alive has the final state, or has made no progress towards it for long."""
        board = self._board
        others = [
            (peer, entry.applied, entry.status.received if entry.status else 0)
            for peer, entry in board.peers.items()
            if board.good(peer)
            and (entry.status is None or entry.status.committed != board.last_step)
        ]
        if others != self._others:
            self._others, self._others_at = others, board.now
        return not others or board.now - self._others_at >= 4 * board.limits.silence

    def _release(self) -> None:
        self._beacon.settle()
        self._board.out.append(Released())
        self._board.over = True
