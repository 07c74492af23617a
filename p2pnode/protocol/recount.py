"""Sums that cannot be right: get the step right all the same, and name who was wrong.

May import: board, effects, events, evidence, guard, messages, pledges, reduce.

No sum alone shows that it is wrong: checksums are of the whole vector. Nor do sums that another
peer has show it, since that peer may be the one who lies. So this node asks the workers for all
their contributions, whose bytes must be those they pledged, computes the sets that nobody has any
more, and adds every shard itself. Then it knows:

* a contribution with another checksum than its evidence: its worker was wrong;
* a sum that was refused and differs: its owner was wrong, if it had the same pledges (it is asked;
  another pledge it shows convicts the worker that signed both);
* a set whose shards came from different workers (one was lost meanwhile) can be compared with no
  pledge: this node computes it;
* a checksum under our nonce that is not that of the pledged bytes: who told it was wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import Fault, Kind, Weigh
from p2pnode.protocol.events import Weighed
from p2pnode.protocol.evidence import CHECKSUM_MODULUS
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.messages import Buffer, Challenge, PeerId, Plan, Seen, Shard, Slots
from p2pnode.protocol.pledges import Pledges
from p2pnode.protocol.reduce import Shelf, Sum

TRIES = 3
"""Recounts of one step without finding out who is wrong, after which this node gives up."""


@dataclasses.dataclass(slots=True)
class _Suspect:
    """An owner whose sum differs from ours, until we know what it added."""

    step: int
    reason: str
    since: float
    ours: dict[Slots, tuple[bytes, ...] | None]
    """Digests of the pieces of each set that we added."""
    must_know: bool
    """It can not have gone on without this node, and so has not forgotten the step."""
    asked_at: float = float("-inf")


@dataclasses.dataclass(frozen=True, slots=True)
class _Weighing:
    """A contribution whose checksum is being taken, what it should be, and what is wrong if not."""

    step: int
    peer: PeerId
    expected: int
    reason: str


class Recount:
    """Finds right sums of a step, and who sent wrong ones."""

    def __init__(self, board: Board, shelf: Shelf, guard: Guard, pledges: Pledges) -> None:
        self._board = board
        self._shelf = shelf
        self._guard = guard
        self._pledges = pledges
        self._refused: dict[tuple[Shard, PeerId], Sum] = {}
        self._nonce = b""
        self._said: Mapping[tuple[Slots, PeerId], int] = {}
        self._suspects: dict[PeerId, _Suspect] = {}
        self._weighing: dict[int, _Weighing] = {}
        self._culprits = 0
        self._mixed = False
        """A set was not from one worker when contributions were compared last."""
        self._tries = 0
        self._known: set[PeerId] = set()
        self.busy = False
        """Contributions are compared with their evidence: their sums can not be applied."""
        self._since = 0.0

    @property
    def inquires(self) -> bool:
        """It is not known yet who was wrong."""
        return bool(self._suspects or self._weighing)

    def refused(
        self,
        step: int,
        sums: Sequence[Sum],
        reason: str,
        nonce: bytes = b"",
        said: Mapping[tuple[Slots, PeerId], int] | None = None,
    ) -> None:
        """These sums of all shards can not be right: add everything here. `said`: who told which
        checksum of a set under the nonce."""
        board = self._board
        board.report(Kind.REFUSED, f"sums of step {step}: {reason}", None, step)
        if self._shelf.recounted == step:
            self._compare(step, reason)
            return
        self._refused = {
            (Shard(index, len(sums)), held.peer): held for index, held in enumerate(sums)
        }
        self._nonce, self._said = nonce, dict(said or {})
        self._shelf.forget_sums(step)
        self._shelf.recounted = step
        self._tries = 0
        self._since = board.now

    def orphans(self, plan: Plan | None) -> list[Slots]:
        """Sets that have to be computed here because nobody who has them is there any more."""
        board = self._board
        if plan is None or self._shelf.recounted != plan.step:
            return []
        own = [work.slots for work in plan.work if (plan.step, work.slots) in self._shelf.own]
        if board.now - self._since < board.limits.silence:
            return own
        held = {
            slots
            for peer, status in board.good_peers()
            if self._guard.trusted(peer)
            for slots in status.holds(plan.step)
        }
        missing = {
            slots
            for index in range(len(plan.owners))
            for slots in self._shelf.missing_parts(plan, index)
        }
        return sorted({*own, *(missing - held)})

    def _compare(self, step: int, reason: str) -> None:
        """All contributions together contradict their evidence: find out which one does."""
        plan = self._board.plan
        self._culprits, self._mixed = 0, False
        self._known = self._guard.untrusted
        for work in plan.work if plan is not None else ():
            assert plan is not None
            whole = self._shelf.whole(step, work.slots, len(plan.owners))
            pledge = self._pledges.get(step, work.slots, whole[0]) if whole is not None else None
            if whole is not None and pledge is not None:
                expected = sum(item.checksum for item in pledge.evidence) % CHECKSUM_MODULUS
                what = "its contribution contradicts its evidence"
                self._weigh(whole[1], None, _Weighing(step, whole[0], expected, what))
            elif (step, work.slots) not in self._shelf.own:
                self._mixed = True
                self._shelf.take_own(step, work.slots)
        self.busy = bool(self._weighing)
        if self._mixed:
            self._shelf.forget_sums(step)
        elif not self.busy:
            self._give_up(step, reason)

    def _weigh(self, parts: tuple[Buffer, ...], nonce: bytes | None, weighing: _Weighing) -> None:
        board = self._board
        board.tickets += 1
        self._weighing[board.tickets] = weighing
        board.out.append(Weigh(board.tickets, nonce, parts))

    def weighed(self, event: Weighed) -> None:
        weighing = self._weighing.pop(event.ticket, None)
        if weighing is None:
            return
        if event.value != weighing.expected:
            self._culprits += 1
            if weighing.peer == self._board.me:
                self._board.fail(
                    Fault.UNSOUND,
                    f"This machine pledged a contribution to step {weighing.step} that contradicts "
                    "its evidence. Start it again to run the gates.",
                )
            else:
                self._guard.accuse(weighing.peer, weighing.step, weighing.reason)
        if self.busy and not self._weighing:
            self.busy = False
            self._since = self._board.now
            # Somebody may have been found out by others meanwhile: then its work is gone. Or its
            # work is in a sum made before it was lost: then new sums of all shards agree.
            if not self._culprits and not self._mixed and self._guard.untrusted == self._known:
                self._tries += 1
                self._shelf.forget_sums(weighing.step)
                if self._tries == TRIES:
                    self._give_up(weighing.step, "and each agrees with its own")

    def _give_up(self, step: int, reason: str) -> None:
        self._board.fail(
            Fault.DIVERGENCE,
            f"The sums of step {step} contradict their evidence, also when all contributions are "
            f"added here ({reason}). The run stopped here at step {self._board.committed}.",
        )

    def applied(self, step: int, sums: Sequence[Sum]) -> None:
        """These sums are right: whoever sent others for the same shards was wrong, unless it had
        other work."""
        if step != self._shelf.recounted:
            return
        board = self._board
        right = {Shard(index, len(sums)): held for index, held in enumerate(sums)}
        ours = self._added(step)
        comparable = self._comparable(step, ours)
        for (shard, peer), held in self._refused.items():
            truth = right.get(shard)
            if truth is None or not comparable:
                continue
            if held.summary == truth.summary and bytes(held.payload) == bytes(truth.payload):
                continue
            if peer == board.me:
                board.fail(
                    Fault.UNSOUND,
                    f"This machine added shard {shard.index} of step {step} wrongly. Start it "
                    "again to run the gates.",
                )
            else:
                what = f"its sum of shard {shard.index} is not that of the contributions"
                suspect = _Suspect(step, what, board.now, ours, self._takes_part(step))
                self._suspects.setdefault(peer, suspect)
                self._pledges.pinned.add(step)
        for (slots, peer), value in self._said.items():
            whole = self._shelf.whole(step, slots, len(sums))
            if whole is not None:
                what = "the checksum it told is not that of its contribution"
                self._weigh(whole[1], self._nonce, _Weighing(step, peer, value, what))
        self._refused, self._said = {}, {}

    def _added(self, step: int) -> dict[Slots, tuple[bytes, ...] | None]:
        """What the sums that were made here are of: sets, with the digests that were pledged."""
        plan = self._board.plan
        ours: dict[Slots, tuple[bytes, ...] | None] = {}
        for work in plan.work if plan is not None else ():
            assert plan is not None
            whole = self._shelf.whole(step, work.slots, len(plan.owners))
            pledge = self._pledges.get(step, work.slots, whole[0]) if whole is not None else None
            ours[work.slots] = pledge.pieces if pledge is not None else None
        return ours

    def _takes_part(self, step: int) -> bool:
        plan = self._board.plans.get(step)
        return plan is not None and self._board.me in plan.roster

    def _comparable(self, step: int, ours: dict[Slots, tuple[bytes, ...] | None]) -> bool:
        """Nobody's work can be in the refused sums that is not in ours: of a worker that was found
        out, or was lost and its set computed by another."""
        if self._guard.distrusted(step):
            return False
        bases = [pledge.base for pledge in self._pledges.of(step) if pledge.slots in ours]
        return all(
            ours.get(pledge.slots) == pledge.pieces
            for pledge in self._pledges.of(step)
            if pledge.base in bases
        )

    def settle(self) -> None:
        """Ask suspects what they added. Who does not say when it had time to is accused, or let go
        if it may have forgotten."""
        board = self._board
        self._pledges.pinned = {suspect.step for suspect in self._suspects.values()}
        for peer, suspect in list(self._suspects.items()):
            if self._guard.distrusted(suspect.step) or not self._guard.trusted(peer):
                del self._suspects[peer]
            elif board.now - suspect.since >= 2 * board.limits.silence:
                self._convict(peer, suspect.must_know)
            elif board.now - suspect.asked_at >= 2 * board.limits.heartbeat:
                suspect.asked_at = board.now
                seen = self._pledges.seen(suspect.step)
                question = Challenge(board.setup.run, suspect.step, bytes(32), b"", seen)
                board.send(peer, question, key=("question", suspect.step))

    def answered(self, peer: PeerId, step: int, seen: Sequence[Seen]) -> None:
        """A suspect says which pledges it has, and has sent those that we lacked. If one differs
        from ours, its worker lied; if it is of a set that we did not add, nobody can tell; nor if
        it has none any more, for it is far ahead."""
        suspect = self._suspects.get(peer)
        if suspect is None or suspect.step != step:
            return
        if not self._comparable(step, suspect.ours):
            del self._suspects[peer]
        elif not self._pledges.others(step, seen):
            self._convict(peer, bool(seen) or suspect.must_know)

    def _convict(self, peer: PeerId, certain: bool) -> None:
        suspect = self._suspects.pop(peer)
        if certain:
            self._guard.accuse(peer, suspect.step, suspect.reason)
