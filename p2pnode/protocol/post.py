"""Sealed conversations with everybody in a room: one `Channel` a peer, kept within bounds.

May import: errors, envelope, identity, admit_effects, admit_messages, pairing, pairs, and
`signaling.messages` for the bounds. Sans-IO.

What is said at the door (to be let in, and which roster holds) is sealed under the secret from the
room's code, which all have who may knock. A node that came without a code lacks it until the host
tells; up to then the two talk under a secret of their own (see `pairs`). All else is for members,
and sealed under the room's present secret, which changes when somebody is removed.
"""

from __future__ import annotations

from p2pnode.errors import PeerError
from p2pnode.protocol.admit_effects import Effect, Send
from p2pnode.protocol.admit_messages import ASK, DECISION, KNOCK, ROSTER
from p2pnode.protocol.envelope import Channel, Opened, Random
from p2pnode.protocol.identity import Identity, PeerId, short_id
from p2pnode.protocol.pairing import PAIRING
from p2pnode.protocol.pairs import PAIR_ENVELOPE, Pairs
from signaling.messages import MAX_MEMBERS, MAX_WAITING

DOOR = frozenset((KNOCK, DECISION, ROSTER, ASK))
"""Kinds of what is said at the door. Rosters inside are sealed to their recipient besides."""
INSIDE = b"\x04"
"""First byte of an envelope under the room's present secret; see pairing and pairs for others."""
MAX_CHANNELS = 4 * (MAX_MEMBERS + MAX_WAITING)
"""Twice what a room holds, of two kinds, so that peers that come and go do not push out those who
stay."""


class Post:
    """Seals and opens for one node in one room."""

    def __init__(
        self, identity: Identity, room: bytes, secret: bytes | None, random: Random
    ) -> None:
        """`secret`: the room's, None if it is yet to be learnt."""
        self._identity = identity
        self._room = room
        self._random = random
        self._channels: dict[tuple[PeerId, bytes], Channel] = {}
        self._inside: bytes | None = None
        self._pairs = Pairs(identity, room, random)
        self._came_without = secret is None
        self.secret = secret
        """The code's; a node that came without sets it once told. From then on it seals under
        this, and its host follows when it has heard that."""

    def __len__(self) -> int:
        return len(self._channels)

    def send(self, peer: PeerId, kind: str, body: bytes) -> list[Effect]:
        """What to send so that `peer` gets this message; nothing if there is no secret for it."""
        if kind not in DOOR and self._inside is not None:
            sealed = self._channel(peer, self._inside).send(kind, body)
            return [Send(peer, INSIDE + envelope) for envelope in sealed]
        if self.secret is None or (not self._came_without and self._pairs.is_heard(peer)):
            sealed = self._pairs.send(peer, kind, body)
        else:
            sealed = self._channel(peer, self.secret).send(kind, body)
        return [Send(peer, envelope) for envelope in sealed]

    def receive(
        self, sender: PeerId, sealed: bytes, *, pairs_as_host: bool
    ) -> tuple[Opened | None, list[Effect]]:
        """What an envelope says, and what to send because of it. Raises PeerError.
        `pairs_as_host`: make a secret with whoever asks."""
        opened = None
        if sealed.startswith(PAIRING):
            if not pairs_as_host and not self._came_without:
                raise PeerError(f"{short_id(sender)} came without the room's code.")
            replies = self._pairs.receive(sender, sealed, as_host=pairs_as_host)
        elif sealed.startswith(INSIDE):
            if self._inside is None:
                raise PeerError(f"From {short_id(sender)}: an envelope came under another secret.")
            channel = self._channel(sender, self._inside)
            opened, answers = channel.receive(sealed[len(INSIDE) :])
            replies = [INSIDE + answer for answer in answers]
            if opened is not None and not self._came_without:
                self._pairs.forget(sender)
        elif sealed.startswith(PAIR_ENVELOPE):
            opened, replies = self._pairs.open(sender, sealed)
        elif self.secret is None:
            raise PeerError(f"From {short_id(sender)}: an envelope came under another secret.")
        else:
            opened, replies = self._channel(sender, self.secret).receive(sealed)
            if not self._came_without:
                self._pairs.forget(sender)
        inside = sealed.startswith(INSIDE)
        if opened is not None and self._inside is not None and inside == (opened.kind in DOOR):
            raise PeerError(f"From {short_id(sender)}: an envelope came under the wrong secret.")
        return opened, [Send(sender, reply) for reply in replies]

    def move_inside(self, secret: bytes) -> None:
        """The room's present secret: members talk under it from now on."""
        if secret != self._inside:
            old, self._inside = self._inside, secret
            for key in [key for key in self._channels if key[1] == old]:
                del self._channels[key]

    # Pairs

    def pair(self, host: PeerId) -> list[Effect]:
        """Begin to make a secret with the host; once `words` are there it can be sent to."""
        return [Send(host, self._pairs.begin(host))]

    def words(self, peer: PeerId) -> str:
        """Words to compare with a peer that talks to us under a secret of the pair, else empty."""
        return self._pairs.words(peer)

    def is_paired(self, peer: PeerId) -> bool:
        """Whether the peer has proven that it holds the pair's secret."""
        return self._pairs.is_heard(peer)

    def _channel(self, peer: PeerId, secret: bytes) -> Channel:
        channel = self._channels.pop((peer, secret), None)
        if channel is None:
            channel = Channel(self._identity, self._room, secret, peer, self._random)
            if len(self._channels) >= MAX_CHANNELS:
                # The one unused for longest goes: that costs an exchange of nonces, nothing else.
                del self._channels[next(iter(self._channels))]
        self._channels[peer, secret] = channel
        return channel
