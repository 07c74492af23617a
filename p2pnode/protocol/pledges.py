"""Signed statements of what workers computed: making this node's, keeping everybody's.

May import: board, events, messages. Whether a pledge may be taken is decided in guard.

A pledge is a pure function of its set and of the state before: an honest worker makes the same one
again after a restart. So two pledges of one worker for one set and state that differ prove a lie.
"""

from __future__ import annotations

from msgspec import structs

from p2pnode.protocol.board import Board
from p2pnode.protocol.events import Computed
from p2pnode.protocol.messages import PeerId, Pledge, Slots, pledge_digest

AHEAD = 2
"""Work is taken for this many steps after the applied one: a faster peer may have applied the
current step already."""
SHARES = 4
"""Slots that the pledges of one peer to a step may name, as a multiple of the slots there are: new
plans may give it other sets. It bounds what is kept."""


class Pledges:
    """Pledges of the steps that are not committed yet, by step, set and worker."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.kept: dict[int, dict[tuple[Slots, PeerId], Pledge]] = {}

    def make(self, event: Computed) -> Pledge:
        """Sign and keep what this node has computed."""
        setup = self._board.setup
        pledge = Pledge(
            run=setup.run,
            peer=setup.me,
            step=event.step,
            base=self._board.hashes[event.step - 1],
            slots=event.slots,
            probe=event.probe,
            evidence=event.evidence,
            pieces=event.pieces,
            signature=b"",
        )
        pledge = structs.replace(pledge, signature=setup.sign(pledge_digest(pledge)))
        self.kept.setdefault(event.step, {})[event.slots, setup.me] = pledge
        return pledge

    def get(self, step: int, slots: Slots, peer: PeerId) -> Pledge | None:
        return self.kept.get(step, {}).get((slots, peer))

    def of(self, step: int) -> list[Pledge]:
        """All pledges to a step."""
        return list(self.kept.get(step, {}).values())

    def has_room(self, pledge: Pledge) -> bool:
        """Whether this peer's pledges to the step are within what is kept of them."""
        named = sum(
            len(slots)
            for slots, peer in self.kept.get(pledge.step, {})
            if peer == pledge.peer and slots != pledge.slots
        )
        return named + len(pledge.slots) <= SHARES * self._board.setup.slots

    def keep(self, pledge: Pledge) -> None:
        self.kept.setdefault(pledge.step, {})[pledge.slots, pledge.peer] = pledge

    def distrust(self, peer: PeerId) -> None:
        """A peer's work turned out to be wrong: forget what it pledged."""
        for pledges in self.kept.values():
            for key in [key for key in pledges if key[1] == peer]:
                del pledges[key]

    def state_changed(self) -> None:
        """Forget steps that are committed."""
        committed = self._board.committed
        self.kept = {step: pledges for step, pledges in self.kept.items() if step > committed}
