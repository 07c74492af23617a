"""Who leads, and asking again for what did not arrive.

May import: errors, alone, board, check, contribute, effects, messages, plan, reduce.
"""

from __future__ import annotations

from collections.abc import Hashable

from p2pnode.errors import PeerError
from p2pnode.protocol.alone import Alone
from p2pnode.protocol.board import Board, short
from p2pnode.protocol.check import Check
from p2pnode.protocol.contribute import Contributor
from p2pnode.protocol.effects import Kind
from p2pnode.protocol.messages import PeerId, Shard, Slots, Status, Want
from p2pnode.protocol.plan import TERM_LEAP, next_term
from p2pnode.protocol.reduce import Shelf


class Election:
    """Follows the highest term; rises when the leader is lost and nobody earlier can lead."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._lost_since: float | None = None
        self._risen_at = 0.0
        self._began_at = 0.0

    def begin(self, lead: bool) -> None:
        """The run begins here. `lead`: this node makes the first plan."""
        self._began_at = self._board.now
        if lead:
            self._rise()

    def heard_of(self, term: int, leader: PeerId | None) -> None:
        """A peer follows `leader` in `term`: follow too if that is newer. PeerError if no group
        can have got so far."""
        board = self._board
        if leader is None or (term, leader) <= (board.term, board.leader or b""):
            return
        if term > board.term + TERM_LEAP:
            raise PeerError(f"follows a leader in term {term}, which no run reaches")
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
        board.term = next_term(board.term, board.peers.rank(board.me), board.setup.boot)
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

    def __init__(
        self, board: Board, shelf: Shelf, contributor: Contributor, check: Check, alone: Alone
    ) -> None:
        self._board = board
        self._shelf = shelf
        self._contributor = contributor
        self._check = check
        self._alone = alone
        self._asked: dict[Hashable, tuple[float, int, int]] = {}
        """When it was last asked for, how often, and the bytes the holder had sent by then."""
        self._since = 0.0

    def progressed(self) -> None:
        """The node moved on to another step or plan: start afresh."""
        self._asked.clear()
        self._since = self._board.now

    def settle(self) -> None:
        """Ask for what is missing of the step this node works on."""
        board = self._board
        step = board.applied + 1
        done = self._shelf.complete(step) is not None or self._alone.plan(step) is not None
        if step > board.last_step or done:
            return
        recounting = self._shelf.recounted == step
        if (not recounting and self._ask_for_applied(step)) or board.plan is None:
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
            if peer != board.me and not recounting:
                if self._may_ask(("sum", shard, peer), peer):
                    board.send(peer, Want(board.setup.run, step, (), (shard,)))
                continue
            for slots, debtor in self._shelf.missing_parts(plan, index).items():
                for holder, status in board.good_peers():
                    if slots in status.holds(step):
                        # Who sent its part owes only its pledge, which comes before every answer.
                        wanted = by_set.setdefault((holder, slots), [])
                        if holder != debtor:
                            wanted.append(shard)
        for (holder, slots), shards in by_set.items():
            if self._may_ask(("set", slots, holder), holder):
                board.send(holder, Want(board.setup.run, step, slots, tuple(shards)))

    def _ask_for_applied(self, step: int) -> bool:
        """If peers have applied the step, its sums can be had from each of them."""
        board = self._board
        donors = [
            peer
            for peer, status in board.good_peers()
            if status.kept_from <= step <= status.applied and board.reachable(peer)
        ]
        if not donors:
            return False
        key = ("applied", step)
        tries = self._asked[key][1] if key in self._asked else 0
        donor = donors[(tries + board.peers.rank(board.me)) % len(donors)]
        # Nobody pushes to one who is in no plan of this term: no reason to wait for it first.
        plan = board.plan
        pushed = (
            plan is not None
            and plan.key.term == board.term
            and board.me in (*plan.roster, *plan.observers)
        )
        missing, owners = self._missing_sums(step)
        if not pushed:
            missing, owners = (), []
        if self._may_ask(key, donor, *owners, at_once=not pushed):
            # A donor may hold the step in another cut than the plan's: every other time, all of it.
            wanted = missing if tries % 2 == 0 else ()
            board.send(donor, Want(board.setup.run, step, (), wanted))
        return True

    def _missing_sums(self, step: int) -> tuple[tuple[Shard, ...], list[PeerId]]:
        """Shards the plan's cut still lacks here, and their owners, who may be sending them."""
        plan = self._board.plan
        if plan is None:
            return (), []
        held = self._shelf.sums.get(step, {})
        missing = {
            Shard(index, len(plan.owners)): plan.roster[owner]
            for index, owner in enumerate(plan.owners)
            if Shard(index, len(plan.owners)) not in held
        }
        return tuple(missing), list(missing.values())

    def _may_ask(
        self, key: Hashable, holder: PeerId, *owners: PeerId, at_once: bool = False
    ) -> bool:
        """Whether it is time to ask the holder. While bytes come from it or from the owners, who
        push of their own accord, it is not; but a whole vector of other things is no excuse."""
        board = self._board
        entry = board.peers.get(holder)
        if entry is None or not board.reachable(holder):
            return False
        at, tries, received = self._asked.get(key, (self._since, 0, entry.received))
        pause = 2 * board.limits.heartbeat * min(2**tries, 8)
        sources = [source for peer in owners if (source := board.peers.get(peer)) is not None]
        if entry.received - received < 4 * board.setup.parameters:
            sources.append(entry)
        last = max([at, *(source.moved for source in sources)])
        # What was on its way over a link that broke is lost: ask at once when it is back.
        renewed = entry.linked_at > max(at, entry.moved)
        if not renewed and not (at_once and tries == 0) and board.now - last < pause:
            return False
        self._asked[key] = (board.now, tries + 1, entry.received)
        return True

    def wanted(self, peer: PeerId, message: Want) -> None:
        """Answer a peer's request with what is held."""
        if not message.slots:
            if message.step > self._check.passed + 1:
                return  # made from a state that may not stand
            sums = self._shelf.sums.get(message.step, {})
            for shard in message.shards or tuple(sums):
                if shard in sums:
                    self._shelf.give(message.step, shard, peer)
        elif message.slots in self._contributor.of(message.step):
            self._contributor.pledge(message.step, message.slots, peer)
            for shard in message.shards:
                if shard.index < shard.count:
                    self._contributor.give(message.step, message.slots, shard, peer)


def lagging(board: Board, shelf: Shelf) -> bool:
    """Others have gone on and nobody can serve the sums of this node's next step."""
    step = board.applied + 1
    ahead: list[Status] = [status for _, status in board.good_peers() if status.applied >= step]
    return (
        bool(ahead)
        and shelf.complete(step) is None
        and not any(status.kept_from <= step for status in ahead)
    )
