"""Sealed conversations with everybody in a room: one `Channel` a peer, kept within bounds.

May import: envelope, identity, admit_effects, and `signaling.messages` for the bounds. Sans-IO.
"""

from __future__ import annotations

from p2pnode.protocol.admit_effects import Effect, Send
from p2pnode.protocol.envelope import Channel, Opened, Random
from p2pnode.protocol.identity import Identity, PeerId
from signaling.messages import MAX_MEMBERS, MAX_WAITING

MAX_CHANNELS = 2 * (MAX_MEMBERS + MAX_WAITING)
"""Twice what a room holds, so that peers that come and go do not push out those who stay."""


class Post:
    """Seals and opens for one node in one room."""

    def __init__(self, identity: Identity, room: bytes, secret: bytes, random: Random) -> None:
        self._identity = identity
        self._room = room
        self._secret = secret
        self._random = random
        self._channels: dict[PeerId, Channel] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def send(self, peer: PeerId, kind: str, body: bytes) -> list[Effect]:
        """What to send so that `peer` gets this message."""
        return [Send(peer, sealed) for sealed in self._channel(peer).send(kind, body)]

    def receive(self, sender: PeerId, sealed: bytes) -> tuple[Opened | None, list[Effect]]:
        """What an envelope says, and what to send because of it. Raises PeerError."""
        opened, replies = self._channel(sender).receive(sealed)
        return opened, [Send(sender, reply) for reply in replies]

    def _channel(self, peer: PeerId) -> Channel:
        channel = self._channels.pop(peer, None)
        if channel is None:
            channel = Channel(self._identity, self._room, self._secret, peer, self._random)
            if len(self._channels) >= MAX_CHANNELS:
                # The one unused for longest goes: that costs an exchange of nonces, nothing else.
                del self._channels[next(iter(self._channels))]
        self._channels[peer] = channel
        return channel
