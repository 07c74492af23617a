"""Conversations with peers under secrets made in pairs, where the room has no code.

May import: errors, envelope, identity, pairing, and `signaling.messages` for the bounds. Sans-IO.

A new pairing does not displace the one in use before an envelope has been opened under it. Its
signature covers the secret (see `envelope`), so only the peer itself can replace its pairing: not
the carrier, which may start one in any peer's name, or pass on an envelope sealed for another.
"""

from __future__ import annotations

from p2pnode.errors import PeerError
from p2pnode.protocol.envelope import Channel, Opened, Random
from p2pnode.protocol.identity import Identity, PeerId, short_id
from p2pnode.protocol.pairing import (
    Answer,
    Commit,
    Host,
    Newcomer,
    Paired,
    PairingMessage,
    Reveal,
    decode_pairing,
    encode_pairing,
)
from signaling.messages import MAX_MEMBERS, MAX_WAITING

PAIR_ENVELOPE = b"\x03"
"""Precedes an envelope that is sealed under a pair's secret instead of the room's."""
MAX_PAIRS = 2 * (MAX_MEMBERS + MAX_WAITING)
"""Twice what a room holds; the one unused for longest goes, and would have to pair again."""


class _Pair:
    """All about one peer."""

    def __init__(self) -> None:
        self.newcomer: Newcomer | None = None
        self.host: Host | None = None
        self.current: tuple[Channel, Paired] | None = None
        self.next: tuple[Channel, Paired] | None = None
        """Made, but not yet used by the peer."""


class Pairs:
    """For one node in one room."""

    def __init__(self, identity: Identity, room: bytes, random: Random) -> None:
        self._identity = identity
        self._room = room
        self._random = random
        self._pairs: dict[PeerId, _Pair] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def begin(self, host: PeerId) -> bytes:
        """Start an attempt as newcomer; returns the message for the host."""
        pair = self._pair(host)
        pair.newcomer = Newcomer(self._room, self._identity.peer_id, host, self._random)
        return encode_pairing(pair.newcomer.commit)

    def receive(self, sender: PeerId, raw: bytes, *, as_host: bool) -> list[bytes]:
        """Take a pairing message; returns what to send. `as_host`: answer newcomers.
        Raises PeerError."""
        message = decode_pairing(raw, sender)
        reply = self._on_host(sender, message) if as_host else self._on_newcomer(sender, message)
        return [] if reply is None else [encode_pairing(reply)]

    def is_heard(self, peer: PeerId) -> bool:
        """Whether the peer has proven, by an envelope, that it holds the pair's secret."""
        pair = self._pairs.get(peer)
        return pair is not None and pair.current is not None and pair.current[0].is_heard

    def words(self, peer: PeerId) -> str:
        """Words to compare with this peer; empty if there is no pair."""
        pair = self._pairs.get(peer)
        made = None if pair is None else pair.current or pair.next
        return "" if made is None else made[1].words

    def send(self, peer: PeerId, kind: str, body: bytes) -> list[bytes]:
        """Envelopes for a peer; none if there is no pair with it."""
        pair = self._pairs.get(peer)
        made = None if pair is None else pair.current or pair.next
        sealed = [] if made is None else made[0].send(kind, body)
        return [PAIR_ENVELOPE + envelope for envelope in sealed]

    def open(self, sender: PeerId, raw: bytes) -> tuple[Opened | None, list[bytes]]:
        """Like `Channel.receive`, under the pair in use or a new one. Raises PeerError."""
        pair = self._pairs.get(sender)
        made = [] if pair is None else [made for made in (pair.current, pair.next) if made]
        error = PeerError(f"From {short_id(sender)}: an envelope came before a pairing.")
        for candidate in made:
            try:
                opened, replies = candidate[0].receive(raw[len(PAIR_ENVELOPE) :])
            except PeerError as refusal:
                error = refusal
                continue
            if pair is not None and candidate is pair.next:
                pair.current, pair.next = candidate, None
            return opened, [PAIR_ENVELOPE + envelope for envelope in replies]
        raise error

    def forget(self, peer: PeerId) -> None:
        """The peer has spoken under the room's secret: it needs no pair any more."""
        self._pairs.pop(peer, None)

    def _on_host(self, sender: PeerId, message: PairingMessage) -> Answer | None:
        pair = self._pair(sender)
        me = self._identity.peer_id
        if isinstance(message, Commit):
            if pair.host is None or pair.host.answer.commitment != message.commitment:
                pair.host = Host(self._room, sender, me, message, self._random)
            return pair.host.answer
        if isinstance(message, Reveal) and pair.host is not None:
            self._made(sender, pair, pair.host.on_reveal(message))
        return None

    def _on_newcomer(self, sender: PeerId, message: PairingMessage) -> Reveal | None:
        pair = self._pairs.get(sender)
        if pair is None or pair.newcomer is None or not isinstance(message, Answer):
            return None
        done = pair.newcomer.on_answer(message)
        if done is None:
            return None
        reveal, paired = done
        if self._made(sender, pair, paired):
            pair.current, pair.next = pair.next, None  # our own attempt: the older one is over
        return reveal

    def _made(self, peer: PeerId, pair: _Pair, paired: Paired) -> bool:
        """Open a channel under a new secret; whether it is new (messages may come twice)."""
        if any(made is not None and made[1] == paired for made in (pair.current, pair.next)):
            return False
        channel = Channel(self._identity, self._room, paired.secret, peer, self._random)
        pair.next = (channel, paired)
        return True

    def _pair(self, peer: PeerId) -> _Pair:
        pair = self._pairs.pop(peer, None) or _Pair()
        if len(self._pairs) >= MAX_PAIRS:
            del self._pairs[next(iter(self._pairs))]
        self._pairs[peer] = pair
        return pair
