"""Relayed links: a pair without a direct connection talks through one common neighbour.

A relayed link is an ordinary `Link` over a `Transport` whose frames are sealed for the other end
and handed to the neighbour. The neighbour sees who talks to whom and how much, nothing else; it
keeps a bounded queue and may lose frames, which ends the session and begins a new one.
No tasks, no timers. May import: errors, limits, protocol.frames, protocol.identity; of net: events,
link, seal.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from p2pnode.errors import PeerError
from p2pnode.limits import LIMITS, Limits
from p2pnode.net.events import Heard, LinkStats, MeshEvent, PeerId, Priority, Received
from p2pnode.net.link import Link, LinkCallbacks
from p2pnode.net.seal import RANDOM_BYTES, FramesLostError, SealedSession
from p2pnode.protocol.frames import (
    BufferLike,
    Channel,
    Kind,
    pack_relay,
)
from p2pnode.protocol.identity import short_id

log = logging.getLogger(__name__)

OPEN, ACCEPT, SEALED = b"\x01", b"\x02", b"\x03"
"""First byte inside a relay frame: OPEN + random; ACCEPT + both randoms; SEALED + sealed frame."""

FRAME_BYTES = 15 * 1024
"""Longest frame inside a relayed one: fits two hops that take as little as 16 KiB."""

WAITING_MESSAGES = 64
"""Messages that wait for a session to be agreed."""

OPEN_INTERVAL = 1.0
"""Seconds between attempts to open, and between those of a peer that we answer."""

_Forward = Callable[[PeerId, Channel, bytes], bool]


@dataclasses.dataclass
class _Waiting:
    buffers: Sequence[BufferLike]
    priority: Priority
    run: bytes
    key: object | None


class _RelayTransport:
    """The `Transport` of a relayed link."""

    max_message = FRAME_BYTES

    def __init__(self, peer: PeerId, session: SealedSession, path: _Path, forward: _Forward):
        self._peer = peer
        self._session = session
        self._path = path
        self._forward = forward

    def send(self, channel: Channel, frame: bytes) -> None:
        sealed = SEALED + self._session.seal(channel, frame)
        if not self._forward(
            self._path.via, channel, pack_relay(Kind.RELAY, channel, self._peer, sealed)
        ):
            raise ConnectionError("the relaying neighbour takes no more")

    def buffered(self, channel: Channel) -> int:
        return 0  # the neighbour's queue is bounded and refuses instead

    def check(self) -> None:
        pass


@dataclasses.dataclass
class _Path:
    """Our end of the way to one peer."""

    via: PeerId
    random: bytes
    began: float
    opened_here: bool = True
    their_random: bytes = b""
    asked_at: float = 0.0
    session: SealedSession | None = None
    link: Link | None = None
    """Set when both ends are known to have the session's keys."""
    waiting: list[_Waiting] = dataclasses.field(default_factory=list)


class Relays:
    """All relayed links of this node."""

    def __init__(
        self,
        me: PeerId,
        key: X25519PrivateKey,
        *,
        forward: _Forward,
        emit: Callable[[MeshEvent], None],
        clock: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
        random: Callable[[int], bytes],
        limits: Limits = LIMITS,
    ) -> None:
        """forward: hand a frame to a neighbour; False if there is no link or its queue is full.
        random: so many unpredictable bytes."""
        self._me = me
        self._key = key
        self._forward = forward
        self._emit = emit
        self._clock = clock
        self._soon = soon
        self._random = random
        self._limits = dataclasses.replace(
            limits, in_flight_bytes=limits.relay_in_flight_bytes, fragment_bytes=FRAME_BYTES
        )
        self._members: Mapping[PeerId, bytes] = {}
        self._paths: dict[PeerId, _Path] = {}
        self._refused_until: dict[PeerId, float] = {}
        self._answered_at: dict[PeerId, float] = {}
        self._run: tuple[bytes, int] | None = None

    def set_members(self, members: Mapping[PeerId, bytes]) -> None:
        """Members by id, with their relay keys (X25519, 32 bytes); ways to others are forgotten."""
        self._members = members
        for peer in [p for p in self._paths if p not in members]:
            self.drop(peer)
        for table in (self._refused_until, self._answered_at):
            for peer in [p for p in table if p not in members]:
                del table[peer]

    def set_run(self, run: bytes, max_bulk: int) -> None:
        """As `Mesh.set_run`, for every link that goes through a neighbour."""
        self._run = (run, max_bulk)
        for path in self._paths.values():
            if path.link:
                path.link.set_run(run, max_bulk)

    def send(
        self,
        peer: PeerId,
        via: PeerId,
        buffers: Sequence[BufferLike],
        priority: Priority,
        *,
        run: bytes,
        key: object | None,
    ) -> bool:
        """Queue a message to `peer` through `via`; False if it was not taken."""
        if self._clock() < self._refused_until.get(peer, 0.0):
            return False
        path = self._paths.get(peer) or self._open(peer, via)
        path.via = via
        if path.link is not None:
            return path.link.send(buffers, priority, run, key)
        if len(path.waiting) >= WAITING_MESSAGES:
            return False
        path.waiting.append(_Waiting(buffers, priority, run, key))
        return True

    def received(self, via: PeerId, channel: Channel, peer: PeerId, body: bytes) -> None:
        """A RELAYED frame of `peer` came through the neighbour `via`."""
        if peer not in self._members or self._clock() < self._refused_until.get(peer, 0.0):
            return  # rosters may differ for a moment
        kind, rest = body[:1], body[1:]
        try:
            if kind == OPEN and len(rest) == RANDOM_BYTES:
                self._opened_by(peer, via, rest)
            elif kind == ACCEPT and len(rest) == 2 * RANDOM_BYTES:
                self._accepted_by(peer, via, rest[:RANDOM_BYTES], rest[RANDOM_BYTES:])
            elif kind == SEALED:
                self._sealed_from(peer, via, channel, rest)
        except PeerError as error:  # the far end's fault, not that of the neighbour in between
            self._refuse(peer, error)

    def tick(self, excuse: float) -> None:
        """Time has passed; `excuse` as in `Link.tick`."""
        now = self._clock()
        for peer, path in list(self._paths.items()):
            if path.link is not None:
                path.link.tick(excuse)
            elif now - path.began > self._limits.silence:
                self.drop(peer)
            elif path.session is None and now - path.asked_at >= OPEN_INTERVAL:
                self._ask(peer, path)

    def drop(self, peer: PeerId) -> None:
        """Forget the way to `peer` and what is queued on it."""
        path = self._paths.pop(peer, None)
        if path is not None and path.link is not None:
            path.link.close()

    def neighbour_lost(self, via: PeerId) -> None:
        """The link to a neighbour is gone, and with it the frames that were on their way."""
        for peer in [p for p, path in self._paths.items() if path.via == via]:
            self.drop(peer)

    def stats(self, peer: PeerId) -> LinkStats | None:
        """Of the link to `peer`; None if there is none."""
        path = self._paths.get(peer)
        return path.link.stats() if path and path.link else None

    @property
    def idle(self) -> bool:
        return all(not p.waiting and (p.link is None or p.link.idle) for p in self._paths.values())

    def _open(self, peer: PeerId, via: PeerId) -> _Path:
        path = _Path(via, self._random(RANDOM_BYTES), self._clock())
        self._paths[peer] = path
        self._ask(peer, path)
        return path

    def _ask(self, peer: PeerId, path: _Path) -> None:
        path.asked_at = self._clock()
        self._tell(peer, path, OPEN + path.random)

    def _tell(self, peer: PeerId, path: _Path, body: bytes) -> None:
        frame = pack_relay(Kind.RELAY, Channel.CONTROL, peer, body)
        self._forward(path.via, Channel.CONTROL, frame)

    def _opened_by(self, peer: PeerId, via: PeerId, random: bytes) -> None:
        old = self._paths.get(peer)
        if old and old.session is None and self._me < peer:
            return  # both opened at once: the smaller id's attempt stands
        repeated = old is not None and not old.opened_here and old.their_random == random
        now = self._clock()
        if not repeated:
            if now - self._answered_at.get(peer, -OPEN_INTERVAL) < OPEN_INTERVAL / 2:
                return
            self._answered_at[peer] = now
            path = _Path(via, self._random(RANDOM_BYTES), now, False, random)
            if old is not None:
                path.waiting = old.waiting
                self.drop(peer)
            self._paths[peer] = path
            self._agree(peer, path)
        path = self._paths[peer]
        path.via = via
        self._tell(peer, path, ACCEPT + random + path.random)

    def _accepted_by(self, peer: PeerId, via: PeerId, mine: bytes, theirs: bytes) -> None:
        path = self._paths.get(peer)
        if path is None or path.session or not path.opened_here or path.random != mine:
            return
        path.their_random = theirs
        path.via = via
        self._agree(peer, path)
        self._begin(peer, path)

    def _agree(self, peer: PeerId, path: _Path) -> None:
        ours, theirs = (self._me, path.random), (peer, path.their_random)
        opener, accepter = (ours, theirs) if path.opened_here else (theirs, ours)
        path.session = SealedSession(
            self._key, self._members[peer], opener, accepter, opened_here=path.opened_here
        )

    def _begin(self, peer: PeerId, path: _Path) -> None:
        """The other end has the keys, or will have them with the next frame from here."""
        assert path.session is not None
        link = Link(
            _RelayTransport(peer, path.session, path, self._forward),
            LinkCallbacks(
                on_message=lambda run, message: self._emit(Received(peer, run, message)),
                on_heard=lambda nbytes: self._emit(Heard(peer, nbytes)),
                on_relay=_refuse_nested,
                on_broken=lambda error: self._broken(peer, path, error),
            ),
            self._clock,
            self._soon,
            self._limits,
            relayed=True,
        )
        path.link = link
        if self._run is not None:
            link.set_run(*self._run)
        link.tick()
        waiting, path.waiting = path.waiting, []
        for message in waiting:
            link.send(message.buffers, message.priority, message.run, message.key)

    def _sealed_from(self, peer: PeerId, via: PeerId, channel: Channel, sealed: bytes) -> None:
        path = self._paths.get(peer)
        if path is None:
            self._open(peer, via)  # left over from a session that this end has lost
            return
        if path.session is None:
            return
        try:
            frame = path.session.unseal(channel, sealed)
        except FramesLostError as error:
            log.info("relayed link: %s", error)
            self.drop(peer)
            self._open(peer, via)
            return
        if frame is None:
            return
        if path.link is None:
            self._begin(peer, path)
        if path.link is not None:
            path.link.received(channel, frame)

    def _broken(self, peer: PeerId, path: _Path, error: Exception) -> None:
        log.info("relayed link ended: %s", error)
        if self._paths.get(peer) is path:
            self.drop(peer)
        if isinstance(error, PeerError):
            self._refuse(peer, error)

    def _refuse(self, peer: PeerId, error: PeerError) -> None:
        """Nothing more of this peer for a while."""
        log.info("peer %s %s", short_id(peer), error)
        self.drop(peer)
        self._refused_until[peer] = self._clock() + self._limits.reconnect


def _refuse_nested(kind: Kind, channel: Channel, peer: bytes, sealed: bytes) -> None:
    raise PeerError("sent a relay frame inside a relayed one; frames go over one hop")
