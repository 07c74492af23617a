"""One room: its host, its members, who is connected, and what each of them may see.

May import: limits, messages, throttle. Sans-IO.
"""

from __future__ import annotations

from collections import OrderedDict

from signaling.limits import Limits
from signaling.messages import PeerId, Role, RosterClaim, View, peer_id
from signaling.throttle import Bucket


class Room:
    """State of one room. Connections are known here by their number only."""

    def __init__(
        self, room_id: bytes, host: PeerId, provisional: bool, limits: Limits, now: float
    ) -> None:
        """`provisional`: founded by a newcomer while returning members were still expected."""
        self.id = room_id
        self.host = host
        self.provisional = provisional
        self.epoch = 0
        self.members: tuple[PeerId, ...] = (host,)
        self.connected: dict[PeerId, int] = {}
        """Connection number of everyone here, in order of arrival."""
        self.dismissed: OrderedDict[PeerId, None] = OrderedDict()
        self.empty_since: float | None = None
        self._joins = Bucket(limits.room_joins_rate, limits.room_joins_burst, now)
        self._messages = Bucket(limits.room_messages_rate, limits.room_messages_burst, now)
        self._bytes = Bucket(limits.room_bytes_rate, limits.room_bytes_burst, now)
        self.host_away_since: float | None = None
        self.acting: PeerId | None = None
        """Who stands in for a host that has been away for long."""

    def takes_join(self, now: float) -> bool:
        """Whether there may be one more registration now."""
        return self._joins.take(1, now)

    def carries(self, size: int, now: float) -> bool:
        """Whether so many bytes more may be relayed now."""
        return self._messages.take(1, now) and self._bytes.take(size, now)

    def watch_host(self, now: float, patience: float) -> None:
        """Note since when the host is away; after `patience` seconds the first member in join
        order that is here stands in for it."""
        if self.host in self.connected:
            self.host_away_since = self.acting = None
        elif self.host_away_since is None:
            self.host_away_since = now
        elif now - self.host_away_since >= patience:
            self.acting = next((peer for peer in self.members if peer in self.connected), None)

    def may_lead(self, peer: PeerId) -> bool:
        """Whether a roster that this peer signs may become the room's: of the host, of who stands
        in for it, and of a member that was host before it was away."""
        if peer in (self.host, self.acting):
            return True
        order = self.members
        return peer in order and self.host in order and order.index(peer) < order.index(self.host)

    def role(self, peer: PeerId) -> Role:
        """What a connected peer is in this room."""
        if peer == self.host:
            return "host"
        if peer == self.acting:
            return "acting"
        return "member" if peer in self.members else "waiting"

    def adopt(self, claim: RosterClaim) -> None:
        """Take a verified roster as the room's."""
        self.host = peer_id(claim.host_key)
        self.epoch = claim.epoch
        self.members = claim.members
        if len(claim.members) > 1:
            self.provisional = False
        for peer in claim.members:
            self.dismissed.pop(peer, None)

    def dismiss(self, peer: PeerId, keep: int) -> None:
        """Keep a peer out; of those kept out, the last `keep` are remembered."""
        self.dismissed[peer] = None
        while len(self.dismissed) > keep:
            self.dismissed.popitem(last=False)

    def waiting(self) -> tuple[PeerId, ...]:
        """Connected peers that are no members, in order of arrival."""
        return tuple(peer for peer in self.connected if self.role(peer) == "waiting")

    def has_member_connected(self) -> bool:
        """Whether the room is in use."""
        return any(peer in self.connected for peer in self.members)

    def view(self, peer: PeerId) -> View:
        """What `peer` may see: those who wait see nobody but the host."""
        role = self.role(peer)
        host = self.host if self.host in self.connected else None
        if role == "waiting":
            return View(role, host or self.acting)
        members = tuple(sorted(member for member in self.members if member in self.connected))
        waiting = self.waiting() if role in ("host", "acting") else ()
        return View(role, host, self.epoch, members, waiting)

    def may_relay(self, sender: PeerId, to: PeerId) -> bool:
        """Members reach each other; those who wait reach the host, or who stands in for it, and
        are reached."""
        roles = (self.role(sender), self.role(to))
        return "host" in roles or "acting" in roles or "waiting" not in roles
