"""Whether the sums that were applied are those of what the workers computed.

May import: board, contribute, effects, events, guard, messages, pledges, reduce.

When it has all sums of a step, a node draws a nonce and asks every worker for the checksum of its
sets under it. The owners have sent their sums before the nonce existed, so none could choose a
wrong sum that fits; and every node has a nonce of its own, so nobody needs to trust, or wait for,
another's share of it. A set that nobody answers for is computed here: it is a function of the state
before.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Sequence

from p2pnode.protocol.board import Board
from p2pnode.protocol.contribute import Contributor
from p2pnode.protocol.effects import Compute, Weigh
from p2pnode.protocol.events import Computed, SetRefused, Weighed
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.messages import (
    WEIGHT_MODULUS,
    Buffer,
    Challenge,
    PeerId,
    Slots,
)
from p2pnode.protocol.pledges import KEPT, Pledges
from p2pnode.protocol.reduce import Sum

PATIENCE = 2
"""Silences, and times that the step took, after which a worker withholds its checksum: it answers
between two slots of which each took less than the whole step."""


@dataclasses.dataclass(slots=True)
class _Open:
    """The check of one step."""

    step: int
    nonce: bytes
    patience: float
    """Seconds to wait for an answer, while this node is awake."""
    looked_at: float
    waited: float = 0.0
    total: int | None = None
    """Checksum of the sums that were applied."""
    said: dict[tuple[Slots, PeerId], int] = dataclasses.field(default_factory=dict)
    """Checksum of each set, by who told it."""
    asked: dict[PeerId, tuple[float, int]] = dataclasses.field(default_factory=dict)
    """When a worker was asked last, and how often."""
    weighing: set[Slots] = dataclasses.field(default_factory=set)
    """Sets that are being weighed, or computed for the check."""
    refused: bool = False
    """A set that others contributed has no finite gradient here."""


class Check:
    """Checks the applied step; it may be committed when `passed` has reached it."""

    def __init__(
        self, board: Board, contributor: Contributor, pledges: Pledges, guard: Guard
    ) -> None:
        self._board = board
        self._contributor = contributor
        self._pledges = pledges
        self._guard = guard
        self.passed = board.applied
        """Last step whose sums are known to be right, as far as this node can know."""
        self.borrowed = -1
        """The last step whose sums could not be checked here: this node takes no part in it."""
        self._open: _Open | None = None
        self._tickets: dict[int, tuple[bytes, Slots | None]] = {}
        """What is being weighed, under which nonce; None: the sums."""
        self._without: set[PeerId] = set()
        """Those whose work is in none of the applied sums, which were all made here."""
        self._known: set[PeerId] = set()
        """Workers that were known to be wrong when the step began to be applied."""
        self._told: dict[int, tuple[bytes, dict[tuple[Slots, PeerId], int]]] = {}
        """Of the last steps: the nonce, and what was said under it."""
        self._drawn = 0
        self._began_at = 0.0
        self._borrowed_at = 0.0

    @property
    def said(self) -> tuple[bytes, dict[tuple[Slots, PeerId], int]]:
        """The nonce and what was said under it."""
        return (self._open.nonce, self._open.said) if self._open is not None else (b"", {})

    def told(self, step: int, slots: Slots, peer: PeerId) -> tuple[bytes, int] | None:
        """The nonce of a step's check and what the peer said under it of its set; None if it was
        not asked, or has not answered yet."""
        nonce, said = self._told.get(step, (b"", {}))
        value = said.get((slots, peer))
        return (nonce, value) if value is not None else None

    # The check

    def start(self) -> None:
        """Time counts from now."""
        self._began_at = self._board.now

    def begins(self, sums: Sequence[Sum]) -> None:
        """A step is about to be applied with these sums."""
        self._known = self._guard.untrusted
        self._without = self._known if _mine(self._board.me, sums) else set()

    def outdated(self, step: int) -> bool:
        """A worker was found out while the step was being applied: its sums are dropped."""
        return bool(self._guard.distrusted(step) - self._known)

    def applied(self, step: int, sums: Sequence[Sum]) -> None:
        """The step was applied with these sums. There is nothing to check if they were all made
        here from pledged bytes, nor can one be who caught up with a step that is over."""
        board = self._board
        took = board.now - self._began_at
        self._began_at = board.now
        self._open = None
        plan = board.plans.get(step)
        if plan is None or board.me not in plan.roster or _mine(board.me, sums):
            self.passed = step
            self.borrowed = -1 if _mine(board.me, sums) else step
            self._borrowed_at = board.now
            return
        self._drawn += 1
        number = self._drawn.to_bytes(8, "big") + step.to_bytes(8, "big")
        nonce = hashlib.sha256(board.setup.secret + number).digest()[:16]
        patience = PATIENCE * (board.limits.silence + took)
        self._open = _Open(step, nonce, patience, board.now)
        self._told[step] = nonce, self._open.said
        self._told = {known: told for known, told in self._told.items() if known > step - KEPT}
        self._weigh(None, tuple(held.payload for held in sums))

    @property
    def vouched(self) -> int:
        """Last step that others may believe this node's hash of."""
        return self.passed - (self.borrowed == self.passed)

    def witnessed(self, voices: Collection[bytes]) -> bool | None:
        """Whether others who have checked the applied step have this state (`voices`: hashes that
        they state). None: nobody says so yet, and somebody may. Once they do, this node vouches for
        it too."""
        board = self._board
        if self.borrowed != board.applied:
            return True
        if voices and board.hashes[board.applied] not in voices:
            return False
        patient = board.now - self._borrowed_at < PATIENCE * board.limits.silence
        if not voices and patient and any(board.good_peers()):
            return None
        self.borrowed = -1  # from now on others may believe it of this node
        return True

    def loaded(self, step: int) -> None:
        """The state came from others, who had committed it."""
        self.passed, self._open = step, None
        self._began_at = self._board.now

    def rolled_back(self) -> None:
        """The applied step was taken back, and its check with it."""
        self.passed = min(self.passed, self._board.applied)
        self._open = None

    def settle(self) -> bool:
        """Ask, and say whether the check has failed."""
        board, check = self._board, self._open
        if board.applied == board.committed:
            return False
        if self._guard.distrusted(board.applied) - self._without:
            return True  # work of a peer that turned out to be wrong may be in the sums
        if check is None or check.step != board.applied or self.passed >= check.step:
            return False
        if check.refused:
            return True
        plan = board.plans.get(check.step)
        if plan is None:
            return False
        # What passes while this machine sleeps is no time that others had.
        check.waited += min(board.now - check.looked_at, board.limits.heartbeat)
        check.looked_at = board.now
        stated, complete = 0, check.total is not None
        for work in plan.work:
            values = {value for (slots, _), value in check.said.items() if slots == work.slots}
            if len(values) > 1:
                return True
            stated += sum(values)
            if not values:
                complete = False
                self._ask(check, work.slots)
        if not complete or check.total is None:
            return False
        if (stated - check.total) % WEIGHT_MODULUS:
            return True
        self.passed = check.step
        self._open = None
        return False

    def _ask(self, check: _Open, slots: Slots) -> None:
        """Have the checksum of one set: of this node's own, from who holds it, or by computing."""
        board = self._board
        if slots in check.weighing:
            return
        held = self._contributor.of(check.step).get(slots)
        if held is not None:
            check.weighing.add(slots)
            self._weigh(slots, (held.payload,))
            return
        holders = [
            peer
            for peer, status in board.good_peers()
            if slots in status.holds(check.step) and self._guard.trusted(peer)
        ]
        if check.waited >= check.patience:
            for peer in holders:
                what = f"it withholds the checksum of what it contributed to step {check.step}"
                self._guard.accuse(peer, check.step, what)
        elif holders:
            for peer in holders:
                self._challenge(check, peer)
            return
        if not check.weighing:  # one at a time
            check.weighing.add(slots)
            board.out.append(Compute(check.step, slots))

    def _challenge(self, check: _Open, peer: PeerId) -> None:
        board = self._board
        at, tries = check.asked.get(peer, (float("-inf"), 0))
        if board.now - at < board.limits.heartbeat * 2 ** min(tries, 3):
            return
        challenge = Challenge(
            board.setup.run,
            check.step,
            board.hashes[check.step - 1],
            check.nonce,
            self._pledges.seen(check.step),
        )
        if board.send(peer, challenge, key=("challenge", check.step, check.nonce)):
            check.asked[peer] = (board.now, tries + 1)

    def answer(self, peer: PeerId, step: int, nonce: bytes, slots: Slots, value: int) -> None:
        """A worker says what a set's checksum is. Its first word counts."""
        check = self._open
        asked = check is not None and peer in check.asked
        if check is not None and asked and (step, nonce) == (check.step, check.nonce):
            check.said.setdefault((slots, peer), value)

    def _weigh(self, slots: Slots | None, parts: tuple[Buffer, ...]) -> None:
        assert self._open is not None
        board = self._board
        board.tickets += 1
        self._tickets[board.tickets] = self._open.nonce, slots
        board.out.append(Weigh(board.tickets, self._open.nonce, parts))

    def weighed(self, event: Weighed) -> None:
        if event.ticket not in self._tickets:
            return
        nonce, slots = self._tickets.pop(event.ticket)
        check = self._open
        if check is None or nonce != check.nonce:
            return
        if slots is None:
            check.total = event.value
        else:
            check.said[slots, self._board.me] = event.value
            check.weighing.discard(slots)

    def computed(self, event: Computed) -> bool:
        """A set that was computed for the check; False if it was for something else."""
        check = self._open
        if check is None or event.step != check.step or event.slots not in check.weighing:
            return False
        self._weigh(event.slots, (event.payload,))
        return True

    def set_refused(self, event: SetRefused) -> None:
        """A set that was to be computed for the check has no finite gradient."""
        check = self._open
        if check is not None and event.step == check.step and event.slots in check.weighing:
            check.refused = True


def _mine(me: PeerId, sums: Sequence[Sum]) -> bool:
    return all(held.peer == me for held in sums)
