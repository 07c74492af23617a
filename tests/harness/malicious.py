"""A signaling server that does what its operator likes with what it relays and shows.

It is the real server, sockets and decisions; what it would send to a node goes through `twist`
first, which may return anything in its place.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from cryptography.exceptions import InvalidTag

from p2pnode.protocol.envelope import Channel
from p2pnode.protocol.identity import Identity, PeerId
from p2pnode.protocol.post import INSIDE
from signaling.app import SignalingServer
from signaling.messages import FromServer, Relayed, View
from signaling.rooms import Close, Effect, Send

Twist = Callable[[PeerId, FromServer], list[tuple[PeerId, FromServer]]]
"""(recipient, message) as an honest server would send it -> what to send, to whom."""


class MaliciousServer(SignalingServer):
    """`twist` may be set and changed while it runs."""

    def __init__(self, twist: Twist | None = None, port: int = 0) -> None:
        super().__init__("127.0.0.1", port)
        self.twist: Twist = twist or (lambda to, message: [(to, message)])
        self.seen: list[tuple[PeerId, PeerId, bytes]] = []
        """(from, to, sealed) of all that it relayed."""
        self.peers: dict[int, PeerId] = {}

    def numbers(self, peer: PeerId) -> list[int]:
        return [number for number, found in self.peers.items() if found == peer]

    def inject(self, to: PeerId, message: FromServer) -> None:
        """Send something of its own."""
        super()._carry_out([Send(number, message) for number in self.numbers(to)])

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            connection = self._rooms._connections.get(effect.connection)
            if connection is not None and connection.peer is not None:
                self.peers[effect.connection] = connection.peer
            to = self.peers.get(effect.connection)
            if isinstance(effect, Close) or to is None:
                super()._carry_out([effect])
                continue
            if isinstance(effect.message, Relayed):
                self.seen.append((effect.message.sender, to, effect.message.sealed))
            for recipient, message in self.twist(to, effect.message):
                self.inject(recipient, message)


# Twists


def halves(side: Callable[[PeerId], bool]) -> Twist:
    """Show one part of a room to each part, and carry nothing between them."""

    def twist(to: PeerId, message: FromServer) -> list[tuple[PeerId, FromServer]]:
        if isinstance(message, Relayed) and side(message.sender) != side(to):
            return []
        if isinstance(message, View) and message.role != "waiting":
            host = message.host if message.host and side(message.host) == side(to) else None
            members = tuple(peer for peer in message.members if side(peer) == side(to))
            message = View(message.role, host, message.epoch, members, message.waiting)
        return [(to, message)]

    return twist


def unsealed(sealed: bytes, sender: PeerId, to: PeerId, room: bytes, secret: bytes) -> bytes | None:
    """What the server reads in an envelope if somebody told it this secret; None: nothing."""
    envelope = sealed.removeprefix(INSIDE)
    spy = _spy(room, secret)
    try:
        return spy._cipher(envelope[1:33]).decrypt(
            bytes(12), envelope[33:], spy._header(sender, to)
        )
    except InvalidTag:
        return None


def _spy(room: bytes, secret: bytes) -> Channel:
    nobody = Identity.ephemeral()
    return Channel(nobody, room, secret, nobody.peer_id, bytes)


class Swapper:
    """Puts another DTLS fingerprint into every offer and answer, with the help of an insider who
    tells the server the room's present secret: it opens and seals them, but cannot sign."""

    MARK = b"a=fingerprint:sha-256 "

    def __init__(self, room: bytes, secret: Callable[[], bytes]) -> None:
        self._room = room
        self._secret = secret
        self.swapped = 0

    def __call__(self, to: PeerId, message: FromServer) -> list[tuple[PeerId, FromServer]]:
        if not isinstance(message, Relayed) or not message.sealed.startswith(INSIDE):
            return [(to, message)]
        secret = self._secret()
        plain = unsealed(message.sealed, message.sender, to, self._room, secret)
        if plain is None or self.MARK not in plain:
            return [(to, message)]
        spy = _spy(self._room, secret)
        header = spy._header(message.sender, to)
        sealed = spy._cipher(bytes(32)).encrypt(bytes(12), self.false(plain), header)
        self.swapped += 1
        return [(to, Relayed(message.sender, INSIDE + b"\x01" + bytes(32) + sealed))]

    @classmethod
    def false(cls, text: bytes) -> bytes:
        """The same text with another fingerprint of the same length."""
        at = text.index(cls.MARK) + len(cls.MARK)
        return text[:at] + b":".join([b"AB"] * 32) + text[at + 95 :]


class Meddler:
    """Repeats, reorders, reflects, misattributes and damages envelopes, by chance.

    It loses none: that would only take time, until who waits for an answer asks again.
    """

    def __init__(self, server: MaliciousServer, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._past: list[Relayed] = []
        self._peers: list[PeerId] = []

    def __call__(self, to: PeerId, message: FromServer) -> list[tuple[PeerId, FromServer]]:
        if not isinstance(message, Relayed):
            return [(to, message)]
        chance = self._random
        self._past.append(message)
        self._peers += [peer for peer in (to, message.sender) if peer not in self._peers]
        match chance.randrange(5):
            case 0:  # again, and an old one
                return [(to, message), (to, message), (to, chance.choice(self._past))]
            case 1:  # back to who sent it
                return [(message.sender, Relayed(to, message.sealed)), (to, message)]
            case 2:  # in another's name, and to another
                false = Relayed(chance.choice(self._peers), message.sealed)
                return [(to, false), (chance.choice(self._peers), message), (to, message)]
            case 3:  # damaged
                place = chance.randrange(len(message.sealed))
                sealed = bytearray(message.sealed)
                sealed[place] ^= 1
                return [(to, Relayed(message.sender, bytes(sealed))), (to, message)]
        # Later, after others.
        loop = asyncio.get_running_loop()
        loop.call_later(chance.uniform(0.0, 0.3), self._server.inject, to, message)
        return []
