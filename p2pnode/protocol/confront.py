"""A node confronted with a wrong result of its own: it finds out which operation made it, tells
everybody, and leaves. Of others' wrong results it keeps what is needed to reproduce them.

May import: board, contribute, effects, events, messages.

A confession names tensor and operation, so the logs of all machines do. It decides nothing: the
others have computed the slot for themselves.
"""

from __future__ import annotations

from p2pnode.protocol.board import Board, short
from p2pnode.protocol.contribute import Contributor
from p2pnode.protocol.effects import Diagnose, Fault, Kind
from p2pnode.protocol.events import Diagnosed
from p2pnode.protocol.messages import Accuse, Confess, PeerId, SlotEvidence


class Confront:
    """Diagnoses of disputed slots."""

    def __init__(self, board: Board, contributor: Contributor) -> None:
        self._board = board
        self._contributor = contributor
        self._open: tuple[int, int] | None = None
        """Step and slot of ours that is being diagnosed."""
        self._accusers: set[PeerId] = set()
        self._kept: set[tuple[PeerId, int]] = set()

    def convict(self, step: int, slot: int, said: SlotEvidence | None) -> None:
        """The reference kernels contradict what this node said of a slot: it takes no more part,
        and says which operation it was."""
        self._board.dismiss(
            f"This machine computed slot {slot} of step {step} wrongly: its fast kernels differ "
            "from the reference."
        )
        self._diagnose(step, slot, said)

    def accused(self, accuser: PeerId, message: Accuse) -> None:
        """A peer says that a slot computed here is wrong; heard once from each."""
        board = self._board
        if message.step != board.applied + 1 or accuser in self._accusers:
            return
        said = next(
            (
                item
                for held in self._contributor.held.values()
                for item in held.evidence
                if item.slot == message.slot
            ),
            None,
        )
        if said is not None:
            self._accusers.add(accuser)
            self._diagnose(message.step, message.slot, said)

    def keep(self, peer: PeerId, step: int, slot: int, said: SlotEvidence | None) -> None:
        """Save what reproduces a wrong slot of another peer; one of each step."""
        if (peer, step) not in self._kept:
            self._kept.add((peer, step))
            self._board.out.append(Diagnose(step, slot, peer, said))

    def _diagnose(self, step: int, slot: int, said: SlotEvidence | None) -> None:
        if self._open is None:
            self._open = (step, slot)
            self._board.diagnosing = True
            self._board.out.append(Diagnose(step, slot, self._board.me, said))

    def diagnosed(self, event: Diagnosed) -> None:
        """What recomputation of a slot found."""
        board = self._board
        if event.saved:
            board.report(Kind.DIVERGENCE, event.saved, event.peer, event.step)
        if event.peer != board.me or (event.step, event.slot) != self._open:
            return
        self._open = None
        board.diagnosing = False
        if event.tensor is not None:
            confession = Confess(
                board.setup.run, event.step, event.slot, event.tensor[:256], event.operation[:256]
            )
            for peer in board.peers.members:
                if peer != board.me:
                    board.send(peer, confession)
            board.fail(
                Fault.UNSOUND,
                f"This machine computed slot {event.slot} of step {event.step} wrongly: tensor "
                f"{event.tensor}, {event.operation}, differs from the reference arithmetic. "
                "The others go on without it. Start it again to run the gates.",
            )
        elif board.dismissed:
            board.fail(
                Fault.UNSOUND,
                f"{board.dismissed} Computed again it came out right, so this is a passing fault "
                "of memory or processor. Start it again to run the gates.",
            )
        else:
            board.report(
                Kind.DIVERGENCE,
                f"slot {event.slot} of step {event.step}, which another peer calls wrong, was "
                "computed again here and is right",
                board.me,
                event.step,
            )

    def confessed(self, peer: PeerId, message: Confess) -> str:
        """What a peer says that it did wrongly, as a phrase."""
        what = "applied the step" if message.slot < 0 else f"computed slot {message.slot}"
        text = f"it {what} wrongly: tensor {message.tensor}, {message.operation}"
        if peer not in self._board.confessed:
            self._board.confessed.add(peer)
            self._board.report(
                Kind.DIVERGENCE,
                f"{short(peer)} at step {message.step} says that {text}",
                peer,
                message.step,
            )
        return text
