"""Telling others what they need to check a step: checksums of this node's sets, and which pledges
it has.

May import: board, contribute, effects, events, guard, messages, pledges.
"""

from __future__ import annotations

import dataclasses

from p2pnode.protocol.board import Board
from p2pnode.protocol.contribute import Contributor
from p2pnode.protocol.effects import Weigh
from p2pnode.protocol.events import Weighed
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.messages import Answer, Challenge, PeerId, Slots
from p2pnode.protocol.pledges import Pledges

NONCES = 4
"""Nonces of one peer for one step that are answered: it draws one, and another if it restarts."""


@dataclasses.dataclass(slots=True)
class _Asked:
    """One nonce of one peer."""

    waiting: int
    """Sets that are still being weighed."""
    values: dict[Slots, int] = dataclasses.field(default_factory=dict)


class Answers:
    """Answers challenges; each nonce costs one look at what is held, however often it comes."""

    def __init__(
        self, board: Board, contributor: Contributor, pledges: Pledges, guard: Guard
    ) -> None:
        self._board = board
        self._contributor = contributor
        self._pledges = pledges
        self._guard = guard
        self._asked: dict[tuple[int, PeerId, bytes], _Asked] = {}
        self._tickets: dict[int, tuple[tuple[int, PeerId, bytes], Slots]] = {}

    def challenged(self, peer: PeerId, message: Challenge) -> None:
        """Weigh what is held, or answer at once if that has been done."""
        board, step = self._board, message.step
        self._guard.seen(peer, step, message.seen)
        key = (step, peer, message.nonce)
        if not message.nonce:
            for pledge in self._pledges.unnamed(step, message.seen):
                board.send(peer, pledge, key=("pledge", pledge.peer, step, pledge.slots))
            self._answer(key, {})
            return
        if message.base != board.hashes.get(step - 1):
            return  # it checks another state
        asked = self._asked.get(key)
        if asked is None:
            if sum(known[:2] == key[:2] for known in self._asked) >= NONCES:
                return
            held = self._contributor.of(step)
            asked = self._asked[key] = _Asked(len(held))
            for slots, computed in held.items():
                board.tickets += 1
                self._tickets[board.tickets] = key, slots
                board.out.append(Weigh(board.tickets, message.nonce, (computed.payload,)))
        if asked.waiting == 0:
            self._answer(key, asked.values)

    def weighed(self, event: Weighed) -> None:
        if event.ticket not in self._tickets:
            return
        key, slots = self._tickets.pop(event.ticket)
        asked = self._asked.get(key)
        if asked is None:
            return
        asked.values[slots] = event.value
        asked.waiting -= 1
        if asked.waiting == 0:
            self._answer(key, asked.values)

    def _answer(self, key: tuple[int, PeerId, bytes], values: dict[Slots, int]) -> None:
        step, peer, nonce = key
        run, seen = self._board.setup.run, self._pledges.seen(step)
        answer = Answer(run, step, nonce, tuple(values.items()), seen)
        self._board.send(peer, answer, key=("answer", step, nonce))

    def state_changed(self) -> None:
        """Nobody checks older steps."""
        applied = self._board.applied
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] >= applied}
