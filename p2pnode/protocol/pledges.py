"""Signed statements of what workers computed: making this node's, keeping everybody's.

May import: board, events, messages. Whether a pledge may be taken is decided in guard.

A pledge is a pure function of its set and of the state before: an honest worker makes the same one
again after a restart. So two pledges of one worker for one set and state that differ prove a lie.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from p2pnode.protocol.board import Board
from p2pnode.protocol.events import Computed
from p2pnode.protocol.messages import PeerId, Pledge, Seen, Slots, pledge_digest

AHEAD = 2
"""Work is taken for this many steps after the applied one: a faster peer may have applied the
current step already."""
SHARES = 4
"""Slots that the pledges of one peer to a step may name, as a multiple of the slots there are: new
plans may give it other sets. It bounds what is kept."""


KEPT = 4
"""Committed steps whose pledges are still kept: who was lied to may ask for them."""


class Pledges:
    """Pledges of the last steps, by step, set and worker."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.kept: dict[int, dict[tuple[Slots, PeerId], Pledge]] = {}
        self._seen: dict[int, dict[tuple[Slots, PeerId], Seen]] = {}
        self.pinned: set[int] = set()
        """Steps whose pledges are wanted however far this node has gone on: who was wrong in them
        is not known yet."""

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
        self.keep(pledge)
        return pledge

    def get(self, step: int, slots: Slots, peer: PeerId) -> Pledge | None:
        """The peer's pledge for a set of a step; None if it is not here."""
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
        """Note a pledge. The caller has checked it, and that there is room."""
        where = pledge.slots, pledge.peer
        self.kept.setdefault(pledge.step, {})[where] = pledge
        name = Seen(pledge.peer, pledge.slots, pledge.base, pledge_digest(pledge))
        self._seen.setdefault(pledge.step, {})[where] = name

    def wanted(self, step: int) -> bool:
        """Whether pledges to this step are kept."""
        recent = self._board.committed - KEPT < step <= self._board.applied + AHEAD
        return recent or step in self.pinned

    def seen(self, step: int) -> tuple[Seen, ...]:
        """The names of all pledges to a step that are here."""
        return tuple(self._seen.get(step, {}).values())

    def others(self, step: int, seen: Sequence[Seen]) -> list[Pledge]:
        """Pledges here that differ from those named, of the same worker, set and state."""
        mine = self._seen.get(step, {})
        found = []
        for name in seen:
            known = mine.get((name.slots, name.peer))
            if known is not None and known.base == name.base and known.digest != name.digest:
                found.append(self.kept[step][name.slots, name.peer])
        return found

    def unnamed(self, step: int, seen: Sequence[Seen]) -> list[Pledge]:
        """Pledges here of which no other of the same worker and set is named."""
        named = {(name.slots, name.peer) for name in seen}
        return [pledge for where, pledge in self.kept.get(step, {}).items() if where not in named]

    def state_changed(self) -> None:
        """Forget old steps."""
        for kept in (self.kept, self._seen):
            for step in [step for step in kept if not self.wanted(step)]:
                del kept[step]
