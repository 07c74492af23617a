"""The step core of one node in one run: events in, effects out, no I/O, no clock, no randomness.

May import: errors and the rest of protocol.

    core = StepCore(setup)
    effects = core.handle(event, now)       # now: monotonic seconds, never going back
    core.next_deadline()                    # send Tick then

After every event the core looks at everything that may now be done (`_settle`). It never waits
for one message in particular: pushes make it fast, and what a push lost, statuses and pulls repair.
"""

from __future__ import annotations

from p2pnode.errors import PeerError
from p2pnode.protocol import events as ev
from p2pnode.protocol.alone import Alone
from p2pnode.protocol.answers import Answers
from p2pnode.protocol.apply import Applier
from p2pnode.protocol.audit import Auditor
from p2pnode.protocol.beacon import Beacon
from p2pnode.protocol.board import Board, short
from p2pnode.protocol.check import Check
from p2pnode.protocol.confront import Confront
from p2pnode.protocol.contribute import Contributor
from p2pnode.protocol.effects import Commit, DropPeer, Effect, Fault, Kind, Rollback
from p2pnode.protocol.ending import Finish
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.join import CatchUp
from p2pnode.protocol.lead import Lead
from p2pnode.protocol.messages import (
    Accuse,
    Answer,
    BlobIndex,
    BlobPart,
    BlobWant,
    Challenge,
    Confess,
    Contribution,
    PeerId,
    Plan,
    Pledge,
    ShardSum,
    Status,
    Want,
    Wrong,
)
from p2pnode.protocol.plans import Plans
from p2pnode.protocol.pledges import Pledges
from p2pnode.protocol.recount import Recount
from p2pnode.protocol.recover import Election, Repair
from p2pnode.protocol.reduce import Shelf
from p2pnode.protocol.setup import Setup
from p2pnode.protocol.spool import Spooler
from p2pnode.protocol.verdict import Verdict


class StepCore:
    """One node's part in a run."""

    def __init__(self, setup: Setup) -> None:
        self._board = board = Board(setup)
        self._pledges = Pledges(board)
        self._shelf = Shelf(board, self._pledges)
        self._contributor = Contributor(board, self._shelf, self._pledges)
        self._confront = Confront(board, self._contributor)
        self._guard = Guard(board, self._shelf, self._contributor, self._pledges, self._confront)
        self._verdict = Verdict(board, self._guard, self._shelf)
        self._check = Check(board, self._contributor, self._pledges, self._guard)
        self._auditor = Auditor(board, self._guard, self._confront, self._pledges, self._check)
        self._answers = Answers(board, self._contributor, self._pledges, self._guard)
        self._election = Election(board)
        self._lead = Lead(board)
        self._alone = Alone(board, self._shelf)
        self._repair = Repair(board, self._shelf, self._contributor, self._check, self._alone)
        self._catch_up = CatchUp(board, self._shelf)
        self._beacon = Beacon(
            board,
            self._contributor,
            self._shelf,
            self._guard,
            self._verdict,
            self._catch_up,
            self._check,
        )
        self._plans = Plans(board, self._election, self._repair, self._shelf)
        self._recount = Recount(board, self._shelf, self._guard, self._pledges)
        self._applier = Applier(
            board, self._shelf, self._guard, self._verdict, self._recount, self._check
        )
        self._spooler = Spooler(board, self._shelf)
        self._finish = Finish(board, self._beacon, self._recount)
        self._started = False
        self._furthest = 0
        """Newest state that anything held here was computed from."""

    # For the node and its user interface

    @property
    def applied(self) -> int:
        return self._board.applied

    @property
    def reached(self) -> int:
        """Newest state that this core has, is about to have, or holds something of."""
        coming = self._board.applied + self._applier.running
        return max(coming, self._catch_up.coming, self._furthest)

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
    def audits_missed(self) -> int:
        """Sets that were to be audited and were not."""
        return self._auditor.missed

    @property
    def plan(self) -> Plan | None:
        """Newest plan known."""
        return self._board.newest

    def horizon(self) -> int | None:
        """The last step under way: nobody within reach has gone beyond, so an order that begins
        after it costs nobody work. None while no plan is known: this node has just started, and
        cannot tell yet."""
        board = self._board
        if board.newest is None:
            return None
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
        board.peers_changed()
        quiet = self._dispatch(event)
        board.peers_changed()
        if self._started and not quiet and board.failure is None:
            if board.dismissed:
                self._beacon.settle()
            else:
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
            case ev.LinkDown(peer):
                board.peers.link_down(peer)
                self._catch_up.link_lost(peer)
            case ev.Computed():
                self._computed(event)
            case ev.SetRefused():
                self._guard.set_refused(event)
                self._check.set_refused(event)
            case ev.Reduced(step, shard, ticket, payload, read):
                self._shelf.reduced(step, shard, ticket, payload, read=read)
            case ev.ReduceRefused(step, shard, ticket, part, reason, slot, token_hash):
                culprit = self._shelf.reduce_refused(step, shard, ticket, part)
                if culprit is not None:
                    what = f"its contribution {reason}"
                    self._guard.accuse(culprit, step, what, slot, token_hash)
            case ev.Weighed():
                self._check.weighed(event)
                self._answers.weighed(event)
                self._recount.weighed(event)
                self._auditor.weighed(event)
            case ev.Applied(step, state_hash):
                self._applied(step, state_hash)
            case ev.ApplyRefused():
                self._applier.refused(event)
            case ev.Verified():
                self._verdict.answered(event)
            case ev.Diagnosed():
                self._confront.diagnosed(event)
                self._guard.diagnosed(event)
                self._auditor.let_go(event.step)
            case ev.Audited():
                self._auditor.answered(event)
            case ev.Frozen():
                self._catch_up.held_still(event)
            case ev.Loaded(step, state_hash):
                self._loaded(step, state_hash)
            case ev.LoadRefused():
                self._catch_up.refused(event)
            case ev.Recalled():
                self._catch_up.recalled(event)
            case ev.Spooled():
                self._spooler.spooled(event)
            case ev.RosterChanged(members, kicked):
                self._roster_changed(members, kicked)
            case ev.Redirected():
                self._finish.redirect(event)
            case ev.LeaveRequested():
                self._finish.leave()
            case ev.Start(lead):
                self._started = True
                self._check.start()
                if board.me in board.excluded:
                    board.put_out()
                else:
                    self._election.begin(lead)
            case ev.Supply(lacking):
                board.lacking = lacking
                self._contributor.supplied()
            case ev.Tick():
                pass
        return False

    def _message(self, peer: PeerId, event: ev.MessageReceived) -> None:
        if isinstance(event.message, Pledge | Contribution | ShardSum):
            self._furthest = max(self._furthest, event.message.step - 1)
        match event.message:
            case Status() as status:
                if self._beacon.take(peer, status):
                    self._status(peer, status)
            case Plan() as plan:
                self._plans.take(plan)
            case Pledge() as pledge:
                self._guard.pledge(peer, pledge)
            case Contribution() as contribution:
                self._guard.contribution(peer, contribution, event.payload)
            case ShardSum() as shard_sum:
                self._guard.sum(peer, shard_sum, event.payload)
            case Want() as want:
                self._repair.wanted(peer, want)
            case Accuse() as accusation:
                self._guard.accused(peer, accusation)
            case Confess() as confession:
                what = self._confront.confessed(peer, confession)
                self._guard.accuse(peer, confession.step, what)
            case Challenge() as challenge:
                self._answers.challenged(peer, challenge)
            case Answer() as answer:
                self._answered(peer, answer)
            case Wrong() as wrong:
                self._auditor.heard(peer, wrong)
            case BlobWant() as request:
                self._catch_up.serve(peer, request)
            case BlobIndex() as index:
                self._catch_up.index(peer, index, event.payload)
            case BlobPart() as part:
                self._catch_up.part(peer, part, event.payload)

    def _answered(self, peer: PeerId, answer: Answer) -> None:
        for slots, value in answer.values:
            self._check.answer(peer, answer.step, answer.nonce, slots, value)
        self._guard.seen(peer, answer.step, answer.seen)
        self._recount.answered(peer, answer.step, answer.seen)

    def _status(self, peer: PeerId, status: Status) -> None:
        self._election.heard_of(status.term, status.leader)
        if status.claim is not None:
            self._guard.claimed(peer, status.claim)
        self._plans.repair(peer, status)

    def _computed(self, event: ev.Computed) -> None:
        board = self._board
        if event.step == board.applied and self._check.computed(event):
            return
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
            self._guard.adds_up(event)

    def _applied(self, step: int, state_hash: bytes) -> None:
        self._applier.applied(step)
        if step == self._board.applied + 1:
            self._state_changed(step, state_hash)
            self._check.applied(step, self._applier.sums)

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
        self._applier.loaded()
        self._check.loaded(step)
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
        self._contributor.step_changed()
        self._shelf.state_changed()
        self._pledges.state_changed()
        self._answers.state_changed()
        self._guard.state_changed()
        self._repair.progressed()

    def _roll_back(self, *, recount: bool = True) -> None:
        """The sums that were applied are not those of the contributions: back, and recount. Who
        takes no part in the step has nothing to count, and computes it alone."""
        board, step = self._board, self._board.applied
        nonce, said = self._check.said
        self._contributor.cancel()
        board.out.append(Rollback(step))
        board.applied = step - 1
        del board.hashes[step]
        self._contributor.rolled_back()
        self._shelf.rolled_back()
        self._guard.rolled_back()
        self._verdict.rolled_back()
        self._check.rolled_back()
        self._shelf.recounted = 0
        self._repair.progressed()
        if not recount:
            self._alone.begin(step)
            return
        reason = "they are not those of what the workers say they computed"
        self._recount.refused(step, self._applier.sums, reason, nonce, said)

    def _roster_changed(self, members: tuple[PeerId, ...], kicked: tuple[PeerId, ...]) -> None:
        board = self._board
        # A stranger's messages are ignored, so nothing need be remembered of who was removed: the
        # host may name it again, and an older roster may have come after a newer one.
        board.peers.set_members(tuple(peer for peer in members if peer not in kicked))
        for peer in kicked:
            self._shelf.distrust(peer)
        if board.me in kicked:
            board.fail(Fault.REMOVED, "The host removed this machine from the room.")

    # What may be done now

    def _settle(self) -> None:
        board = self._board
        if not self._catch_up.loading and board.applied != board.committed:
            if self._check.settle():
                self._roll_back()
            elif self._denied():
                self._roll_back(recount=False)
        self._auditor.settle()
        self._applier.commit()
        if board.committed == board.applied:
            self._contributor.committed()
        self._recount.settle()
        self._guard.work()
        self._guard.tell()
        self._election.settle()
        if board.leading and self._election.informed():
            for plan in self._lead.settle(self._beacon.status()):
                self._plans.publish(plan)
        if not self._applier.running:
            self._catch_up.freeze()
        if board.applied < board.last_step and not self._catch_up.loading:
            self._work(board.applied + 1)
            self._applier.apply()
        self._repair.settle()
        self._catch_up.settle()
        if not self._applier.running:
            self._catch_up.load()
        self._spooler.settle()
        self._finish.settle()
        if board.failure is None and not board.over:
            self._beacon.settle()

    def _denied(self) -> bool:
        """Others who have checked the step deny the state that came of sums which could not be
        checked here."""
        voices = self._verdict.voices(self._board.applied)
        return self._check.witnessed(voices.values()) is False

    def _work(self, step: int) -> None:
        """Compute, contribute, reduce, hand out sums of the current step."""
        board, plan = self._board, self._alone.plan(step) or self._board.plan
        recounting = self._shelf.recounted == step
        # A sum that is here or that others have is had for less than computing takes.
        done = self._shelf.complete(step) is not None or (
            any(status.applied >= step for _, status in board.good_peers()) and not recounting
        )
        self._contributor.work(None if done else plan, self._recount.orphans(plan))
        self._contributor.push(plan)
        if recounting:
            self._contributor.keep(plan)
        if not self._guard.disputed(step):
            self._shelf.reduce(plan)
        if self._check.passed >= board.applied:
            self._shelf.push(plan)
