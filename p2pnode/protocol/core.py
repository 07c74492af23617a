"""The step core of one node in one run: events in, effects out, no I/O, no clock, no randomness.

May import: errors and the rest of protocol.

    core = StepCore(setup)
    effects = core.handle(event, now)       # now: monotonic seconds, never going back
    core.next_deadline()                    # send Tick then

After every event the core looks at everything that may now be done (`_settle`). It never waits
for one message in particular: pushes make it fast, and what a push lost, statuses and pulls repair.
"""

from __future__ import annotations

from collections import Counter

from p2pnode.errors import PeerError
from p2pnode.protocol import events as ev
from p2pnode.protocol.beacon import Beacon
from p2pnode.protocol.board import Board, short
from p2pnode.protocol.contribute import Contributor
from p2pnode.protocol.effects import (
    Apply,
    Commit,
    DropPeer,
    Effect,
    Ending,
    Fault,
    Finished,
    Kind,
    Released,
)
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.join import CatchUp
from p2pnode.protocol.lead import Lead
from p2pnode.protocol.messages import (
    Accuse,
    BlobIndex,
    BlobPart,
    BlobWant,
    Confess,
    Contribution,
    PeerId,
    Plan,
    ShardSum,
    Status,
    StopOrder,
    Summary,
    Want,
)
from p2pnode.protocol.plan import check_plan
from p2pnode.protocol.recover import Election, Repair
from p2pnode.protocol.reduce import Shelf, Sum
from p2pnode.protocol.setup import Setup
from p2pnode.protocol.verdict import Verdict

PLANS_KEPT = 64
"""Most plans kept; an honest leader is never more than a few steps ahead of anybody in need."""
APPLY_TRIES = 3
"""Times that contradictory sums of one step are asked for again before this node gives up."""


class StepCore:
    """One node's part in a run."""

    def __init__(self, setup: Setup) -> None:
        self._board = board = Board(setup)
        self._shelf = Shelf(board)
        self._contributor = Contributor(board, self._shelf)
        self._guard = Guard(board, self._shelf, self._contributor)
        self._verdict = Verdict(board, self._guard, self._shelf)
        self._election = Election(board)
        self._lead = Lead(board)
        self._repair = Repair(board, self._shelf, self._contributor)
        self._catch_up = CatchUp(board, self._shelf)
        self._beacon = Beacon(
            board, self._contributor, self._shelf, self._guard, self._verdict, self._catch_up
        )
        self._started = False
        self._applying = False
        self._apply_tries = 0
        self._summary: Summary | None = None
        self._plan_told: dict[PeerId, tuple[object, float]] = {}
        self._finished = False
        self._others: object = None
        self._others_at = 0.0
        self._leaving_at: float | None = None

    # For the node and its user interface

    @property
    def applied(self) -> int:
        return self._board.applied

    @property
    def committed(self) -> int:
        return self._board.committed

    @property
    def last_step(self) -> int:
        return self._board.last_step

    @property
    def term(self) -> int:
        return self._board.term

    @property
    def leader(self) -> PeerId | None:
        return self._board.leader

    @property
    def leading(self) -> bool:
        return self._board.leading

    @property
    def plan(self) -> Plan | None:
        """Newest plan known."""
        return self._board.newest

    def stop_step(self) -> int:
        """The last step that a host should order in order to stop now: nobody it can reach has
        gone beyond."""
        board = self._board
        steps = [board.applied, *board.plans]
        steps += [status.applied for _, status in board.good_peers()]
        return min(max(steps), board.last_step)

    def next_deadline(self) -> float:
        """When a Tick is due: at most one heartbeat away."""
        return self._beacon.next_at

    # Events

    def handle(self, event: ev.Event, now: float) -> list[Effect]:
        """Take one event and say what is to be done. Never raises for what a peer sent."""
        board = self._board
        if board.over:
            return []
        board.now = now
        board.out = []
        quiet = self._dispatch(event)
        if self._started and not quiet:
            self._settle()
        if board.failure is not None:
            self._beacon.settle()
            board.out.append(board.failure)
        return board.out

    def _dispatch(self, event: ev.Event) -> bool:
        """Take the event; True if nothing can follow from it before the next one."""
        board = self._board
        match event:
            case ev.Heard(peer, nbytes):
                if peer in board.peers:
                    board.peers.heard(peer, board.now, None, nbytes)
                    if nbytes:
                        self._beacon.received += nbytes
                        self._catch_up.heard(peer)
                return True
            case ev.MessageReceived(peer, _, _, via):
                if peer not in board.peers or event.message.run != board.setup.run:
                    return True
                board.peers.heard(peer, board.now, via, 0)
                try:
                    self._message(peer, event)
                except PeerError as error:
                    board.report(Kind.REFUSED, f"{short(peer)}: {error}", peer)
                    board.out.append(DropPeer(peer, str(error)))
            case ev.LinkUp(peer):
                board.peers.link_up(peer, board.now)
                self._repair.link_up()
            case ev.LinkDown(peer):
                board.peers.link_down(peer)
                self._catch_up.link_lost(peer)
            case ev.Computed():
                self._computed(event)
            case ev.SetRefused():
                self._guard.set_refused(event)
            case ev.Reduced(step, shard, ticket, payload):
                self._shelf.reduced(step, shard, ticket, payload)
            case ev.ReduceRefused(step, shard, ticket, part, reason):
                culprit = self._shelf.reduce_refused(step, shard, ticket, part)
                if culprit is not None:
                    self._guard.accuse(culprit, step, f"its contribution is impossible: {reason}")
            case ev.Applied(step, state_hash):
                self._applied(step, state_hash)
            case ev.ApplyRefused():
                self._apply_refused(event)
            case ev.Verified():
                self._verdict.answered(event)
            case ev.Frozen():
                self._catch_up.held_still(event)
            case ev.Loaded(step, state_hash):
                self._loaded(step, state_hash)
            case ev.LoadRefused():
                self._catch_up.refused(event)
            case ev.RosterChanged(members, kicked):
                self._roster_changed(members, kicked)
            case ev.StopRequested(order):
                self._stop(order)
            case ev.LeaveRequested():
                board.leaving = True
                self._leaving_at = board.now
            case ev.Start(lead):
                self._started = True
                self._others_at = board.now
                self._election.begin(lead)
            case ev.Tick():
                pass
        return False

    def _message(self, peer: PeerId, event: ev.MessageReceived) -> None:
        match event.message:
            case Status() as status:
                if self._beacon.take(peer, status):
                    self._status(peer, status)
            case Plan() as plan:
                self._take_plan(plan)
            case Contribution() as contribution:
                self._guard.contribution(peer, contribution, event.payload)
            case ShardSum() as shard_sum:
                self._guard.sum(peer, shard_sum, event.payload)
            case Want() as want:
                self._repair.wanted(peer, want)
            case Accuse() as accusation:
                self._guard.accused(peer, accusation)
            case Confess() as confession:
                self._verdict.confessed(peer, confession)
            case BlobWant() as request:
                self._catch_up.serve(peer, request)
            case BlobIndex() as index:
                self._catch_up.index(peer, index, event.payload)
            case BlobPart() as part:
                self._catch_up.part(peer, part, event.payload)

    def _status(self, peer: PeerId, status: Status) -> None:
        board = self._board
        self._election.heard_of(status.term, status.leader)
        if status.stop is not None:
            self._stop(status.stop)
        if status.claim is not None:
            self._guard.claimed(peer, status.claim)
        # Whoever leads has everybody know its plans; a new leader is told by all.
        current = board.plans.get(status.applied + 1)
        stale = status.plan < board.newest_key or (
            current is not None and status.current < current.key
        )
        if stale and (board.leading or status.leading):
            key, at = self._plan_told.get(peer, (None, 0.0))
            if key != board.newest_key or board.now - at >= board.limits.heartbeat:
                self._tell_plans(peer, status.applied)

    def _tell_plans(self, peer: PeerId, applied: int) -> None:
        board = self._board
        self._plan_told[peer] = (board.newest_key, board.now)
        chosen = {plan.key: plan for step, plan in board.plans.items() if step > applied}
        if board.newest is not None:
            chosen[board.newest.key] = board.newest
        for key in sorted(chosen):
            board.send(peer, chosen[key], key=("plan", chosen[key].step))

    def _take_plan(self, plan: Plan) -> None:
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
            self._report_roster(board.newest, plan)
            board.newest = plan
        for peer in plan.excluded:
            if peer not in board.excluded:
                board.excluded.add(peer)
                self._shelf.distrust(peer)
        if board.me in board.excluded:
            board.fail(
                Fault.UNSOUND,
                "The others take no more work from this machine: something it sent was wrong. "
                "Start it again to run the gates; their logs say what it was.",
            )

    def _report_roster(self, before: Plan | None, plan: Plan) -> None:
        known = before.roster if before else ()
        for peer in plan.roster:
            if peer not in known:
                self._board.report(Kind.ROSTER, f"{short(peer)} takes part", peer, plan.step)
        for peer in known:
            if peer not in plan.roster:
                self._board.report(
                    Kind.ROSTER, f"{short(peer)} no longer takes part", peer, plan.step
                )

    def _computed(self, event: ev.Computed) -> None:
        board = self._board
        if event.step != board.applied + 1:
            return
        if event.probe != board.setup.probe:
            board.fail(
                Fault.UNSOUND,
                f"The kernel probe of step {event.step} failed on this machine: it does not "
                "compute the specified bits any more. Start it again to run the gates.",
            )
        elif event.reference:
            self._guard.recomputed(event)
        else:
            self._contributor.computed(event)
            self._guard.agrees(board.me, event.step, event.evidence)

    def _applied(self, step: int, state_hash: bytes) -> None:
        board = self._board
        self._applying = False
        if step == board.applied + 1:
            self._state_changed(step, state_hash)

    def _apply_refused(self, event: ev.ApplyRefused) -> None:
        board = self._board
        self._applying = False
        if event.step != board.applied + 1:
            return
        if event.non_finite:
            board.last_step, board.ending = event.step - 1, Ending.NON_FINITE
            board.detail = f"step {event.step} gives a state that is not finite ({event.reason})"
            board.report(Kind.NON_FINITE, board.detail, None, event.step)
            return
        self._apply_tries += 1
        board.report(Kind.REFUSED, f"sums of step {event.step}: {event.reason}", None, event.step)
        self._shelf.forget_sums(event.step)
        if self._apply_tries >= APPLY_TRIES:
            board.fail(
                Fault.DIVERGENCE,
                f"The sums of step {event.step} contradict their evidence again and again "
                f"({event.reason}). The run stopped here at step {board.committed}.",
            )

    def _loaded(self, step: int, state_hash: bytes) -> None:
        board = self._board
        self._contributor.cancel()
        if not self._catch_up.loaded(step, state_hash):
            board.fail(
                Fault.DIVERGENCE,
                f"The loaded state of step {step} is not the one its donors promised.",
            )
            return
        board.committed = step
        self._summary = None
        self._state_changed(step, state_hash)
        board.out.append(Commit(step, state_hash, None, ()))

    def _state_changed(self, step: int, state_hash: bytes) -> None:
        board = self._board
        board.applied = step
        board.hashes = {
            known: value for known, value in board.hashes.items() if known == board.committed
        }
        board.hashes[step] = state_hash
        board.plans = {number: plan for number, plan in board.plans.items() if number >= step - 1}
        self._apply_tries = 0
        self._contributor.step_changed()
        self._shelf.state_changed()
        self._guard.state_changed()
        self._repair.progressed()

    def _roster_changed(self, members: tuple[PeerId, ...], kicked: tuple[PeerId, ...]) -> None:
        board = self._board
        board.peers.set_members(tuple(peer for peer in members if peer not in kicked))
        for peer in kicked:
            board.excluded.add(peer)
            self._shelf.distrust(peer)
        if board.me in kicked:
            board.fail(Fault.REMOVED, "The host removed this machine from the room.")

    def _stop(self, order: StopOrder) -> None:
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

    # What may be done now

    def _settle(self) -> None:
        board = self._board
        self._commit()
        self._election.settle()
        if board.leading and self._election.informed():
            for plan in self._lead.settle(self._beacon.status()):
                self._publish(plan)
        self._guard.work()
        self._guard.tell()
        step = board.applied + 1
        if step <= board.last_step and not self._catch_up.loading:
            current = board.plan
            # A sum that is here or that others have is had for less than computing takes.
            done = self._shelf.complete(step) is not None or any(
                status.applied >= step for _, status in board.good_peers()
            )
            self._contributor.work(None if done else current)
            self._contributor.push(current)
            if not self._guard.disputed(step):
                self._shelf.reduce(current)
            self._shelf.push(current)
        if not self._applying:
            self._catch_up.freeze()
        if step <= board.last_step and not self._guard.disputed(step):
            self._apply(step)
        self._repair.settle()
        self._catch_up.settle()
        if not self._applying:
            self._catch_up.load()
        self._finish()
        if board.failure is None:
            self._beacon.settle()

    def _commit(self) -> None:
        board = self._board
        if board.applied > board.committed and self._verdict.committed():
            board.committed = board.applied
            plan = board.plans.get(board.applied)
            credits = Counter[PeerId]()
            if plan is not None:
                for work in plan.work:
                    credits[plan.roster[work.workers[0]]] += len(work.slots)
            board.out.append(
                Commit(
                    board.applied,
                    board.hashes[board.applied],
                    self._summary,
                    tuple(credits.items()),
                )
            )

    def _publish(self, plan: Plan) -> None:
        board = self._board
        self._take_plan(plan)
        for peer, status in board.good_peers():
            self._plan_told[peer] = (board.newest_key, board.now)
            if status.applied < plan.step or plan is board.newest:
                board.send(peer, plan, key=("plan", plan.step))

    def _apply(self, step: int) -> None:
        board = self._board
        if self._applying or self._catch_up.loading or board.applied != board.committed:
            return
        sums = self._shelf.complete(step)
        if sums is None or not self._agree(step, sums):
            return
        self._applying = True
        self._summary = sums[0].summary
        board.out.append(Apply(step, tuple(held.payload for held in sums), self._summary))

    def _agree(self, step: int, sums: list[Sum]) -> bool:
        """Owners must say the same of the step. If not, those in the minority are wrong; so is
        whoever started from another state, as this one is committed."""
        base = self._board.hashes[self._board.applied]
        astray = [held.peer for held in sums if held.base != base]
        for peer in astray:
            self._guard.accuse(peer, step, "its sum starts from another state than the committed")
        if astray:
            return False
        votes = Counter(held.summary for held in sums)
        if len(votes) == 1:
            return True
        winner, count = votes.most_common(1)[0]
        if 2 * count <= len(sums):
            self._board.fail(
                Fault.DIVERGENCE,
                f"The owners of step {step} contradict each other and no majority agrees. The run "
                f"stopped here at step {self._board.committed}.",
            )
            return False
        for held in sums:
            if held.summary != winner and held.peer != self._board.me:
                self._guard.accuse(held.peer, step, "its summary contradicts the others'")
        return False

    def _finish(self) -> None:
        board = self._board
        if self._leaving_at is not None:
            newest = board.newest
            gone = newest is None or board.me not in newest.roster
            if gone or board.now - self._leaving_at >= 3 * board.limits.heartbeat:
                self._release()
            return
        if board.committed == board.last_step == board.applied and not self._finished:
            self._finished = True
            board.out.append(
                Finished(board.applied, board.hashes[board.applied], board.ending, board.detail)
            )
        if self._finished and self._nobody_needs_us():
            self._release()

    def _nobody_needs_us(self) -> bool:
        """Everybody alive has the final state, or has made no progress towards it for long."""
        board = self._board
        others = [
            (peer, status.applied, status.received)
            for peer, status in board.good_peers()
            if status.committed != board.last_step
        ]
        if others != self._others:
            self._others, self._others_at = others, board.now
        return not others or board.now - self._others_at >= 4 * board.limits.silence

    def _release(self) -> None:
        self._beacon.settle()
        self._board.out.append(Released())
        self._board.over = True
