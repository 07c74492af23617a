"""The room's secret, and the rosters that carry it: made new when somebody is put out, sealed to
every member, and known to nobody else. Sans-IO.

May import: errors, box, envelope, identity, roster.
"""

from __future__ import annotations

from p2pnode.errors import PeerError
from p2pnode.protocol.box import seal, unseal
from p2pnode.protocol.envelope import Random
from p2pnode.protocol.identity import Identity, PeerId
from p2pnode.protocol.roster import Member, Roster, open_roster, sign_roster

_SECRET, _ROSTER = b"room secret", b"roster"
"""What a box is for."""


class RoomSecret:
    """What one node knows of it."""

    def __init__(self, identity: Identity, room: bytes, random: Random) -> None:
        self._me = identity
        self._room = room
        self._random = random
        self.current: bytes | None = None

    def forget(self) -> None:
        """The next roster that is signed here brings a new one."""
        self.current = None

    def take(self, roster: Roster) -> None:
        """Take up the secret that a roster brings. Raises PeerError if its signer sealed
        nonsense."""
        if roster.boxes:
            box = roster.boxes[roster.ids.index(self._me.peer_id)]
            self.current = unseal(self._me.relay_private_key, box, _SECRET + self._room)

    def sign(
        self, old: Roster | None, members: tuple[Member, ...], epoch: int, out: tuple[PeerId, ...]
    ) -> Roster:
        """A roster by this node, after `old`. When somebody is put out the secret is a new one.
        `out`: who was put out besides. Raises PeerError for a member that nothing can be sealed
        to."""
        ids = {member.id for member in members}
        gone = tuple(peer for peer in (old.ids if old else ()) if peer not in ids)
        if gone or self.current is None:
            self.current = self._random(32)
        secret = self.current
        boxes = tuple(
            seal(member.relay_key, secret, _SECRET + self._room, self._random) for member in members
        )
        once = dict.fromkeys((*out, *(old.removed if old is not None else ()), *gone))
        removed = tuple(peer for peer in once if peer not in ids)
        return sign_roster(self._me, self._room, epoch, members, removed, boxes)

    def seal_roster(self, member: Member, roster: Roster) -> bytes:
        """A roster for the eyes of one member. Raises PeerError as `sign` does."""
        return seal(member.relay_key, roster.encode(), _ROSTER + self._room, self._random)

    def unseal_roster(self, box: bytes) -> Roster:
        """A roster that was sealed to this node, verified. Raises PeerError."""
        return open_roster(
            unseal(self._me.relay_private_key, box, _ROSTER + self._room), self._room
        )

    def can_have(self, member: Member) -> bool:
        """Whether something can be sealed to the member; a false host may name one to whom not."""
        try:
            seal(member.relay_key, b"", b"", self._random)
        except PeerError:
            return False
        return True
