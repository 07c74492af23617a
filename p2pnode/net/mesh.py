"""Mesh: one link to every member of the roster, made, kept up and used.

The peer with the smaller id offers, so a pair never makes two links; whatever ends a link, the
smaller id offers a new connection after a pause. May import: protocol, limits, errors, and all of
net but the signaling client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from p2pnode.errors import P2PNodeError, PeerError, VersionMismatchError
from p2pnode.limits import LIMITS, Limits
from p2pnode.net.attempt import Attempt
from p2pnode.net.events import (
    NO_RUN,
    Heard,
    LinkDown,
    LinkStats,
    LinkUp,
    MeshEvent,
    PeerId,
    Priority,
    Received,
    Unlinked,
)
from p2pnode.net.ice import IcePolicy, check_library
from p2pnode.net.link import Link, LinkCallbacks
from p2pnode.net.relay import Relays
from p2pnode.net.signals import Answer, Gone, Offer, Signal
from p2pnode.net.watchdog import boot_time
from p2pnode.protocol.frames import RUN_TAG_BYTES, BufferLike, Channel, Kind, pack_relay
from p2pnode.protocol.identity import short_id
from p2pnode.protocol.text import visible

log = logging.getLogger(__name__)

TICK = 0.25
"""Seconds between looks at silence, heartbeats and retries."""

UNLINKED_FAILURES = 2
"""So many attempts that failed, not for want of an answer, are told to the owner."""

EXCUSED = 1.0
"""A tick that is late by more than this many seconds is not held against the peers."""

FIRST_RETRY = 0.5
"""Pause before the second attempt; it doubles up to Limits.reconnect."""


@dataclasses.dataclass
class _Peer:
    """What the mesh knows about one member."""

    attempt: Attempt | None = None
    task: asyncio.Task[None] | None = None
    link: Link | None = None
    failures: int = 0
    pathless: int = 0
    """Failed attempts since the last link, but those that the peer did not answer."""
    retry_at: float = 0.0
    refused_until: float = 0.0
    """After a broken rule: offers are ignored until then."""


class Mesh:
    """Links to the members of a roster. All methods are called on the loop it was started on."""

    def __init__(
        self,
        me: PeerId,
        *,
        on_event: Callable[[MeshEvent], None],
        send_signal: Callable[[PeerId, Signal], None],
        ice: IcePolicy,
        relay_key: X25519PrivateKey,
        limits: Limits = LIMITS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Callbacks are called on the loop, after start(), and must not block. `on_event` may call
        any method of the mesh, such as set_run from within Received.

        relay_key: its public part is this node's in the roster. jitter: values in [0, 1) that keep
        reconnecting peers from moving in step.
        """
        self._me = me
        self._on_event = on_event
        self._send_signal = send_signal
        self._ice = ice
        self._limits = limits
        self._jitter = jitter
        self._relay_key = relay_key
        self._peers: dict[PeerId, _Peer] = {}
        self._early: dict[PeerId, tuple[float, Offer]] = {}
        self._run: tuple[bytes, int] | None = None
        self._past_traffic = (0, 0)
        """Bytes sent and received over links that are closed."""
        self._closing: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. Raises P2PNodeError if the installed aiortc is not one that we can use."""
        check_library()
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._slots = asyncio.Semaphore(self._limits.handshakes)
        self._relays = Relays(
            self._me,
            self._relay_key,
            forward=self._forward,
            emit=self._emit,
            clock=loop.time,
            soon=loop.call_soon,
            random=os.urandom,
            limits=self._limits,
        )
        self._ticker = loop.create_task(self._tick_for_ever(), name="mesh")

    def set_ice(self, ice: IcePolicy) -> None:
        """Use this policy for connections made from now on."""
        self._ice = ice

    def set_members(self, members: Mapping[PeerId, bytes]) -> None:
        """The roster: peer id -> X25519 relay public key (32 bytes). The own id is ignored.

        Links to new members are made and kept up; links to others are closed.
        """
        others = {peer: key for peer, key in members.items() if peer != self._me}
        for peer in [p for p in self._peers if p not in others]:
            self._end(peer, "no longer a member")
            del self._peers[peer]
        self._relays.set_members(others)
        for peer in others:
            if peer not in self._peers:
                self._peers[peer] = _Peer()
                came_at, offer = self._early.pop(peer, (0.0, None))
                if offer and self._loop.time() - came_at < self._limits.handshake:
                    self.signal(peer, offer)
        self._connect_due()

    def set_run(self, tag: bytes, max_bulk: int) -> None:
        """From now on take messages of this run too; `tag` is the first 8 bytes of the run id.

        max_bulk: longest bulk message of the run, bytes. Messages of other runs are discarded
        whole, NO_RUN messages are always taken.
        """
        if len(tag) != RUN_TAG_BYTES:
            raise ValueError(f"a run tag has {RUN_TAG_BYTES} bytes, not {len(tag)}")
        self._run = (tag, max_bulk)
        for state in self._peers.values():
            if state.link:
                state.link.set_run(tag, max_bulk)
        self._relays.set_run(tag, max_bulk)

    def signal(self, peer: PeerId, signal: Signal) -> None:
        """An Offer or Answer came; the caller has checked that `peer` signed it."""
        state = self._peers.get(peer)
        if state is None:
            # The roster may be on its way: keep the newest offer of a few.
            if isinstance(signal, Offer) and peer != self._me:
                self._early.pop(peer, None)
                while len(self._early) >= self._limits.peers:
                    del self._early[next(iter(self._early))]
                self._early[peer] = (self._loop.time(), signal)
            return
        attempt = state.attempt
        if isinstance(signal, Gone):
            if attempt and attempt.link == signal.link and state.link is not None:
                self._ended(peer, attempt, ConnectionError("it has lost the connection"))
            return
        if isinstance(signal, Answer):
            if attempt and attempt.link == signal.link and not attempt.answered.done():
                attempt.answered.set_result(signal)
            return
        if peer > self._me:
            log.info("ignored an offer of %s: it is ours to offer", short_id(peer))
            return
        if self._loop.time() < state.refused_until:
            return
        if attempt and attempt.link == signal.link:
            return  # the same offer again
        self._end(peer, "the peer began a new connection")
        self._begin(peer, state, signal.link, signal)

    def reachable(self, peer: PeerId) -> None:
        """The peer can get signals from now on: what was offered to it before, it did not get."""
        state = self._peers.get(peer)
        if state is None or state.link is not None:
            return
        attempt, now = state.attempt, self._loop.time()
        if attempt is not None:
            offered = attempt.offered_at
            # A server that has its peers come and go all the time gets no more of us than this.
            if offered is None or attempt.answered.done() or now - offered < FIRST_RETRY:
                return
            self._end(peer, "it was not there to answer")
        if now >= state.refused_until:
            state.failures, state.retry_at = 0, now
        self._connect_due()

    def send(
        self,
        peer: PeerId,
        buffers: Sequence[BufferLike],
        priority: Priority,
        *,
        key: object | None = None,
        run: bytes | None = None,
        via: PeerId | None = None,
    ) -> bool:
        """Queue one message, the concatenation of `buffers`, which must not change until sent.

        key: a message with the same key that still waits is replaced in place; one that is partly
        sent stands, and the new one is dropped. run: its tag; the current run's if None. via: the
        neighbour to relay through when there is no direct link to `peer`.
        False: not queued (no link, or a full queue): ask again later. ValueError: too long.
        """
        tag = run if run is not None else self._run[0] if self._run else NO_RUN
        nbytes = sum(memoryview(b).nbytes for b in buffers)
        limits = self._limits
        most = limits.control_bytes if priority is Priority.CONTROL else limits.bulk_bytes
        if nbytes > most:
            raise ValueError(f"a {priority.name} message of {nbytes:,} bytes; at most {most:,}")
        state = self._peers.get(peer)
        if state is None:
            return False
        if state.link is not None:
            return state.link.send(buffers, priority, tag, key)
        if via is not None and via in self.links():
            return self._relays.send(peer, via, buffers, priority, run=tag, key=key)
        return False

    def drop(self, peer: PeerId, reason: str) -> None:
        """Close the link to a peer that misbehaved above the wire; it may come back later."""
        if peer in self._peers:
            self._fault(peer, PeerError(reason))

    def links(self) -> frozenset[PeerId]:
        """Peers with an open direct link."""
        return frozenset(p for p, state in self._peers.items() if state.link is not None)

    def via_turn(self, peer: PeerId) -> bool:
        """Whether there is a direct link to `peer` and a TURN server carries it."""
        state = self._peers.get(peer)
        return (
            state is not None
            and state.link is not None
            and state.attempt is not None
            and state.attempt.transport.via_turn
        )

    def stats(self, peer: PeerId) -> LinkStats | None:
        """Figures of the link to `peer`, direct or else relayed; None if there is none."""
        state = self._peers.get(peer)
        if state is not None and state.link is not None:
            return state.link.stats()
        return self._relays.stats(peer)

    def traffic(self) -> tuple[int, int]:
        """Bytes of frames sent and received so far over all links, what is relayed included."""
        sent, received = self._past_traffic
        for state in self._peers.values():
            if state.link is not None:
                stats = state.link.stats()
                sent, received = sent + stats.bytes_up, received + stats.bytes_down
        return sent, received

    async def drain(self, seconds: float) -> bool:
        """Wait until everything queued was acknowledged, at most so many `seconds`; True if so."""
        deadline = self._loop.time() + seconds
        while not self._idle():
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def close(self) -> None:
        """Close all links; returns within a few seconds whatever the peers do."""
        if self._ticker is None:
            return
        self._ticker.cancel()
        for peer in self._peers:
            self._end(peer, "this node leaves")
        self._peers.clear()
        self._relays.set_members({})
        await asyncio.gather(self._ticker, *self._closing, return_exceptions=True)
        self._ticker = None

    def _idle(self) -> bool:
        direct = all(s.link is None or s.link.idle for s in self._peers.values())
        return direct and self._relays.idle

    # Connecting.

    def _connect_due(self) -> None:
        now = self._loop.time()
        for peer, state in self._peers.items():
            if self._me < peer and state.attempt is None and now >= state.retry_at:
                self._begin(peer, state, os.urandom(16), None)

    def _begin(self, peer: PeerId, state: _Peer, link: bytes, offer: Offer | None) -> None:
        attempt = Attempt(
            link, self._ice, self._slots, lambda s: self._send_signal(peer, s), self._limits
        )
        state.attempt = attempt
        state.task = self._loop.create_task(
            self._connect(peer, state, attempt, offer), name=f"link {short_id(peer)}"
        )

    async def _connect(
        self, peer: PeerId, state: _Peer, attempt: Attempt, offer: Offer | None
    ) -> None:
        try:
            await (attempt.offer() if offer is None else attempt.answer(offer))
        except P2PNodeError as error:
            self._ended(peer, attempt, error)
        except Exception as error:  # aiortc's state machines raise many types
            self._ended(peer, attempt, ConnectionError(str(error) or repr(error)))
        else:
            self._up(peer, state, attempt)

    def _up(self, peer: PeerId, state: _Peer, attempt: Attempt) -> None:
        link = Link(
            attempt.transport,
            LinkCallbacks(
                on_message=lambda run, message: self._emit(Received(peer, run, message)),
                on_heard=lambda nbytes: self._emit(Heard(peer, nbytes)),
                on_relay=lambda *frame: self._relay(peer, *frame),
                on_broken=lambda error: self._ended(peer, attempt, error),
            ),
            self._loop.time,
            self._loop.call_soon,
            self._limits,
        )
        if self._run is not None:
            link.set_run(*self._run)
        state.link = link
        state.task = None
        state.failures = state.pathless = 0
        self._relays.drop(peer)
        self._emit(LinkUp(peer))
        link.tick()
        attempt.take_over(link.received, lambda error: self._ended(peer, attempt, error))

    def _fault(self, peer: PeerId, error: Exception) -> None:
        state = self._peers[peer]
        if state.attempt is not None:
            self._ended(peer, state.attempt, error)

    def _ended(self, peer: PeerId, attempt: Attempt, error: Exception) -> None:
        """A connection or an attempt at one is over, by itself or by a fault of the peer."""
        state = self._peers.get(peer)
        if state is None or state.attempt is not attempt:
            return  # an older one
        fault = isinstance(error, PeerError | VersionMismatchError)
        unanswered = attempt.unanswered  # then it may be switched off
        if state.link is not None and not fault and peer < self._me:
            self._send_signal(peer, Gone(attempt.link))
        if state.link is None and not unanswered:
            state.pathless += 1
            if state.pathless == UNLINKED_FAILURES:
                self._emit(Unlinked(peer, str(error)))
        pause = min(self._limits.reconnect, FIRST_RETRY * 2.0**state.failures)
        state.failures = min(state.failures + 1, 16)
        if fault:
            pause = self._limits.reconnect
            state.refused_until = self._loop.time() + pause / 2
            log.warning("peer %s %s", short_id(peer), visible(str(error)))
        state.retry_at = self._loop.time() + pause * (0.5 + self._jitter() / 2)
        self._end(peer, str(error), fault=fault)

    def _end(self, peer: PeerId, reason: str, *, fault: bool = False) -> None:
        """Close what there is between us and `peer`."""
        state = self._peers[peer]
        attempt, task, link = state.attempt, state.task, state.link
        state.attempt = state.task = state.link = None
        if task is not None and task is not asyncio.current_task(self._loop):
            task.cancel()
        if attempt is not None:
            closing = self._loop.create_task(attempt.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        if link is not None:
            stats, (sent, received) = link.stats(), self._past_traffic
            self._past_traffic = sent + stats.bytes_up, received + stats.bytes_down
            link.close()
            self._relays.neighbour_lost(peer)
            self._emit(LinkDown(peer, reason, fault))
        elif attempt is not None:
            log.debug("no connection to %s: %s", short_id(peer), reason)

    # Relaying.

    def _relay(
        self, neighbour: PeerId, kind: Kind, channel: Channel, peer: PeerId, body: bytes
    ) -> None:
        """A relay frame of a neighbour: for us, or to be passed on to another neighbour."""
        if kind is Kind.RELAYED:
            self._relays.received(neighbour, channel, peer, body)
            return
        if peer in (self._me, neighbour):
            raise PeerError("asked this node to relay to itself")
        state = self._peers.get(peer)
        if state is not None and state.link is not None:
            frame = pack_relay(Kind.RELAYED, channel, neighbour, body)
            state.link.send_frame(channel, frame)  # a full queue loses it: the ends notice

    def _forward(self, via: PeerId, channel: Channel, frame: bytes) -> bool:
        state = self._peers.get(via)
        return (
            state is not None and state.link is not None and state.link.send_frame(channel, frame)
        )

    # Time.

    async def _tick_for_ever(self) -> None:
        due = self._loop.time() + TICK
        asleep = boot_time() - self._loop.time()
        while True:
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            # A loop that was held, or a process that was stopped, could not hear anybody.
            late = self._loop.time() - due
            excuse = late if late > EXCUSED else 0.0
            due = self._loop.time() + TICK
            asleep, before = boot_time() - self._loop.time(), asleep
            if asleep - before > self._limits.silence:
                self._woken(asleep - before)
            for state in list(self._peers.values()):
                if state.link is not None:
                    state.link.tick(excuse)
            self._relays.tick(excuse)
            self._connect_due()

    def _woken(self, seconds: float) -> None:
        """This machine slept, by the clock that runs meanwhile: the peers have given it up, and
        waiting for answers over the old links would only cost more time."""
        for peer, state in list(self._peers.items()):
            if state.link is not None and state.attempt is not None:
                error = ConnectionError(f"this machine slept for {seconds:.0f} s")
                self._ended(peer, state.attempt, error)

    def _emit(self, event: MeshEvent) -> None:
        try:
            self._on_event(event)
        except Exception as error:  # a fault of ours must not look like one of the peer's
            self._loop.call_exception_handler(
                {"message": f"handling {type(event).__name__} failed", "exception": error}
            )
