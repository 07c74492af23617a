"""aiortc's SCTP transport with DATA and SACK handled by our association, in batches.

Set-up, reset of streams, heartbeats and the end stay the base's. Its state that both need (next
TSN, cumulative TSN, sequence numbers) is shared or copied where the base reads it. Partial
reliability (RFC 3758) is not announced; channels that ask for it are served reliably.
May import: of net.fast: association, dtls, packets, probing, receiving.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from aiortc import rtcsctptransport
from aiortc.rtcdatachannel import RTCDataChannel
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcsctptransport import RTCSctpTransport

from p2pnode.net.fast.association import (
    PACKET_BYTES,
    WINDOW_BYTES,
    Association,
    payload_of,
)
from p2pnode.net.fast.dtls import FastDtlsTransport
from p2pnode.net.fast.packets import Address, DataChunk, ProtocolViolation, SackChunk
from p2pnode.net.fast.probing import PARAMETER, Probing
from p2pnode.net.fast.receiving import Message

log = logging.getLogger(__name__)

SETUP_SECONDS = 1.0
"""INIT and COOKIE ECHO are sent again after so long (RFC 9260, section 16); aiortc waits 3 s."""

SACK_PACKETS = 64
"""Packets after which a SACK is sent though the batch goes on."""


class FastSctpTransport(RTCSctpTransport):
    """Behaves as its base on the wire."""

    largest_packet: int | None = None
    """Probe for packets up to this length; None: as long as may be."""

    def __init__(self, transport: RTCDtlsTransport, port: int = 5000) -> None:
        super().__init__(transport, port)
        self._event_loop = asyncio.get_running_loop()
        self._local_partial_reliability = False
        self._advertised_rwnd = WINDOW_BYTES
        self._rto = SETUP_SECONDS
        self._probing = Probing(self.largest_packet)
        local = Address(port, port, self._local_verification_tag)
        self._association = Association(
            local, self._local_tsn, rtcsctptransport.LOCAL_MAX_MESSAGE_SIZE
        )
        self._outbound_stream_seq = self._association.sender.sequences
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Handle | None = None
        self._receiving = False
        self._shortened = False  # packets are short because long ones met with silence

    @property
    def association(self) -> Association:
        return self._association

    @property
    def urgent(self) -> bool:
        """The peer asked for a SACK at once, or SACKs came and let us send more."""
        return self._association.asked or not self._association.unacknowledged

    def prefer(self, stream: int) -> None:
        """Messages of this stream go before those of others."""
        self._association.sender.urgent.add(stream)

    # Packets in

    def take_packets(self, packets: Sequence[bytes]) -> None:
        """Packets came; `flush` ends the batch."""
        association = self._association
        now = self._event_loop.time()
        self._receiving = True
        try:
            for packet in packets:
                if not association.receive(packet, now):
                    _run(super()._handle_data(packet))
                if association.messages:
                    self._deliver()
                if association.unacknowledged >= SACK_PACKETS:
                    self._transmit_now()
        except Exception as error:
            self._broken(error)
        finally:
            self._receiving = False

    def flush(self) -> None:
        """Answer what came and send what may be sent."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        self._transmit_now()

    async def _handle_data(self, data: bytes) -> None:
        self.take_packets([data])
        self.flush()

    async def _receive_chunk(self, chunk: rtcsctptransport.Chunk) -> None:
        now = self._event_loop.time()
        match chunk:
            case rtcsctptransport.DataChunk():
                self._association.take(
                    DataChunk(
                        *(chunk.flags, chunk.tsn, chunk.stream_id, chunk.stream_seq),
                        *(chunk.protocol, chunk.user_data),
                    ),
                    now,
                )
            case rtcsctptransport.SackChunk():
                self._association.take(
                    SackChunk(chunk.cumulative_tsn, chunk.advertised_rwnd, chunk.gaps), now
                )
            case rtcsctptransport.ForwardTsnChunk():
                pass  # not announced
            case rtcsctptransport.HeartbeatAckChunk():
                if packet_bytes := self._probing.answered(chunk.params):
                    self._association.sender.set_payload(payload_of(packet_bytes))
            case _:
                self._show_base()
                await super()._receive_chunk(chunk)
                if isinstance(chunk, rtcsctptransport.InitChunk | rtcsctptransport.InitAckChunk):
                    self._association.peer_starts(
                        chunk.initiate_tag, chunk.initial_tsn, chunk.advertised_rwnd
                    )
                    inbound: Any = self._association.receiver.expected
                    self._inbound_streams = inbound  # the base resets streams there

    def _deliver(self) -> None:
        messages, self._association.messages = self._association.messages, []
        for message in messages:
            channel = self._data_channels.get(message.stream)
            if message.protocol == rtcsctptransport.WEBRTC_BINARY and channel is not None:
                channel.emit("message", message.data)
            else:
                self._deliver_other(message)

    def _deliver_other(self, message: Message) -> None:
        _run(self._data_channel_receive(message.stream, message.protocol, message.data))

    def _broken(self, error: Exception) -> None:
        if isinstance(error, ProtocolViolation):
            log.debug("the association ends: %s", error)
        else:  # a handler of messages, or a chunk that the base cannot read
            log.warning("the association ends", exc_info=error)
        if self._association_state is not self.State.CLOSED:
            _run(self._abort())
            self._set_state(self.State.CLOSED)

    # Messages out

    def _data_channel_send(self, channel: RTCDataChannel, data: bytes | str) -> None:
        limit = self._remote_max_message_size
        if (
            isinstance(data, bytes)
            and data
            and channel.id is not None
            and self._association_state is self.State.ESTABLISHED
            and not self._data_channel_queue
            and (not limit or len(data) <= limit)
        ):
            channel._addBufferedAmount(len(data))
            binary = rtcsctptransport.WEBRTC_BINARY
            self._queue(channel.id, binary, data, ordered=channel.ordered)
        else:
            super()._data_channel_send(channel, data)

    async def _send(
        self,
        stream_id: int,
        pp_id: int,
        user_data: bytes,
        expiry: float | None = None,
        max_retransmits: int | None = None,
        ordered: bool = True,
    ) -> None:
        if pp_id != rtcsctptransport.WEBRTC_DCEP:
            # The base takes it for gone when we return; it is buffered until it has left.
            self._data_channels[stream_id]._addBufferedAmount(len(user_data))
        self._queue(stream_id, pp_id, user_data, ordered=ordered)

    def _queue(self, stream: int, protocol: int, data: bytes, *, ordered: bool) -> None:
        self._association.sender.send(stream, protocol, data, unordered=not ordered)
        if not self._receiving and self._flushing is None:
            self._flushing = self._event_loop.call_soon(self.flush)

    def _transmit_now(self) -> None:
        if self._association_state is self.State.CLOSED:
            return
        self._leave(self._association.packets(self._event_loop.time()))
        self._count_left()
        if self._shortened and not self._association.sender.silent:
            self._shortened = False
            self._probe()
        if self._reconfig_deferred is not None:
            self._show_base()
            _run(self._reset_deferred_streams())
        if self._reconfig_queue:
            _run(self._transmit_reconfig())
        self._arm()

    def _count_left(self) -> None:
        sender = self._association.sender
        left, sender.left = sender.left, []
        for stream, protocol, nbytes in left:
            channel = self._data_channels.get(stream)
            if channel is not None and protocol != rtcsctptransport.WEBRTC_DCEP:
                channel._addBufferedAmount(-nbytes)

    def _leave(self, packets: Sequence[bytes]) -> None:
        transport: Any = self.transport
        if packets:
            transport.send_packets(packets)

    async def _transmit_reconfig(self) -> None:
        if not any(self._association.sender.waits(stream) for stream in self._reconfig_queue):
            self._show_base()
            await super()._transmit_reconfig()

    def _show_base(self) -> None:
        """The base resets streams by these."""
        self._local_tsn = self._association.sender.next_tsn % rtcsctptransport.SCTP_TSN_MODULO
        if self._last_received_tsn is not None:
            self._last_received_tsn = (
                self._association.receiver.cumulative % rtcsctptransport.SCTP_TSN_MODULO
            )

    # Set-up, time, end

    def _set_extensions(self, params: list[tuple[int, bytes]]) -> None:
        super()._set_extensions(params)
        if offer := self._probing.offer():
            params.append(offer)

    def _get_extensions(self, params: list[tuple[int, bytes]]) -> None:
        super()._get_extensions(params)
        for kind, value in params:
            if kind == PARAMETER:
                self._probing.offered(value)

    def _set_state(self, state: RTCSctpTransport.State) -> None:
        begins = state is self.State.ESTABLISHED is not self._association_state
        super()._set_state(state)
        if begins:
            self._probe()
        elif state is self.State.CLOSED:
            for handle in (self._timer, self._flushing):
                if handle is not None:
                    handle.cancel()
            self._timer = self._flushing = None

    def _probe(self) -> None:
        transport = self.transport
        if isinstance(transport, FastDtlsTransport):
            transport.send_whole(self._probing.probes(self._association.address))

    def _arm(self) -> None:
        """One timer. It stays where it is while the deadline moves away, as most do before they
        come, so that it is not set anew for each packet."""
        deadline = self._association.deadline
        if deadline is None:
            return
        if self._timer is not None and deadline < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._event_loop.call_at(deadline, self._expired)

    def _expired(self) -> None:
        self._timer = None
        if self._association_state is self.State.CLOSED:
            return
        self._leave(self._association.expire(self._event_loop.time()))
        if self._association.sender.shorten(payload_of(PACKET_BYTES)):
            self._shortened = True
        self._transmit_now()

    async def _send_chunk(self, chunk: rtcsctptransport.Chunk) -> None:
        """An INIT has tag 0 (RFC 9260, section 8.5.1). The base gives one that it sends again the
        peer's tag, if it has that by then, and the peer takes it for another's."""
        if not isinstance(chunk, rtcsctptransport.InitChunk):
            await super()._send_chunk(chunk)
            return
        assert self._remote_port is not None, "start has set it"
        packet = rtcsctptransport.serialize_packet(self._local_port, self._remote_port, 0, chunk)
        await self.transport._send_data(packet)

    async def start(
        self, remoteCaps: rtcsctptransport.RTCSctpCapabilities | None, remotePort: int
    ) -> None:
        if isinstance(self.transport, FastDtlsTransport):
            self.transport.batch_receiver = self
        self._association.set_remote_port(remotePort)
        await super().start(remoteCaps, remotePort)


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine of the base that never waits: its sends end in ours."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    except ConnectionError:
        return
    coroutine.close()
    raise RuntimeError("a handler of the base waited")
