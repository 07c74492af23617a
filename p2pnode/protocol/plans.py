"""Plans as they arrive and spread: which one counts, and who has to be told.

May import: board, effects, messages, plan, recover, reduce.
"""

from __future__ import annotations

from p2pnode.protocol.board import Board, short
from p2pnode.protocol.effects import Kind
from p2pnode.protocol.messages import PeerId, Plan, PlanKey, Status
from p2pnode.protocol.plan import check_plan
from p2pnode.protocol.recover import Election, Repair
from p2pnode.protocol.reduce import Shelf

PLANS_KEPT = 64
"""Most plans kept; an honest leader is never more than a few steps ahead of anybody in need."""


class Plans:
    """Keeps the newest plan of every step, and the newest of all."""

    def __init__(self, board: Board, election: Election, repair: Repair, shelf: Shelf) -> None:
        self._board = board
        self._election = election
        self._repair = repair
        self._shelf = shelf
        self._told: dict[PeerId, tuple[PlanKey, float]] = {}

    def take(self, plan: Plan) -> None:
        """Keep a plan if it is newer than what is here. PeerError if it does not add up."""
        board = self._board
        check_plan(plan, board.setup.slots)
        self._election.heard_of(plan.key.term, plan.leader)
        current = plan.leader == board.leader and plan.key.term == board.term
        if not current and not board.leading:
            return  # of an earlier term; only a new leader learns from it what was under way
        known = board.plans.get(plan.step)
        if known is not None and known.key >= plan.key:
            return
        if plan.step > board.applied - 2 and (known or len(board.plans) < PLANS_KEPT):
            board.plans[plan.step] = plan
        if plan.step == board.applied + 1:
            self._repair.progressed()
        if board.newest is None or plan.key > board.newest.key:
            self._report_roster(plan)
            board.newest = plan
        self._exclude(plan.excluded)

    def _exclude(self, peers: tuple[PeerId, ...]) -> None:
        board = self._board
        for peer in peers:
            if peer not in board.excluded:
                board.exclude(peer)
                self._shelf.distrust(peer)
        if board.me in board.excluded:
            board.put_out()

    def _report_roster(self, plan: Plan) -> None:
        board = self._board
        known = board.newest.roster if board.newest else ()
        for peer in plan.roster:
            if peer not in known:
                board.report(Kind.ROSTER, f"{short(peer)} takes part", peer, plan.step)
        for peer in known:
            if peer not in plan.roster:
                board.report(Kind.ROSTER, f"{short(peer)} no longer takes part", peer, plan.step)

    def publish(self, plan: Plan) -> None:
        """Take a plan of our own and send it to everybody."""
        board = self._board
        self.take(plan)
        for peer, _ in board.good_peers():
            self._told[peer] = (board.newest_key, board.now)
            board.send(peer, plan, key=("plan", plan.step))

    def repair(self, peer: PeerId, status: Status) -> None:
        """Tell a peer the plans its status shows it lacks: a leader tells everybody, and
        everybody tells a new leader."""
        board = self._board
        current = board.plans.get(status.applied + 1)
        stale = status.plan < board.newest_key or (
            current is not None and status.current < current.key
        )
        if not stale or not (board.leading or status.leading):
            return
        key, at = self._told.get(peer, (None, 0.0))
        if key == board.newest_key and board.now - at < board.limits.heartbeat:
            return
        self._tell(peer, status.applied)

    def _tell(self, peer: PeerId, applied: int) -> None:
        board = self._board
        self._told[peer] = (board.newest_key, board.now)
        chosen = {plan.key: plan for step, plan in board.plans.items() if step > applied}
        if board.newest is not None:
            chosen[board.newest.key] = board.newest
        for key in sorted(chosen):
            board.send(peer, chosen[key], key=("plan", chosen[key].step))
