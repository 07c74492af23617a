"""What the leader decides: plans for the next steps, and new attempts when a peer is lost.

May import: board, effects, messages, plan.

Nothing here can change a result: any partition of the slots gives the same sums. It decides only
who does the work and whose hash a commit waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2pnode.protocol.board import Board, short
from p2pnode.protocol.effects import Kind
from p2pnode.protocol.messages import PeerId, Plan, PlanKey, Slots, Status
from p2pnode.protocol.plan import assign, assign_owners

HOLD_AFTER = 16
"""Plans after which the leader holds one boundary for a peer that still catches up; the joiner
keeps the sums of these steps meanwhile, so this bounds its memory."""
HOLD_PATIENCE = 10.0
"""Seconds without any progress of that peer after which it is waited for no longer."""


class Lead:
    """Plans, while this node leads and knows what the others have."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._attempt = 0
        self._began: dict[int, float] = {}
        self._half_done: dict[int, float] = {}
        self._observed: dict[PeerId, int] = {}
        self._moved: dict[PeerId, tuple[tuple[int, int], float]] = {}
        self._held_for: set[PeerId] = set()
        self._given_up: set[PeerId] = set()
        self._apart: dict[tuple[PeerId, PeerId], float] = {}

    def settle(self, own: Status) -> list[Plan]:
        """New plans to take and to send, if any are due. `own` is this node's status."""
        board = self._board
        views = dict(board.good_peers())
        if board.good(board.me):
            views[board.me] = own
        if not views:
            return []
        # Those beyond a stop order have to come back to it; they lead nowhere.
        reached = [view.applied for view in views.values() if view.applied <= board.last_step]
        if not reached:
            return []
        frontier = max(reached)
        able = [
            peer
            for peer in board.peers.members
            if peer in views and views[peer].applied >= frontier - 1 and not views[peer].wants_state
        ]
        self._watch(views, able)
        able = self._connected(able, views)
        made = []
        for step in (frontier + 1, frontier + 2):
            if step > board.last_step or not able:
                break
            plan = self._plan(step, frontier, able, views)
            if plan is not None:
                made.append(plan)
        if frontier == board.last_step and able and not self._closing(able):
            made.append(self._close(frontier, able, views))
        return made

    def _closing(self, able: list[PeerId]) -> bool:
        """Whether the newest roster can commit the last step: all of it is there."""
        newest = self._board.newest
        return (
            newest is not None
            and newest.key.term == self._board.term
            and set(newest.roster) <= set(able)
        )

    def _close(self, step: int, able: list[PeerId], views: dict[PeerId, Status]) -> Plan:
        """A new roster for the last step, which is applied: there is no later plan to tell it."""
        newest = self._board.newest
        roster = [peer for peer in newest.roster if peer in able] if newest else []
        roster = roster or able
        return self._make(step, roster, views, {}, (), len(roster), False)

    def _plan(
        self, step: int, frontier: int, able: list[PeerId], views: dict[PeerId, Status]
    ) -> Plan | None:
        board = self._board
        old = board.plans.get(step)
        if old is None:
            if self._holding(frontier) or not self._due(step, frontier, able, views):
                return None
            return self._make(step, able, views, {}, (), len(able), self._freeze(step, views))
        roster = [peer for peer in old.roster if peer in able]
        kept: dict[Slots, tuple[PeerId, ...]] = {}
        starved = _starved(old, views)
        if old.key.term == board.term and len(roster) == len(old.roster):
            extra = self._backup(old, frontier, views)
            if extra is None and not starved:
                return None
            if extra is not None:
                kept[extra[0]] = extra[1]
        elif not roster:
            roster = able
        # Gradients that are there first, then work that was given and may be under way.
        for peer in roster:
            if views[peer].applied == step - 1:
                for slots in views[peer].sets:
                    kept.setdefault(slots, (peer,))
        for work in old.work:
            if work.slots in starved:
                continue
            kept.setdefault(work.slots, tuple(old.roster[i] for i in work.workers))
        before = [old.roster[i] for i in old.owners]
        return self._make(step, roster, views, kept, before, len(old.owners), old.freeze)

    def _make(
        self,
        step: int,
        roster: list[PeerId],
        views: dict[PeerId, Status],
        kept: dict[Slots, tuple[PeerId, ...]],
        before: list[PeerId] | tuple[()],
        shards: int,
        freeze: bool,
    ) -> Plan:
        board = self._board
        key = board.newest_key
        attempt = key.attempt if key.term == board.term else 0
        self._attempt = max(self._attempt, attempt) + 1
        speeds = {peer: view.speed for peer, view in views.items()}
        return Plan(
            run=board.setup.run,
            key=PlanKey(board.term, self._attempt),
            leader=board.me,
            step=step,
            roster=tuple(roster),
            observers=tuple(
                peer for peer in board.peers.members if peer in views and peer not in roster
            ),
            work=assign(roster, board.setup.slots, speeds, kept, _lacking(roster, views)),
            owners=assign_owners(roster, before, shards),
            freeze=freeze,
            excluded=tuple(sorted(board.excluded)),
        )

    def _due(
        self, step: int, frontier: int, able: list[PeerId], views: dict[PeerId, Status]
    ) -> bool:
        """The next step is planned at once; the one after it when the first set of the next is
        done, so that its plan knows fresh speeds and newcomers."""
        return step == frontier + 1 or any(
            views[peer].applied == frontier and views[peer].sets for peer in able
        )

    def _holding(self, frontier: int) -> bool:
        """Whether nothing new is planned for now, because somebody catches up too slowly."""
        board = self._board
        for peer, since in self._observed.items():
            if frontier - since < HOLD_AFTER or peer in self._given_up:
                continue
            if peer not in self._held_for:
                self._held_for.add(peer)
                board.report(Kind.CATCH_UP, f"waiting for {short(peer)} to catch up", peer)
            if board.now - self._moved[peer][1] < HOLD_PATIENCE:
                return True
            self._given_up.add(peer)
        return False

    def _watch(self, views: dict[PeerId, Status], able: list[PeerId]) -> None:
        """Note since when each peer catches up, and when it last made progress."""
        for peer, view in views.items():
            if peer in able:
                self._observed.pop(peer, None)
                self._held_for.discard(peer)
                self._given_up.discard(peer)
                continue
            self._observed.setdefault(peer, max(item.applied for item in views.values()))
            progress = (view.applied, view.received)
            if self._moved.get(peer, (None, 0.0))[0] != progress:
                self._moved[peer] = (progress, self._board.now)
        for peer in [peer for peer in self._observed if peer not in views]:
            del self._observed[peer]

    def _connected(self, able: list[PeerId], views: dict[PeerId, Status]) -> list[PeerId]:
        """The able peers of which every two can exchange messages, directly or through one
        neighbour. A pair that cannot counts only after the silence limit: links come back."""
        board = self._board
        links = {
            peer: {other for other in view.links if other in views and peer in views[other].links}
            for peer, view in views.items()
        }
        chosen: list[PeerId] = []
        apart: dict[tuple[PeerId, PeerId], float] = {}
        for peer in able:
            alone = False
            for other in chosen:
                if other not in links[peer] and not links[peer] & links[other]:
                    since = self._apart.get((other, peer), board.now)
                    apart[other, peer] = since
                    alone |= board.now - since >= board.limits.silence
            if not alone:
                chosen.append(peer)
        self._apart = apart
        return chosen

    def _freeze(self, step: int, views: dict[PeerId, Status]) -> bool:
        """Whether donors should hold the state before `step` still: somebody needs a state, and
        no held one is recent enough to go on from with the sums that are kept."""
        board = self._board
        if not any(view.wants_state for view in views.values()):
            return False
        oldest = step - 1 - board.limits.kept_steps // 2
        if any(view.frozen is not None and view.frozen.step >= oldest for view in views.values()):
            return False
        return not any(plan.freeze and plan.step < step for plan in board.plans.values())

    def _backup(
        self, plan: Plan, frontier: int, views: dict[PeerId, Status]
    ) -> tuple[Slots, tuple[PeerId, ...]] | None:
        """A set that everybody else waits for noticeably, with a second worker for it."""
        board = self._board
        if plan.step != frontier + 1:
            return None
        began = self._began.setdefault(plan.step, board.now)
        self._began = {step: at for step, at in self._began.items() if step > frontier}
        done = {slots for view in views.values() if view.applied == frontier for slots in view.sets}
        late = [work for work in plan.work if work.slots not in done and len(work.workers) == 1]
        busy = {
            plan.roster[i] for work in plan.work if work.slots not in done for i in work.workers
        }
        idle = [
            peer for peer in plan.roster if peer not in busy and views[peer].applied == frontier
        ]
        if not late or 2 * len(idle) < len(plan.roster):
            return None
        half = self._half_done.setdefault(plan.step, board.now)
        self._half_done = {step: at for step, at in self._half_done.items() if step > frontier}
        if board.now - half < (half - began) + 2 * board.limits.heartbeat:
            return None
        helper = max(idle, key=lambda peer: (views[peer].speed, -board.peers.rank(peer)))
        return late[0].slots, (plan.roster[late[0].workers[0]], helper)


def _lacking(roster: Iterable[PeerId], views: dict[PeerId, Status]) -> set[PeerId]:
    """Those of the roster that have no text to compute on."""
    return {peer for peer in roster if peer in views and views[peer].lacking}


def _starved(plan: Plan, views: dict[PeerId, Status]) -> set[Slots]:
    """Sets that wait for text nobody of their workers has, while others of the roster have it."""
    lacking = _lacking(plan.roster, views)
    if all(peer in lacking for peer in plan.roster if peer in views):
        return set()
    done = {slots for view in views.values() for slots in view.holds(plan.step)}
    return {
        work.slots
        for work in plan.work
        if work.slots not in done and all(plan.roster[i] in lacking for i in work.workers)
    }
