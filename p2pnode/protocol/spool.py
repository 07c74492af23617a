"""Sums that are kept for later lie on disk beyond a bound in memory.

May import: board, effects, events, messages, reduce.

Kept are those of the last applied steps, for peers that fell behind, and, while this node catches
up, those of steps ahead. The newest applied and the next to be applied are needed soonest and stay.
"""

from __future__ import annotations

import dataclasses

from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import Kind, Spool
from p2pnode.protocol.events import Spooled
from p2pnode.protocol.messages import Shard
from p2pnode.protocol.reduce import Shelf


class Spooler:
    """Decides what goes to disk. Without a disk fewer steps are kept, and memory stays bounded."""

    def __init__(self, board: Board, shelf: Shelf) -> None:
        self._board = board
        self._shelf = shelf
        self._away: dict[int, tuple[Shard, ...]] = {}
        """Steps on disk or on the way there, and which of their shards."""
        self._looked_at: tuple[int, int] | None = None
        self._complained = False

    def settle(self) -> None:
        """Send sums away if more than the bound is in memory."""
        board, sums = self._board, self._shelf.sums
        if self._looked_at == (board.applied, len(sums)):
            return
        self._looked_at = board.applied, len(sums)
        self._away = {step: shards for step, shards in self._away.items() if step in sums}
        size = 4 * board.setup.parameters
        here = [step for step in sums if step not in self._away]
        spare = max(0, len(here) - board.limits.kept_bytes // size)
        behind = sorted(step for step in here if step < board.applied)
        ahead = sorted((step for step in here if step > board.applied + 1), reverse=True)
        for step in [*behind, *ahead][:spare]:
            if self._shelf.complete(step) is not None:
                held = sums[step]
                self._away[step] = tuple(held)
                board.out.append(Spool(step, tuple(item.payload for item in held.values())))

    def spooled(self, event: Spooled) -> None:
        """The copies on disk take the place of those in memory, or there is no room for them."""
        shards = self._away.get(event.step)
        held = self._shelf.sums.get(event.step)
        if shards is None or held is None:
            return
        if event.payloads is None:
            del self._away[event.step]
            self._shelf.give_up(event.step)
            if not self._complained:
                self._complained = True
                self._board.report(Kind.CATCH_UP, f"fewer past steps are kept: {event.reason}")
            return
        for shard, payload in zip(shards, event.payloads, strict=True):
            if shard in held:
                held[shard] = dataclasses.replace(held[shard], payload=payload)
