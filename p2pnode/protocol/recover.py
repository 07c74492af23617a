"""Who leads, and asking again for what did not arrive.

May import: board, contribute, effects, messages, plan, reduce.
"""

from __future__ import annotations

from collections.abc import Hashable

from p2pnode.protocol.board import Board, short
from p2pnode.protocol.contribute import Contributor
from p2pnode.protocol.effects import Kind
from p2pnode.protocol.messages import PeerId, Shard, Slots, Status, Want
from p2pnode.protocol.peers import NEVER
from p2pnode.protocol.plan import next_term
from p2pnode.protocol.reduce import Shelf


class Election:
    """Follows the highest term; rises when the leader is lost and nobody earlier can lead."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._lost_since: float | None = None
        self._risen_at = 0.0
        self._began_at = 0.0

    def begin(self, lead: bool) -> None:
        self._began_at = self._board.now
        if lead:
            self._rise()

    def heard_of(self, term: int, leader: PeerId | None) -> None:
        """A peer follows `leader` in `term`: follow too if that is newer."""
        board = self._board
        if leader is None or (term, leader) <= (board.term, board.leader or b""):
            return
        if board.leading:
            board.report(Kind.LEADER, f"{short(leader)} leads in a later term; stepping down")
        board.term, board.leader, board.leading = term, leader, False
        self._lost_since = None

    def settle(self) -> None:
        """Rise if it is this node's turn."""
        board = self._board
        if board.leading or board.leaving:
            return
        if self._leader_serves():
            self._lost_since = None
            return
        if self._lost_since is None:
            self._lost_since = board.now
        # The first in order rises at once. The others wait for it, each longer than the one
        # before, so that somebody rises even if the first does not know that it is its turn.
        order = [peer for peer in self._order() if board.good(peer)]
        turn = order.index(board.me) if board.me in order else len(order)
        if board.now - self._lost_since >= turn * board.limits.silence:
            self._rise()

    def _leader_serves(self) -> bool:
        board = self._board
        if board.leader is None:
            return board.now - self._began_at < board.limits.silence
        entry = board.peers.get(board.leader)
        if entry is None or board.leader in board.excluded:
            return False
        status = entry.status
        if status is not None and status.leaving:
            return False
        if not board.good(board.leader) and not self._others_hear(board.leader):
            return False
        return status is None or status.leading or status.term < board.term

    def _others_hear(self, leader: PeerId) -> bool:
        """Somebody who follows the same leader has a link to it. Then it is this node that is cut
        off from it (beyond one neighbour): rising would only split the others."""
        return any(
            status.term == self._board.term and leader in status.links
            for _, status in self._board.good_peers()
        )

    def _order(self) -> list[PeerId]:
        board = self._board
        roster = board.newest.roster if board.newest else ()
        return [*roster, *(peer for peer in board.peers.members if peer not in roster)]

    def _rise(self) -> None:
        board = self._board
        board.term = next_term(board.term, board.peers.rank(board.me))
        board.leader, board.leading = board.me, True
        self._lost_since = None
        self._risen_at = board.now
        board.report(Kind.LEADER, f"this node leads now (term {board.term})")

    def informed(self) -> bool:
        """As a new leader: every live peer has reported in this term, or had time to."""
        board = self._board
        return board.now - self._risen_at >= 3 * board.limits.heartbeat or all(
            entry.status is not None and entry.status.term >= board.term
            for peer, entry in board.peers.items()
            if board.good(peer)
        )


class Repair:
    """Pulls what should have been pushed: each thing again and again with growing pauses, but not
    while bytes still come from the peer that has it."""

    def __init__(self, board: Board, shelf: Shelf, contributor: Contributor) -> None:
        self._board = board
        self._shelf = shelf
        self._contributor = contributor
        self._asked: dict[Hashable, tuple[float, int]] = {}
        self._since = 0.0

    def progressed(self) -> None:
        """The node moved on to another step or plan: start afresh."""
        self._asked.clear()
        self._since = self._board.now

    def link_up(self) -> None:
        """What was on its way over the old link is lost: ask at once."""
        self._asked.clear()
        self._since = NEVER

    def settle(self) -> None:
        """Ask for what is missing of the step this node works on."""
        board = self._board
        step = board.applied + 1
        if step > board.last_step or self._shelf.complete(step) is not None:
            return
        if self._ask_for_applied(step) or board.plan is None:
            return
        plan = board.plan
        count = len(plan.owners)
        held = self._shelf.sums.get(step, {})
        by_set: dict[tuple[PeerId, Slots], list[Shard]] = {}
        for index, owner in enumerate(plan.owners):
            shard = Shard(index, count)
            peer = plan.roster[owner]
            if shard in held:
                continue
            if peer != board.me:
                if self._may_ask(("sum", shard, peer), peer):
                    board.send(peer, Want(board.setup.run, step, (), (shard,)))
                continue
            for slots in self._shelf.missing_parts(plan, index):
                for holder, status in board.good_peers():
                    if status.applied == step - 1 and slots in status.sets:
                        by_set.setdefault((holder, slots), []).append(shard)
        for (holder, slots), shards in by_set.items():
            if self._may_ask(("set", slots, holder), holder):
                board.send(holder, Want(board.setup.run, step, slots, tuple(shards)))

    def _ask_for_applied(self, step: int) -> bool:
        """If peers have applied the step, its sums can be had from each of them."""
        board = self._board
        donors = [
            peer
            for peer, status in board.good_peers()
            if status.kept_from <= step <= status.applied
        ]
        if not donors:
            return False
        _, tries = self._asked.get(("applied", step), (0.0, 0))
        donor = donors[(tries + board.peers.rank(board.me)) % len(donors)]
        if self._may_ask(("applied", step), donor):
            plan = board.plan
            held = self._shelf.sums.get(step, {})
            missing = (
                tuple(
                    shard
                    for shard in (Shard(i, len(plan.owners)) for i in range(len(plan.owners)))
                    if shard not in held
                )
                if plan is not None and tries == 0
                else ()
            )
            board.send(donor, Want(board.setup.run, step, (), missing))
        return True

    def _may_ask(self, key: Hashable, peer: PeerId) -> bool:
        board = self._board
        entry = board.peers.get(peer)
        if entry is None:
            return False
        at, tries = self._asked.get(key, (self._since, 0))
        pause = 2 * board.limits.heartbeat * min(2**tries, 8)
        if at > NEVER and board.now - max(at, entry.moved) < pause:
            return False
        self._asked[key] = (board.now, tries + 1)
        return True

    def wanted(self, peer: PeerId, message: Want) -> None:
        """Answer a peer's request with what is held."""
        board = self._board
        if not message.slots:
            sums = self._shelf.sums.get(message.step, {})
            for shard in message.shards or tuple(sums):
                if shard in sums:
                    self._shelf.give(message.step, shard, peer)
        elif message.step == board.applied + 1 and message.slots in self._contributor.held:
            for shard in message.shards:
                if shard.index < shard.count:
                    self._contributor.give(message.slots, shard, peer)


def lagging(board: Board, shelf: Shelf) -> bool:
    """Others have gone on and nobody can serve the sums of this node's next step."""
    step = board.applied + 1
    ahead: list[Status] = [status for _, status in board.good_peers() if status.applied >= step]
    return (
        bool(ahead)
        and shelf.complete(step) is None
        and not any(status.kept_from <= step for status in ahead)
    )
