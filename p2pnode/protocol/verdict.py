"""The commit rule, and what happens when state hashes differ.

May import: board, effects, events, guard, messages, reduce.

State t is committed when all of the newest roster have applied it with the same hash. Members that
have gone on already speak through the sums of step t+1, which name the state they start from. If
two differ, each recomputes its own apply with reference arithmetic; who finds itself wrong says so
and leaves. If nobody does, the majority of hashes decides, and without one the run stops.
"""

from __future__ import annotations

from collections import Counter

from p2pnode.protocol.board import Board, short
from p2pnode.protocol.effects import Fault, Kind, Verify
from p2pnode.protocol.events import Verified
from p2pnode.protocol.guard import Guard
from p2pnode.protocol.messages import Confess, PeerId, Status
from p2pnode.protocol.reduce import Shelf

PATIENCE = 10.0
"""Seconds that others get for their recomputation beyond four times what ours took."""


def hash_at(status: Status, step: int) -> bytes | None:
    """The hash a peer states for a step; None if its status tells none, or one of a state whose
    sums it has not checked."""
    if status.applied == step and status.checked >= step:
        return status.state_hash
    if status.committed == step:
        return status.committed_hash
    return None


class Verdict:
    """Decides whether the applied state is committed."""

    def __init__(self, board: Board, guard: Guard, shelf: Shelf) -> None:
        self._board = board
        self._shelf = shelf
        self._guard = guard
        self.verified = 0
        self._asked_for = 0
        self._differed: dict[PeerId, bytes] = {}
        """Hashes that differed at the step asked for: they count even if their peers are gone."""
        self._asked_at = 0.0
        self._answered_at = 0.0

    def committed(self) -> bool:
        """Whether state `applied` may be committed now; starts an inquiry on a difference."""
        board = self._board
        if board.newest is None:
            return False
        step, mine = board.applied, board.hashes[board.applied]
        voices = self.voices(step)
        waiting = False
        for peer in board.newest.roster:
            if peer in voices or peer == board.me or peer in board.excluded:
                continue
            entry = board.peers.get(peer)
            beyond = entry is not None and entry.applied > step
            # Who is far beyond says no hash of this step any more, but somebody's sums do.
            waiting |= not (beyond and mine in voices.values())
        differing = [peer for peer, stated in voices.items() if stated != mine]
        if differing:
            self._inquire(step, mine, voices, differing)
            return False
        return not waiting

    def rolled_back(self) -> None:
        """The applied state is no more."""
        self.verified = min(self.verified, self._board.applied)
        self._asked_for = 0
        self._differed = {}

    def voices(self, step: int) -> dict[PeerId, bytes]:
        """What other good peers say the hash of the state is."""
        voices: dict[PeerId, bytes] = {}
        for held in self._shelf.sums.get(step + 1, {}).values():
            if held.peer != self._board.me and self._board.good(held.peer):
                voices[held.peer] = held.base
        for peer, status in self._board.good_peers():
            stated = hash_at(status, step)
            if stated is not None:
                voices[peer] = stated
        if self._asked_for == step:
            for peer, stated in self._differed.items():
                if self._guard.trusted(peer):
                    voices.setdefault(peer, stated)
        return voices

    def _inquire(
        self, step: int, mine: bytes, voices: dict[PeerId, bytes], differing: list[PeerId]
    ) -> None:
        board = self._board
        if self._asked_for != step:
            self._asked_for = step
            self._asked_at = board.now
            self._differed = {}
            names = ", ".join(short(peer) for peer in differing)
            board.report(
                Kind.DIVERGENCE,
                f"state {step} of {names} differs from ours; everybody recomputes",
                differing[0],
                step,
            )
            board.out.append(Verify(step))
        self._differed.update((peer, voices[peer]) for peer in differing)
        if self.verified < step:
            return
        took = self._answered_at - self._asked_at
        overdue = board.now - self._answered_at > PATIENCE + 4 * took
        if not overdue and any(self._may_confess(peer, step) for peer in differing):
            return
        votes = Counter([mine, *voices.values()])
        winner, count = votes.most_common(1)[0]
        silent = sum(peer not in voices for peer, _ in board.good_peers())
        if 2 * count <= votes.total() + silent:
            if silent:
                return  # who has not applied the step yet may still decide it
            board.fail(
                Fault.DIVERGENCE,
                f"The states of step {step} differ, no machine finds an error in its own, and no "
                f"majority agrees. The run stopped at step {board.committed}.",
            )
        elif winner != mine:
            board.fail(
                Fault.DIVERGENCE,
                f"This machine's state of step {step} differs from that of the majority.",
            )
        else:
            for peer in differing:
                self._guard.accuse(peer, step, "its state differs from that of the majority")

    def _may_confess(self, peer: PeerId, step: int) -> bool:
        """The peer can still find its own apply wrong."""
        entry = self._board.peers.get(peer)
        status = entry.status if entry is not None and self._board.good(peer) else None
        return status is not None and status.applied == step and status.verified < step

    def answered(self, event: Verified) -> None:
        """Result of recomputing our own apply: go on, or confess and leave."""
        board = self._board
        if event.saved:
            board.report(Kind.DIVERGENCE, event.saved, board.me, event.step)
        if event.step != board.applied or event.step <= board.committed:
            return
        if event.tensor is None:
            self.verified = event.step
            self._answered_at = board.now
            return
        for peer, _ in board.good_peers():
            confession = Confess(
                board.setup.run, event.step, -1, event.tensor[:256], event.operation[:256]
            )
            board.send(peer, confession)
        board.fail(
            Fault.DIVERGENCE,
            f"This machine applied step {event.step} wrongly: tensor {event.tensor}, "
            f"{event.operation}, differs from the reference arithmetic. The others go on without "
            "it.",
        )
