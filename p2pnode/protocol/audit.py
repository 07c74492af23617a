"""Audits: sets that others pledged, computed again here by chance, and what follows.

May import: errors, board, check, confront, effects, events, guard, messages, pledges.

Whether a set is audited is drawn when its pledge is here, so its worker could not know. All else
about a pledge can be checked without computing it; a gradient that is wrong in the same way in
everything its worker says of it can not. A difference counts once the reference kernels have
confirmed it.

Bytes that are as pledged are weighed too, under the nonce of this node's check: only an owner has
its own contribution to its own shard, so it can add something else there and tell the check a
checksum that fits. Then what it told is not the checksum of what it pledged.

As others may have applied the step by then, the run goes back to the state before it,
everywhere, by a record that leaves the worker out (see chain): whoever is first in join order of
those who are there signs it.
"""

from __future__ import annotations

import dataclasses

from p2pnode.errors import PeerError
from p2pnode.protocol.board import Board, short
from p2pnode.protocol.check import Check
from p2pnode.protocol.confront import Confront
from p2pnode.protocol.effects import Audit, Kind, LetGo, Rewind, Weigh
from p2pnode.protocol.events import Audited, Weighed
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.messages import (
    Buffer,
    PeerId,
    Pledge,
    Priority,
    SlotEvidence,
    Slots,
    Wrong,
    pledge_digest,
)
from p2pnode.protocol.pledges import AHEAD, Pledges

STATES = 2
"""Steps whose states are kept for audits at most; it bounds memory. An audit that would need one
more is left out, and counted."""
REPEAT = 3.0
"""Heartbeats after which wrong work is told again, until a record is there."""


@dataclasses.dataclass(slots=True)
class _Case:
    """A set that is computed again, and who pledged it."""

    pledges: list[Pledge]
    doubted: tuple[int, ...] = ()
    """Slots that the reference kernels compute, since those in use gave something else."""
    fast: tuple[SlotEvidence, ...] = ()
    """What those in use gave."""
    later: list[Pledge] = dataclasses.field(default_factory=list)
    """Pledges that came when others were doubted already: they contradict nobody yet."""


@dataclasses.dataclass(slots=True)
class _Right:
    """A pledge whose bytes are right, and are to be weighed as its worker said they weigh."""

    pledge: Pledge
    payload: Buffer
    told: int | None = None
    """What it said; None until it is known."""
    ticket: int = 0


class Auditor:
    """Draws audits, judges them, and has the run go back."""

    def __init__(
        self, board: Board, guard: Guard, confront: Confront, pledges: Pledges, check: Check
    ) -> None:
        self._board = board
        self._check = check
        self._guard = guard
        self._confront = confront
        self._pledges = pledges
        self._seen: set[tuple[int, Slots, PeerId]] = set()
        self._open: dict[tuple[int, Slots], _Case] = {}
        self._right: list[_Right] = []
        self._wrong: dict[PeerId, Wrong] = {}
        self._told_at = float("-inf")
        self._ordered = False
        self.missed = 0
        """Sets that were drawn but could not be audited."""

    # Drawing

    def settle(self) -> None:
        """Draw for pledges that are new. Call before anything is applied or committed."""
        board = self._board
        self._seen = {key for key in self._seen if key[0] > board.committed}
        for step in range(board.committed + 1, board.applied + 2):
            base = board.hashes.get(step - 1)
            for pledge in self._pledges.of(step):
                key = (step, pledge.slots, pledge.peer)
                if pledge.peer == board.me or pledge.base != base or key in self._seen:
                    continue
                self._seen.add(key)
                if self._guard.trusted(pledge.peer) and board.setup.audit():
                    self._begin(pledge)
        # Who has not yet heard of wrong work must not end the run meanwhile.
        self._weigh()
        board.auditing = len(self._open) + len(self._right) + len(self._wrong)
        board.wronged = bool(self._wrong)
        self._tell()

    def _begin(self, pledge: Pledge) -> None:
        case = self._open.get((pledge.step, pledge.slots))
        if case is not None:
            (case.later if case.doubted else case.pledges).append(pledge)
            return
        steps = self._needed()
        if pledge.step not in steps and len(steps) >= STATES:
            self.missed += 1
            return
        self._open[pledge.step, pledge.slots] = _Case([pledge])
        self._board.out.append(Audit(pledge.step, pledge.slots))

    # Judging

    def answered(self, event: Audited) -> None:
        """A set was computed again."""
        for key, case in list(self._open.items()):
            asked = case.doubted if event.reference else key[1]
            if key[0] == event.step and asked == event.slots and self._answers(case, event):
                del self._open[key]
                for pledge in case.later:
                    self._begin(pledge)
        self.let_go(event.step)

    def _answers(self, case: _Case, event: Audited) -> bool:
        """Whether this is all that the case was waiting for."""
        if event.evidence is None:
            self.missed += len(case.pledges)
        elif event.reference:
            self._judge(case, event)
        elif not case.doubted:
            wrong = {pledge: _wrong_slots(pledge, event) for pledge in case.pledges}
            self._right += [
                _Right(pledge, event.payload) for pledge, slots in wrong.items() if not slots
            ]
            case.pledges = [pledge for pledge, slots in wrong.items() if slots]
            if case.pledges:
                case.doubted = tuple(sorted({slot for slots in wrong.values() for slot in slots}))
                case.fast = event.evidence
                self._board.out.append(Audit(event.step, case.doubted, reference=True))
                return False
        return True

    def _weigh(self) -> None:
        """Weigh what was found right once its worker has said in the check what it weighs."""
        board = self._board
        for case in list(self._right):
            pledge = case.pledge
            told = self._check.told(pledge.step, pledge.slots, pledge.peer)
            if case.told is None and told is not None:
                nonce, case.told = told
                board.tickets += 1
                case.ticket = board.tickets
                board.out.append(Weigh(case.ticket, nonce, (case.payload,)))
            elif case.told is None and not board.committed < pledge.step <= board.last_step:
                # Nobody has to say it: the sums were made here, or the run ends before.
                self._right.remove(case)
                self.let_go(pledge.step)

    def weighed(self, event: Weighed) -> None:
        for case in self._right:
            if case.ticket == event.ticket:
                self._right.remove(case)
                if case.told != event.value:
                    pledge = case.pledge
                    lie = Wrong(self._board.setup.run, pledge, pledge.slots[0], pledge.evidence[0])
                    self._take(lie, "its work was computed again")
                self.let_go(case.pledge.step)
                return

    def _judge(self, case: _Case, truth: Audited) -> None:
        """The reference kernels have spoken: of each pledge and this node one is wrong."""
        for pledge in case.pledges:
            slots = _wrong_slots(pledge, truth)
            if not slots:
                self._convict(case, truth)
                continue
            slot = slots[0]
            right = next((item for item in truth.evidence or () if item.slot == slot), None)
            wrong = Wrong(self._board.setup.run, pledge, slot, right)
            said = next(item for item in pledge.evidence if item.slot == slot)
            if right is not None and said.token_hash != right.token_hash:
                self._guard.reads_other_text(pledge.peer, pledge.step, slot, right.token_hash)
                continue
            self._confront.keep(pledge.peer, pledge.step, slot, said)
            self._take(wrong, "its work was computed again")

    def _convict(self, case: _Case, truth: Audited) -> None:
        """A pledge that the kernels in use contradicted is right."""
        said = {item.slot: item for item in case.fast}
        pairs = [(slot, said.get(slot)) for slot in truth.slots]
        right = truth.evidence or ()
        slot, item = next((pair for pair in pairs if pair[1] not in right), pairs[0])
        self._confront.convict(truth.step, slot, item)

    def let_go(self, step: int) -> None:
        """The state before a step need not be kept, unless it is computed on, or gone back to."""
        if step not in self._needed():
            self._board.out.append(LetGo(step))

    def _needed(self) -> set[int]:
        """Steps before which the state is kept."""
        judged = (*(case.pledge for case in self._right), *(case.pledge for case in self._known()))
        return {*(step for step, _ in self._open), *(pledge.step for pledge in judged)}

    # Going back

    def heard(self, peer: PeerId, message: Wrong) -> None:
        """A peer has found wrong work. PeerError if the worker did not sign it."""
        board, pledge = self._board, message.pledge
        if not self._guard.trusted(peer) or pledge.peer not in board.peers.members:
            return
        other = board.hashes.get(pledge.step - 1, pledge.base) != pledge.base
        if other or not 0 < pledge.step <= board.applied + AHEAD:
            return
        known = self._wrong.get(pledge.peer)
        if pledge.peer == peer or (known is not None and known.pledge.step <= pledge.step):
            return
        said = [item for item in pledge.evidence if item.slot == message.slot]
        if not said or (message.truth is not None and message.truth.slot != message.slot):
            raise PeerError("an audit is about a slot that its pledge does not name")
        if not board.setup.signed(pledge.peer, pledge_digest(pledge), pledge.signature):
            raise PeerError("an audit is about a pledge that its worker did not sign")
        self._take(message, f"{short(peer)} computed its work again")

    def _take(self, wrong: Wrong, found: str) -> None:
        pledge = wrong.pledge
        if pledge.peer == self._board.me:
            return  # the others go back, and leave this node out
        known = self._wrong.get(pledge.peer)
        if known is None or pledge.step < known.pledge.step:
            self._wrong[pledge.peer] = wrong
            self._told_at = float("-inf")
            self._ordered = False
        if self._guard.trusted(pledge.peer):
            if wrong.truth in pledge.evidence:
                text = f"{found}: it told the check another checksum than that of what it pledged"
                self._guard.accuse(pledge.peer, pledge.step, text)
            else:
                text = f"{found}: its gradient of slot {wrong.slot} is wrong"
                self._guard.accuse(pledge.peer, pledge.step, text, wrong.slot)
        self._board.report(
            Kind.DIVERGENCE,
            f"the run goes back to step {pledge.step - 1}, the last one before wrong work of "
            f"{short(pledge.peer)}",
            pledge.peer,
            pledge.step,
        )
        self._board.wronged = True

    def _known(self) -> list[Wrong]:
        return list(self._wrong.values())

    def _tell(self) -> None:
        """Tell everybody, again until the record is there, and sign it if that is on this node."""
        board = self._board
        if not self._wrong:
            return
        if board.now - self._told_at >= REPEAT * board.limits.heartbeat:
            self._told_at = board.now
            for peer, _ in board.good_peers():
                for wrong in self._known():
                    key = ("wrong", wrong.pledge.peer)
                    board.send(peer, wrong, b"", Priority.SHARD, key)
        signer = next(
            (
                peer
                for peer in board.peers.members
                if board.good(peer) and (peer == board.me or self._guard.trusted(peer))
            ),
            None,
        )
        if signer == board.me and not self._ordered:
            self._ordered = True
            first = min(self._known(), key=lambda wrong: wrong.pledge.step).pledge
            board.out.append(Rewind(first.step - 1, first.base, tuple(sorted(self._wrong))))


def _wrong_slots(pledge: Pledge, truth: Audited) -> tuple[int, ...]:
    """Of the slots that were computed again those that are not as pledged; all, if only their sum
    is not."""
    right = {item.slot: item for item in truth.evidence or ()}
    said = {item.slot: item for item in pledge.evidence}
    wrong = tuple(slot for slot in truth.slots if said.get(slot) != right.get(slot))
    if not wrong and truth.slots == pledge.slots and truth.pieces != pledge.pieces:
        return pledge.slots
    return wrong
