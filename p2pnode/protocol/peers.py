"""What this node knows of each other peer: links, signs of life, newest status, and routes.

May import: limits, messages.
"""

from __future__ import annotations

import dataclasses

from p2pnode.limits import Limits
from p2pnode.protocol.messages import PeerId, Status

NEVER = float("-inf")


@dataclasses.dataclass(slots=True)
class Peer:
    """One other member. Times in seconds of the core's clock, NEVER if it did not happen."""

    linked: bool = False
    linked_at: float = NEVER
    heard: float = NEVER
    """Any frame, direct or relayed."""
    heard_direct: float = NEVER
    moved: float = NEVER
    """Last bulk bytes on the direct link."""
    received: int = 0
    """Bulk bytes on the direct link so far."""
    status: Status | None = None
    status_at: float = NEVER

    @property
    def applied(self) -> int:
        return self.status.applied if self.status else -1


class Peers:
    """The table of all other members, in join order."""

    def __init__(self, me: PeerId, members: tuple[PeerId, ...], limits: Limits) -> None:
        self._me = me
        self._limits = limits
        self._table: dict[PeerId, Peer] = {}
        self._early: dict[PeerId, float] = {}
        self.members: tuple[PeerId, ...] = ()
        self.set_members(members)

    def set_members(self, members: tuple[PeerId, ...]) -> None:
        """A new member list, in join order."""
        self.members = members
        for peer in members:
            if peer != self._me and peer not in self._table:
                self._table[peer] = Peer()
                if peer in self._early:
                    self.link_up(peer, self._early.pop(peer))
        for peer in set(self._table) - set(members):
            del self._table[peer]

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._table

    def __getitem__(self, peer: PeerId) -> Peer:
        return self._table[peer]

    def get(self, peer: PeerId) -> Peer | None:
        """The member, this node among them; None if it is none."""
        return self._table.get(peer)

    def items(self) -> list[tuple[PeerId, Peer]]:
        """The other members in join order."""
        return [(peer, self._table[peer]) for peer in self.members if peer != self._me]

    def rank(self, peer: PeerId) -> int:
        """Place in join order; after everybody for one who is no member."""
        try:
            return self.members.index(peer)
        except ValueError:
            return len(self.members)

    def link_up(self, peer: PeerId, now: float) -> None:
        """A direct link has come up."""
        entry = self._table.get(peer)
        if entry is None:  # its link was faster than the news that it is a member
            if len(self._early) < self._limits.peers:
                self._early[peer] = now
            return
        entry.linked = True
        entry.linked_at = entry.heard = entry.heard_direct = now

    def link_down(self, peer: PeerId) -> None:
        """The direct link has gone."""
        self._early.pop(peer, None)
        if peer in self._table:
            self._table[peer].linked = False

    def heard(self, peer: PeerId, now: float, via: PeerId | None, nbytes: int) -> None:
        """A frame came; from a relay it is a sign of life of both."""
        entry = self._table[peer]
        entry.heard = now
        carrier = entry if via is None else self._table.get(via)
        if carrier is not None:
            carrier.heard = carrier.heard_direct = now
        if nbytes:
            entry.moved = now
            entry.received += nbytes

    def live(self, peer: PeerId, now: float) -> bool:
        """Heard of within the silence limit, and not about to leave."""
        entry = self._table.get(peer)
        return (
            entry is not None
            and now - entry.heard < self._limits.silence
            and not (entry.status is not None and entry.status.leaving)
        )

    def direct(self, peer: PeerId, now: float) -> bool:
        """The direct link works in both directions, as far as one can know."""
        entry = self._table[peer]
        if not entry.linked or now - entry.heard_direct >= self._limits.silence:
            return False
        # A link that carries only what we receive shows in the other's statuses, which do not
        # list us; right after the link came up they cannot yet.
        settled = entry.status_at - entry.linked_at > 3 * self._limits.heartbeat
        return not settled or entry.status is None or self._me in entry.status.links

    def links(self, now: float) -> tuple[PeerId, ...]:
        """Peers whose frames come over a direct link; this is what statuses tell."""
        return tuple(
            peer
            for peer, entry in self.items()
            if entry.linked and now - entry.heard_direct < self._limits.silence
        )

    def route(self, peer: PeerId, now: float) -> tuple[bool, PeerId | None]:
        """(reachable, neighbour to send through or None for the direct link)."""
        if self.direct(peer, now):
            return True, None
        for neighbour, entry in self.items():
            if (
                neighbour != peer
                and entry.status is not None
                and peer in entry.status.links
                and self.direct(neighbour, now)
            ):
                return True, neighbour
        return self._table[peer].linked, None
