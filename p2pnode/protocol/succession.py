"""Who may stand in for a host that is lost: the first member in join order that is still there.

May import: identity, roster. Sans-IO.

A node judges by its own eyes, never by the server's word alone: a member is away that it has had no
link to for a while, and that the server does not show either.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from p2pnode.protocol.identity import PeerId
from p2pnode.protocol.roster import Roster

TAKEOVER = 60.0
"""Seconds without the host, and without everybody before it in join order, after which a member may
act in its place. A restart, or a server's outage, takes less."""
BELIEVE = TAKEOVER / 2
"""Seconds of the same after which other members believe it: they may have noticed later."""


class Succession:
    """What this node knows of who is there. `now`: monotonic seconds."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._links: Set[PeerId] = frozenset()
        self._shown: Collection[PeerId] = ()
        self._seen: dict[PeerId, float] = {}
        self._now = 0.0

    def look(
        self, roster: Roster | None, links: Set[PeerId], shown: Collection[PeerId], now: float
    ) -> None:
        """Who is linked here, and whom the server shows. Call whenever either changes."""
        self._links, self._shown = links, shown
        # One that is met here for the first time counts as seen just now.
        ids = roster.ids if roster is not None else ()
        self._seen = {peer: self._seen.get(peer, now) for peer in ids}
        self.now(now)

    def now(self, now: float) -> None:
        """Time has passed: whoever is there was seen now."""
        for peer in self._seen:
            if peer in self._links or peer in self._shown:
                self._seen[peer] = now
        self._now = now

    def stands_in(self, roster: Roster | None) -> bool:
        """Whether this node may act for the host: all before it in join order are away."""
        if roster is None or roster.host == self._me:
            return False
        return self.clear(roster, self._me, TAKEOVER)

    def next_turn(self, roster: Roster | None) -> float | None:
        """When this node's turn comes if nobody comes back; None if somebody is there, or it has
        come."""
        if roster is None or roster.host == self._me or self.stands_in(roster):
            return None
        before = self._before(roster, self._me)
        if any(peer in self._links or peer in self._shown for peer in before):
            return None
        return max(self._seen.get(peer, self._now) for peer in before) + TAKEOVER

    def clear(self, roster: Roster, peer: PeerId, patience: float) -> bool:
        """Whether the host and all before `peer` in join order have been away for so long."""
        return all(self._away(other, patience) for other in self._before(roster, peer))

    def _before(self, roster: Roster, peer: PeerId) -> set[PeerId]:
        earlier = roster.ids[: roster.ids.index(peer)]
        return {*earlier, roster.host} - {peer, self._me}

    def _away(self, peer: PeerId, patience: float) -> bool:
        seen = self._seen.get(peer)
        return seen is not None and self._now - seen >= patience
