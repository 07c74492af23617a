"""Statuses: making this node's, sending it every heartbeat and on change, taking others'.

May import: board, check, contribute, guard, join, messages, plan, reduce, verdict.
"""

from __future__ import annotations

from p2pnode.protocol.board import Board
from p2pnode.protocol.check import Check
from p2pnode.protocol.contribute import Contributor
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.join import CatchUp
from p2pnode.protocol.messages import Claim, PeerId, Status
from p2pnode.protocol.plan import NO_PLAN
from p2pnode.protocol.reduce import Shelf
from p2pnode.protocol.verdict import Verdict


class Beacon:
    """Tells the others what this node has and is."""

    def __init__(
        self,
        board: Board,
        contributor: Contributor,
        shelf: Shelf,
        guard: Guard,
        verdict: Verdict,
        catch_up: CatchUp,
        check: Check,
    ) -> None:
        self._board = board
        self._contributor = contributor
        self._shelf = shelf
        self._guard = guard
        self._verdict = verdict
        self._catch_up = catch_up
        self._check = check
        self._seq = 0
        self._told: object = None
        self.next_at = 0.0
        """When the next heartbeat is due."""
        self.received = 0
        """Bulk bytes received."""

    def status(self) -> Status:
        """This node's status now."""
        board = self._board
        return Status(
            run=board.setup.run,
            boot=board.setup.boot,
            seq=self._seq,
            term=board.term,
            leader=board.leader,
            leading=board.leading,
            applied=board.applied,
            state_hash=board.hashes[board.applied],
            committed=board.committed,
            committed_hash=board.hashes[board.committed],
            plan=board.newest_key,
            current=board.plan.key if board.plan else NO_PLAN,
            links=board.peers.links(board.now),
            sets=tuple(self._contributor.held),
            before=tuple(self._contributor.before),
            speed=self._contributor.speed,
            kept_from=self._shelf.kept_from,
            wants_state=self._catch_up.wants_state,
            received=self.received,
            frozen=self._catch_up.frozen,
            verified=self._verdict.verified,
            checked=self._check.vouched,
            claim=self._claim(),
            auditing=board.auditing,
            lacking=board.lacking,
            leaving=board.leaving,
        )

    def _claim(self) -> Claim | None:
        """What this node claims; nothing about a state that may not stand."""
        claim = self._guard.claim
        return claim if claim is not None and claim.step <= self._check.passed + 1 else None

    def settle(self) -> None:
        """Send the status if a heartbeat is due or something others act on has changed."""
        board = self._board
        told = (
            board.term,
            board.leading,
            board.applied,
            board.committed,
            board.newest_key,
            board.plan,
            board.peers.links(board.now),
            len(self._contributor.held),
            self._catch_up.wants_state,
            self._catch_up.frozen,
            self._verdict.verified,
            self._check.passed,
            self._claim(),
            board.auditing,
            board.setup.run,
            board.lacking,
            board.leaving,
        )
        if told == self._told and board.now < self.next_at:
            return
        self._told = told
        self._seq += 1
        self.next_at = board.now + board.limits.heartbeat
        status = self.status()
        for peer in board.peers.members:
            if peer != board.me:
                board.send(peer, status, key="status")

    def take(self, peer: PeerId, status: Status) -> bool:
        """Keep a peer's status unless a newer one is here; says whether it was kept."""
        entry = self._board.peers[peer]
        known = entry.status
        if known is not None and known.boot == status.boot and known.seq >= status.seq:
            return False
        entry.status = status
        entry.status_at = self._board.now
        return True
