"""The host's list of peers that wait for its decision, and of those that it has turned away.

May import: errors, identity, roster, and `signaling.messages` for the bound. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Container

from p2pnode.errors import UsageError
from p2pnode.protocol.identity import PeerId, short_id
from p2pnode.protocol.roster import Member
from signaling.messages import MAX_WAITING

MAX_DISMISSED = 1024
"""Keys remembered as turned away; the oldest are forgotten, and would have to be refused again."""


class WaitingList:
    """In order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[PeerId, Member] = {}
        self._words: dict[PeerId, str] = {}
        self._put_off: set[PeerId] = set()
        self._dismissed: dict[PeerId, None] = {}

    def names(self) -> dict[PeerId, str]:
        """Who waits, in order of arrival, with clean names."""
        return {peer: member.name for peer, member in self._waiting.items()}

    def to_ask(self) -> PeerId | None:
        """Whom the owner is to be asked about: who came first of those not put off."""
        return next((peer for peer in self._waiting if peer not in self._put_off), None)

    def put_off(self, peer: PeerId) -> Member:
        """Ask about the others first; this one waits until it is named, or comes anew. Raises
        UsageError if it does not wait."""
        member = self.get(peer)
        self._put_off.add(peer)
        return member

    def words(self, peer: PeerId) -> str:
        """What the owner is to compare before it lets this peer in; empty: nothing."""
        return self._words.get(peer, "")

    def add(self, member: Member, words: str) -> bool:
        """Note who wants in; whether it is new here, or comes with other words to compare. The
        caller has checked `is_full`."""
        is_new = member.id not in self._waiting or self._words[member.id] != words
        self._waiting[member.id] = member
        self._words[member.id] = words
        if is_new:
            self._put_off.discard(member.id)
        return is_new

    def is_full_for(self, peer: PeerId) -> bool:
        """Whether this peer would be one too many."""
        return peer not in self._waiting and len(self._waiting) >= MAX_WAITING

    def get(self, peer: PeerId) -> Member:
        """Raises UsageError for a peer that does not wait."""
        member = self._waiting.get(peer)
        if member is None:
            raise UsageError(f"{short_id(peer)} is not waiting for a decision.")
        return member

    def remove(self, peer: PeerId) -> Member:
        """The peer has been decided on. Raises UsageError if it does not wait."""
        member = self.get(peer)
        self._forget(peer)
        return member

    def keep_only(self, present: Container[PeerId]) -> None:
        """Drop those who have left."""
        for peer in [peer for peer in self._waiting if peer not in present]:
            self._forget(peer)

    def _forget(self, peer: PeerId) -> None:
        del self._waiting[peer], self._words[peer]
        self._put_off.discard(peer)

    def dismiss(self, peer: PeerId) -> None:
        """Remember that this peer was turned away."""
        self._dismissed[peer] = None
        if len(self._dismissed) > MAX_DISMISSED:
            del self._dismissed[next(iter(self._dismissed))]

    def is_dismissed(self, peer: PeerId) -> bool:
        """Whether it was turned away, as far as is remembered."""
        return peer in self._dismissed
