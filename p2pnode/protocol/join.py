"""Catching up by state transfer: donors hold a committed state still, the joiner fetches it.

May import: board, effects, events, fetch, messages, recover, reduce.
"""

from __future__ import annotations

from collections import Counter

from p2pnode.protocol.board import Board
from p2pnode.protocol.effects import Freeze, Kind, Load, Recall, Store
from p2pnode.protocol.events import Frozen, LoadRefused, Recalled
from p2pnode.protocol.fetch import Blob, Fetcher
from p2pnode.protocol.messages import (
    MAX_PARTS,
    PART_BYTES,
    BlobIndex,
    BlobPart,
    BlobWant,
    Buffer,
    FrozenState,
    PeerId,
    Priority,
)
from p2pnode.protocol.recover import lagging
from p2pnode.protocol.reduce import Shelf

HOLD = 60.0
"""Seconds for which a donor holds a state after the last peer in need of it has gone: one that has
lost its links, or is being started again, goes on with the parts it has."""


class CatchUp:
    """Both sides of a state transfer."""

    def __init__(self, board: Board, shelf: Shelf) -> None:
        self._board = board
        self._shelf = shelf
        self.frozen: FrozenState | None = None
        self._blob: Blob | None = None
        self._freezing = -1
        self._needed_at = 0.0
        self._fetcher: Fetcher | None = None
        self._offered_at = 0.0
        self._recalling = False
        """It is being looked whether some of it is on disk already."""
        self._target: FrozenState | None = None
        self._refused: set[bytes] = set()
        self.wants_state = False
        self.loading = False
        """Load runs: the state must not be touched."""

    # Donor

    def freeze(self) -> None:
        """Hold the current, committed state still if the plan of the next step says so, or if
        the run is over and somebody still lacks a state. Call before the next Apply."""
        board = self._board
        step = board.applied
        if step != board.committed or self._freezing == step:
            return
        plan = board.plans.get(step + 1)
        planned = plan is not None and plan.freeze and board.me in plan.roster
        if planned or (step == board.last_step and self._somebody_wants()):
            self._freezing = step
            board.out.append(Freeze(step))

    def held_still(self, event: Frozen) -> None:
        if event.step == self._freezing:
            self._blob = Blob(event.payload, event.part_hashes)
            self.frozen = FrozenState(event.step, event.state_hash, self._blob.root)
            self._needed_at = self._board.now

    def _somebody_wants(self) -> bool:
        return any(status.wants_state for _, status in self._board.good_peers())

    def serve(self, peer: PeerId, want: BlobWant) -> None:
        board = self._board
        if self._blob is None or want.root != self._blob.root:
            return
        answer = self._blob.answer(board.setup.run, want)
        if answer is not None:
            key = ("blob", want.root, want.part)
            board.send(peer, *answer, priority=Priority.STATE, key=key)

    # Joiner

    def settle(self) -> None:
        """Let go of a frozen state nobody needs; fetch one if nothing else helps."""
        board = self._board
        observers = board.newest.observers if board.newest else ()
        if observers or self._somebody_wants():
            self._needed_at = board.now
        elif self.frozen is not None and board.now - self._needed_at >= HOLD:
            self.frozen = self._blob = None
        if self.loading:
            return
        self.wants_state = self._fetcher is not None or lagging(board, self._shelf)
        if not self.wants_state:
            return
        offers = {
            peer: status.frozen
            for peer, status in board.good_peers()
            if status.frozen is not None and self._useful(status.frozen)
        }
        if self._target in offers.values():
            self._offered_at = board.now
        # The donors of what has begun may come back; but alone, a node goes on from what it has.
        gone = board.now - self._offered_at >= 2 * board.limits.silence
        gone |= self._target is None or not self._useful(self._target)
        if gone or (offers and self._target not in offers.values()):
            self._choose(offers)
        if self._fetcher is None or self._target is None or self._recalling:
            return
        self._fetcher.set_donors(peer for peer, offer in offers.items() if offer == self._target)
        for peer, want in self._fetcher.requests(board.now):
            board.send(peer, want)

    def _useful(self, offer: FrozenState) -> bool:
        board = self._board
        if offer.root in self._refused or offer.step > board.last_step:
            return False
        return offer.step > board.applied

    def _choose(self, offers: dict[PeerId, FrozenState]) -> None:
        """The state that most donors hold, and of equals the newest."""
        board = self._board
        self._target, self._fetcher = None, None
        if offers:
            counted = Counter(offers.values())
            target = max(counted, key=lambda offer: (counted[offer], offer.step, offer.root))
            self._target = target
            self._offered_at = board.now
            self._fetcher = Fetcher(board.setup.run, target.root, MAX_PARTS * PART_BYTES)
            self._recalling = True
            board.out.append(Recall(target.root))
            board.report(Kind.CATCH_UP, f"fetching the state of step {target.step}")

    @property
    def coming(self) -> int:
        """The state that is being loaded; 0 if none is."""
        return self._target.step if self.loading and self._target is not None else 0

    def recalled(self, event: Recalled) -> None:
        """Go on from what is on disk."""
        if self._fetcher is None or event.root != self._fetcher.root:
            return
        self._recalling = False
        if event.parts:
            self._fetcher.restore(event.size, event.hashes, event.blob, event.parts)

    def index(self, peer: PeerId, message: BlobIndex, payload: Buffer) -> None:
        """A donor tells the hashes of the parts. Raises PeerError."""
        if self._fetcher is not None:
            self._fetcher.index(peer, message, payload)

    def part(self, peer: PeerId, message: BlobPart, payload: Buffer) -> None:
        """A donor sends a part; it is kept on disk. Raises PeerError."""
        fetcher = self._fetcher
        if fetcher is not None and fetcher.part(peer, message, payload):
            start = message.part * PART_BYTES
            stored = Store(fetcher.root, fetcher.size, fetcher.hashes, start, payload)
            self._board.out.append(stored)

    def heard(self, peer: PeerId) -> None:
        """Something came from a donor: its transfer moves."""
        if self._fetcher is not None:
            self._fetcher.heard(peer, self._board.now)

    def link_lost(self, peer: PeerId) -> None:
        """What was asked of this donor is asked of others."""
        if self._fetcher is not None:
            self._fetcher.forget_requests(peer)

    def load(self) -> None:
        """Load a state that has come in full. Call only while no Apply runs."""
        if self.loading or self._fetcher is None or self._target is None or not self._fetcher.done:
            return
        if self._useful(self._target):
            self.loading = True
            self._board.out.append(Load(self._target.step, self._fetcher.blob()))
        else:
            self._target = self._fetcher = None

    def loaded(self, step: int, state_hash: bytes) -> bool:
        """Whether the loaded state is the one that was promised; the transfer is over."""
        target, self._target = self._target, None
        self._fetcher = None
        self.loading = self.wants_state = False
        return target is not None and (target.step, target.state_hash) == (step, state_hash)

    def refused(self, event: LoadRefused) -> None:
        """The bytes are no valid state: whoever froze them is wrong; try another offer."""
        if self._target is not None:
            self._refused.add(self._target.root)
            offer = self._target.root.hex()[:8]
            self._board.report(
                Kind.CATCH_UP, f"state {offer} of step {event.step} is invalid: {event.reason}"
            )
        self._target = self._fetcher = None
        self.loading = False
