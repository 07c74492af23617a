"""The end of a run: where it is, the final state, and how long others still need this node.

May import: beacon, board, effects, events, messages, peers, recount.
"""

from __future__ import annotations

import dataclasses

from p2pnode.protocol.beacon import Beacon
from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import Ending, Finished, Kind, Released
from p2pnode.protocol.events import Redirected
from p2pnode.protocol.messages import PeerId
from p2pnode.protocol.peers import Peer
from p2pnode.protocol.recount import Recount

REFERENCE = 20.0
"""The reference kernels take at most so many times as long."""
MOST_PATIENCE = 600.0
"""Seconds that a peer which says that it audits can hold up the end at most."""


class Finish:
    """Ends the run at its last step, and the node's service when nobody needs it."""

    def __init__(self, board: Board, beacon: Beacon, recount: Recount) -> None:
        self._board = board
        self._beacon = beacon
        self._recount = recount
        self._finished = False
        self._audits: object = None
        self._audits_at = 0.0
        self._others: object = None
        self._others_at = 0.0
        self._leaving_at: float | None = None
        self._ordered_here = False

    def redirect(self, event: Redirected) -> None:
        """Go on under a new record: the run may end elsewhere, and others may be further than
        they should."""
        board = self._board
        board.setup = dataclasses.replace(board.setup, run=event.run)
        board.last_step = event.last_step
        board.ending = Ending.STOPPED if event.stopped else Ending.COMPLETE
        for _, entry in board.peers.items():
            if entry.applied > event.branch:
                entry.status = None
        board.peers_changed()
        self._ordered_here |= event.here
        if event.stopped:
            board.report(Kind.STOP, f"the run ends after step {event.last_step}, as was ordered")

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
        done = board.committed == board.last_step == board.applied
        settled = not self._recount.inquires and not self._audits_go_on()
        if done and settled and not self._finished:
            self._finished = True
            state_hash = board.hashes[board.applied]
            board.out.append(Finished(board.applied, state_hash, board.ending, board.detail))
        if self._finished and self._nobody_needs_us():
            self._release()

    def _audits_go_on(self) -> bool:
        """Somebody may still find wrong work. Peers whose audits do not end are waited for as long
        as the slowest could need to compute a step with the reference kernels."""
        board = self._board
        busy = [(peer, item) for peer, item in board.good_peers() if item.auditing]
        others = [(peer, item.auditing) for peer, item in busy]
        if others != self._audits:
            self._audits, self._audits_at = others, board.now
        step = max((board.setup.slots / max(item.speed, 1e-3) for _, item in busy), default=0.0)
        patience = 4 * board.limits.silence + min(REFERENCE * step, MOST_PATIENCE)
        waiting = bool(busy) and board.now - self._audits_at < patience
        return board.auditing > 0 or board.wronged or waiting

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
        """An order signed here may not have reached this one, who took part but is cut off."""
        status = entry.status
        taken = status is not None and not status.leaving and peer not in self._board.excluded
        return taken and not self._has_all(entry)

    def _release(self) -> None:
        self._beacon.settle()
        self._board.out.append(Released())
        self._board.over = True
