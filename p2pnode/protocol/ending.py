"""The end of a run: stop orders, the final state, and how long others still need this node.

May import: beacon, board, effects, messages, peers.
"""

from __future__ import annotations

from p2pnode.protocol.beacon import Beacon
from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import Ending, Finished, Kind, Released
from p2pnode.protocol.messages import PeerId, StopOrder
from p2pnode.protocol.peers import Peer

AHEAD = 2
"""A host that orders to stop names at most this many steps more than it has applied: those whose
plans it has."""


class Finish:
    """Ends the run at its last step, and the node's service when nobody needs it."""

    def __init__(self, board: Board, beacon: Beacon) -> None:
        self._board = board
        self._beacon = beacon
        self._finished = False
        self._others: object = None
        self._others_at = 0.0
        self._leaving_at: float | None = None
        self._ordered_here = False

    def stop(self, order: StopOrder) -> None:
        """Take a stop order of the host; the one that names the earliest step counts. It is
        passed on in every status, whether or not it can be obeyed."""
        board = self._board
        known = board.stop
        if known is not None and known.last_step <= order.last_step:
            return
        if order.last_step >= board.setup.steps or not board.setup.stop_valid(order):
            return
        board.stop = order

    def _obey(self) -> None:
        """End at the ordered step. One that is beyond it needs somebody who has that state or is
        about to, and goes on if there is nobody (any more): both ends are states of the one
        run."""
        board, order = self._board, self._board.stop
        if order is None or self._finished:
            return
        last = order.last_step
        beyond = board.applied > last
        reached = any(
            last - AHEAD <= status.applied <= last and status.stop == order
            for _, status in board.good_peers()
        )
        if not beyond or reached:
            if last < board.last_step:
                board.last_step, board.ending = last, Ending.STOPPED
                board.report(Kind.STOP, f"the host ends the run after step {last}")
        elif board.ending is Ending.STOPPED and board.last_step == last:
            board.last_step, board.ending = board.setup.steps, Ending.COMPLETE
            board.report(
                Kind.STOP, f"nobody has the state of step {last} any more; the run goes on"
            )

    def order(self, order: StopOrder) -> None:
        """This node's owner, the host, orders the run to stop."""
        self._ordered_here = True
        self.stop(order)

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
        self._obey()
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
            if (board.good(peer) and not self._has_all(entry))
            or (self._ordered_here and not board.good(peer) and self._may_return(peer, entry))
        ]
        if others != self._others:
            self._others, self._others_at = others, board.now
        return not others or board.now - self._others_at >= 4 * board.limits.silence

    def _has_all(self, entry: Peer) -> bool:
        return entry.status is not None and entry.status.committed == self._board.last_step

    def _may_return(self, peer: PeerId, entry: Peer) -> bool:
        """The host's order may not have reached this one, who took part but is cut off."""
        status = entry.status
        taken = status is not None and not status.leaving and peer not in self._board.excluded
        return taken and not self._has_all(entry)

    def _release(self) -> None:
        self._beacon.settle()
        self._board.out.append(Released())
        self._board.over = True
