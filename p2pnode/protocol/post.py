"""Sealed conversations with everybody in a room: one `Channel` a peer, kept within bounds.

May import: envelope, identity, admit_effects, pairing, pairs, and `signaling.messages` for the
bounds. Sans-IO.

Mostly they are sealed under the room's secret. A node that came without a code lacks it until the
host tells; up to then the two talk under a secret of their own (see `pairs`).
"""

from __future__ import annotations

from p2pnode.errors import PeerError
from p2pnode.protocol.admit_effects import Effect, Send
from p2pnode.protocol.envelope import Channel, Opened, Random
from p2pnode.protocol.identity import Identity, PeerId, short_id
from p2pnode.protocol.pairing import PAIRING
from p2pnode.protocol.pairs import PAIR_ENVELOPE, Pairs
from signaling.messages import MAX_MEMBERS, MAX_WAITING

MAX_CHANNELS = 2 * (MAX_MEMBERS + MAX_WAITING)
"""Twice what a room holds, so that peers that come and go do not push out those who stay."""


class Post:
    """Seals and opens for one node in one room."""

    def __init__(
        self, identity: Identity, room: bytes, secret: bytes | None, random: Random
    ) -> None:
        """`secret`: the room's, None if it is yet to be learnt."""
        self._identity = identity
        self._room = room
        self._random = random
        self._channels: dict[PeerId, Channel] = {}
        self._pairs = Pairs(identity, room, random)
        self._came_without = secret is None
        self.secret = secret
        """The room's; a node that came without sets it once told. From then on it seals under
        this, and its host follows when it has heard that."""

    def __len__(self) -> int:
        return len(self._channels)

    def send(self, peer: PeerId, kind: str, body: bytes) -> list[Effect]:
        """What to send so that `peer` gets this message; nothing if there is no secret for it."""
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
        elif sealed.startswith(PAIR_ENVELOPE):
            opened, replies = self._pairs.open(sender, sealed)
        elif self.secret is None:
            raise PeerError(f"From {short_id(sender)}: an envelope came under another secret.")
        else:
            opened, replies = self._channel(sender, self.secret).receive(sealed)
            if not self._came_without:
                self._pairs.forget(sender)
        return opened, [Send(sender, reply) for reply in replies]

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
        channel = self._channels.pop(peer, None)
        if channel is None:
            channel = Channel(self._identity, self._room, secret, peer, self._random)
            if len(self._channels) >= MAX_CHANNELS:
                # The one unused for longest goes: that costs an exchange of nonces, nothing else.
                del self._channels[next(iter(self._channels))]
        self._channels[peer] = channel
        return channel
