"""Link: what goes on over one open connection to one peer.

Cuts and joins messages, keeps the in-flight bound, acknowledges, pings, notices silence. No tasks
and no timers of its own: it is told when a frame came and when time has passed.
May import: errors, limits, protocol.frames; of net: events, outbox, transport.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from p2pnode.errors import PeerError, VersionMismatchError
from p2pnode.limits import LIMITS, Limits
from p2pnode.net.events import LinkStats, Priority
from p2pnode.net.outbox import Outbox
from p2pnode.net.transport import Transport
from p2pnode.protocol.frames import (
    DATA_HEADER_BYTES,
    BufferLike,
    Channel,
    Kind,
    Reassembler,
    frame_kind,
    pack_value,
    unpack_relay,
    unpack_value,
)

ANSWERS_BUFFERED = 64 * 1024
"""No PONG or ACK is added while so many bytes of the control channel wait in the connection: a
peer that asks without reading would fill our memory. Acknowledgements are cumulative, so leaving
some out harms nobody."""

PINGS_KEPT = 16
"""Pings whose answer is still expected."""


@dataclasses.dataclass(frozen=True)
class LinkCallbacks:
    """What a link reports. None of them is called after `on_broken` or `close`."""

    on_message: Callable[[bytes, bytearray], None]
    """(run tag, message)"""
    on_heard: Callable[[int], None]
    """A frame came: its length on the bulk channel, 0 on the control channel."""
    on_relay: Callable[[Kind, Channel, bytes, bytes], None]
    """(RELAY or RELAYED, channel, destination or source, sealed bytes). May raise PeerError."""
    on_broken: Callable[[Exception], None]
    """The link is of no more use: PeerError or VersionMismatchError if the peer broke a rule,
    ConnectionError otherwise."""


class Link:
    """One open link. Times are of the clock given."""

    def __init__(
        self,
        transport: Transport,
        callbacks: LinkCallbacks,
        clock: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
        limits: Limits = LIMITS,
        *,
        relayed: bool = False,
    ) -> None:
        """soon: runs its argument once the frames at hand are handled (loop.call_soon)."""
        self._transport = transport
        self._callbacks = callbacks
        self._clock = clock
        self._soon = soon
        self._limits = limits
        self._relayed = relayed
        fragment = min(limits.fragment_bytes, transport.max_message - DATA_HEADER_BYTES)
        self._outbox = Outbox(fragment, limits)
        self._reassemblers = {channel: Reassembler(channel, limits) for channel in Channel}
        self._closed = False
        now = clock()
        self._heard_at = now
        self._progress = (0, 0)
        self._moved_at = now
        self._counted_down = 0  # bytes that acknowledgements speak of
        self._ack_due = False
        self._bytes_up = 0
        self._bytes_down = 0
        self._pings: dict[int, None] = {}
        self._pinged_at = -limits.heartbeat
        self._ponged_at = -limits.heartbeat
        self._rtt: float | None = None
        self._shortest_rtt: float | None = None
        self._allowance = limits.message_burst
        self._allowed_at = now

    @property
    def idle(self) -> bool:
        """Everything sent was acknowledged and nothing waits."""
        return self._outbox.empty

    def set_run(self, run: bytes, max_bulk: int) -> None:
        """Take messages of this run, bulk ones of at most `max_bulk` bytes."""
        self._reassemblers[Channel.CONTROL].set_run(run, self._limits.control_bytes)
        self._reassemblers[Channel.BULK].set_run(run, max_bulk)

    def send(
        self, buffers: Sequence[BufferLike], priority: Priority, run: bytes, key: object | None
    ) -> bool:
        """Queue a message (see Mesh.send); False if the queue is full."""
        taken = self._outbox.put(buffers, priority, run, key)
        self._pump()
        return taken

    def send_frame(self, channel: Channel, frame: bytes) -> bool:
        """Queue a finished frame, one that is relayed; False if too many wait."""
        taken = self._outbox.put_frame(channel, frame)
        self._pump()
        return taken

    def stats(self) -> LinkStats:
        """What was measured so far."""
        return LinkStats(
            relayed=self._relayed,
            rtt=self._rtt,
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
            queued=self._outbox.queued,
            in_flight=self._outbox.window.in_flight,
        )

    def received(self, channel: Channel, frame: bytes) -> None:
        """A frame came."""
        if self._closed:
            return
        now = self._clock()
        self._heard_at = now
        self._bytes_down += len(frame)
        self._callbacks.on_heard(len(frame) if channel is Channel.BULK else 0)
        try:
            self._dispatch(channel, frame, now)
        except (PeerError, VersionMismatchError, ConnectionError) as error:
            self._break(error)

    def tick(self, excuse: float = 0.0) -> None:
        """Time passed; call a few times a second.

        excuse: seconds for which this process did not run, and so could not hear anybody.
        """
        if self._closed:
            return
        now = self._clock()
        self._heard_at = min(now, self._heard_at + excuse)
        try:
            self._transport.check()
            if now - self._heard_at > self._limits.silence:
                raise ConnectionError(f"nothing heard for {now - self._heard_at:.1f} s")
            self._look_for_progress(now, excuse)
            if now - self._pinged_at >= self._limits.heartbeat:
                self._ping(now)
            if self._ack_due:  # an acknowledgement that was held back
                self._acknowledge()
        except (PeerError, ConnectionError) as error:
            self._break(error)
            return
        self._pump()

    def close(self) -> None:
        """Drop everything; the transport is its owner's to close."""
        self._closed = True
        for reassembler in self._reassemblers.values():
            reassembler.clear()

    def _dispatch(self, channel: Channel, frame: bytes, now: float) -> None:
        kind = frame_kind(frame)
        match kind:
            case Kind.DATA:
                self._count(len(frame))
                whole = self._reassemblers[channel].receive(frame)
                if whole is not None:
                    self._spend_allowance(now)
                    self._callbacks.on_message(*whole)
            case Kind.RELAY | Kind.RELAYED:
                self._count(len(frame))
                self._callbacks.on_relay(kind, *unpack_relay(frame))
            case Kind.ACK:
                self._outbox.window.acknowledged(unpack_value(frame), now)
                self._pump()
            case Kind.PING:
                value = unpack_value(frame)
                if now - self._ponged_at >= self._limits.heartbeat / 4 and self._may_answer():
                    self._ponged_at = now
                    self._transmit(Channel.CONTROL, pack_value(Kind.PONG, value))
            case Kind.PONG:
                self._pong(unpack_value(frame), now)

    def _count(self, nbytes: int) -> None:
        self._counted_down += nbytes
        if not self._ack_due:
            self._ack_due = True
            self._soon(self._acknowledge)

    def _acknowledge(self) -> None:
        if self._closed or not self._ack_due or not self._may_answer():
            return
        self._ack_due = False
        try:
            self._transmit(Channel.CONTROL, pack_value(Kind.ACK, self._counted_down))
        except ConnectionError as error:
            self._break(error)

    def _may_answer(self) -> bool:
        return self._transport.buffered(Channel.CONTROL) <= ANSWERS_BUFFERED

    def _ping(self, now: float) -> None:
        if not self._may_answer():
            return
        value = int(now * 1e6)
        self._pinged_at = now
        self._pings[value] = None
        if len(self._pings) > PINGS_KEPT:
            del self._pings[next(iter(self._pings))]
        self._transmit(Channel.CONTROL, pack_value(Kind.PING, value))

    def _pong(self, value: int, now: float) -> None:
        if value not in self._pings:
            raise PeerError("answered a ping that was not sent")
        del self._pings[value]
        rtt = max(0.0, now - value / 1e6)
        self._rtt = rtt if self._rtt is None else self._rtt + (rtt - self._rtt) / 8
        self._shortest_rtt = min(self._shortest_rtt or rtt, rtt)

    def _spend_allowance(self, now: float) -> None:
        limits = self._limits
        gained = (now - self._allowed_at) * limits.message_rate
        self._allowance = min(limits.message_burst, self._allowance + gained) - 1
        self._allowed_at = now
        if self._allowance < 0:
            raise PeerError(f"sends more than {limits.message_rate:,.0f} messages a second")

    def _look_for_progress(self, now: float, excuse: float) -> None:
        """Raise ConnectionError if what was sent stands still although the peer lives: a frame was
        lost where none should be (at a relay), or the connection under us has seized up."""
        window = self._outbox.window
        progress = (window.acked, self._transport.buffered(Channel.BULK))
        if progress != self._progress or not window.in_flight:
            self._progress, self._moved_at = progress, now
        self._moved_at = min(now, self._moved_at + excuse)
        if now - self._moved_at > self._limits.stall:
            raise ConnectionError(
                f"of {window.in_flight:,} bytes sent nothing was acknowledged for "
                f"{now - self._moved_at:.1f} s"
            )

    def _pump(self) -> None:
        now = self._clock()
        rtt = self._limits.in_flight_seconds if self._shortest_rtt is None else self._shortest_rtt
        try:
            while not self._closed and (next_frame := self._outbox.take(now, rtt)):
                self._transmit(*next_frame)
        except ConnectionError as error:
            self._break(error)

    def _transmit(self, channel: Channel, frame: bytes) -> None:
        self._transport.send(channel, frame)
        self._bytes_up += len(frame)

    def _break(self, error: Exception) -> None:
        if not self._closed:
            self.close()
            self._callbacks.on_broken(error)
