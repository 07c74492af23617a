"""aiortc's DTLS transport, with datagrams read and written in batches once it is connected.

Where the event loop lets us read its sockets, everything that waits in one is taken at once; on
other loops, and through a TURN server, datagrams come one by one and only their handling is shared.
May import: of net.fast: datagrams, records.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aiortc import rtcdtlstransport
from aiortc.rtcdtlstransport import RTCDtlsParameters, RTCDtlsTransport

from p2pnode.net.fast.datagrams import MAX_BYTES, MAX_SEGMENTS, Address, DatagramSocket
from p2pnode.net.fast.records import Closed, Records

CALL_PACKETS = 256
CALL_BYTES = 512 * 1024
"""Packets and bytes handled before the event loop has its turn: a few milliseconds."""

BATCH_PACKETS = 16
BATCH_SECONDS = 0.001
"""Where datagrams come one by one, so many are answered together, or those of so long."""

RECORD_OVERHEAD = 64
"""Bytes that a record may be longer than its packet."""


class BatchReceiver(Protocol):
    """What takes packets in batches (sctp)."""

    @property
    def urgent(self) -> bool:
        """What came is to be answered at once."""

    def take_packets(self, packets: Sequence[bytes]) -> None:
        """Packets came."""

    def flush(self) -> None:
        """The batch is over: answer it and send what may be sent."""


class FastDtlsTransport(RTCDtlsTransport):
    """Behaves as its base until connected."""

    offload = True
    """Let the kernel cut and join datagrams, if it can."""
    portable = False
    """Never read sockets ourselves, as on loops that cannot."""

    _records: Records | None = None
    batch_receiver: BatchReceiver | None = None

    async def start(self, remoteParameters: RTCDtlsParameters) -> None:
        await super().start(remoteParameters)
        if self._state is not rtcdtlstransport.State.CONNECTED:
            return
        assert self._ssl is not None, "connected"
        self._records = Records(self._ssl)
        self._sockets: dict[Any, DatagramSocket] = {}
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ice: Any = self.transport._connection
        self._event_loop = asyncio.get_running_loop()
        protocol: Any
        for protocol in self._ice._protocols:
            sock = None if self.portable else _readable_socket(self._event_loop, protocol)
            if sock is None:
                protocol.datagram_received = self._one_by_one(protocol, protocol.datagram_received)
            else:
                self._read_in_batches(protocol, sock)

    async def stop(self) -> None:
        self.batch_receiver = None
        await super().stop()
        self._records = None

    async def _send_data(self, data: bytes) -> None:
        if self._records is None:
            await super()._send_data(data)
        else:
            self.send_packets([data])

    def send_whole(self, packets: Sequence[bytes]) -> None:
        """Send SCTP packets that IP must not cut into fragments: those that are too long for the
        path do not arrive. Where that cannot be had, none is sent."""
        pair = self._ice._nominated.get(1) if self._records is not None else None
        sock = self._sockets.get(pair.protocol) if pair is not None else None
        if self._records is None or pair is None or sock is None or not sock.sends_whole:
            return
        for packet in packets:
            sealed, _ = self._records.seal([packet])
            sock.send_whole(sealed, pair.remote_addr)

    def send_packets(self, packets: Sequence[bytes]) -> None:
        """Send SCTP packets; those that cannot leave are lost, as on the way."""
        if self._records is None or self._state is not rtcdtlstransport.State.CONNECTED:
            return
        pair = self._ice._nominated.get(1)
        if pair is None:
            return
        at = 0
        while at < len(packets):
            end = _run_end(packets, at)
            data, each = self._records.seal(packets[at:end])
            if data:
                self._send_datagrams(pair, data, each)
            at = end

    def _send_datagrams(self, pair: Any, data: bytes, each: int) -> None:
        sock = self._sockets.get(pair.protocol)
        left = 0 if sock is None else sock.send(data, each, pair.remote_addr)
        for at in range(left, len(data), each):
            pair.protocol.transport.sendto(data[at : at + each], pair.remote_addr)

    # Reading

    def _read_in_batches(self, protocol: Any, sock: socket.socket) -> None:
        datagrams = self._sockets[protocol] = DatagramSocket(sock, offload=self.offload)
        loop: Any = self._event_loop
        # The public remove_reader refuses a socket that a transport of the loop owns; the
        # transport itself takes our reader away when it is closed.
        loop._remove_reader(sock.fileno())
        loop._add_reader(sock.fileno(), self._readable, protocol, datagrams)

    def _readable(self, protocol: Any, datagrams: DatagramSocket) -> None:
        packets = nbytes = 0
        while packets < CALL_PACKETS and nbytes < CALL_BYTES:
            got = datagrams.read()
            if got is None:
                break
            data, each, address = got
            nbytes += len(data)
            if not data:
                continue
            if all(_is_record(first) for first in data[::each].tobytes()):
                packets += self._open(data, each)
            else:
                for at in range(0, len(data), each):
                    self._other(protocol, data[at : at + each], address)
        self._end_batch()

    def _other(self, protocol: Any, datagram: memoryview, address: Address) -> None:
        if _is_record(datagram[0]):  # joined with others by the kernel
            self._open(datagram, len(datagram))
        elif _is_stun(datagram[0]):
            protocol.datagram_received(bytes(datagram), address)

    def _one_by_one(
        self, protocol: Any, received: Callable[[bytes, Address], None]
    ) -> Callable[[bytes, Address], None]:
        def datagram_received(data: bytes, address: Address) -> None:
            if not data or not _is_record(data[0]):
                if data and _is_stun(data[0]):
                    received(data, address)
                return
            self._unanswered += self._open(memoryview(data), len(data))
            receiver = self.batch_receiver
            if self._unanswered >= BATCH_PACKETS or (receiver is not None and receiver.urgent):
                self._end_batch()
            elif self._timer is None:
                self._timer = self._event_loop.call_later(BATCH_SECONDS, self._end_batch)

        return datagram_received

    def _open(self, data: memoryview, each: int) -> int:
        """Handle datagrams with records; how many packets they held."""
        if self._records is None:
            return 0
        try:
            packets = self._records.open(data, each)
        except Closed:
            self._ice._queue.put_nowait(None)  # ends the base's pump, as a lost connection does
            return 0
        if self.batch_receiver is not None and packets:
            self.batch_receiver.take_packets(packets)
        elif answer := self._records.pending():  # of a handshake whose last flight was lost
            with contextlib.suppress(ConnectionError):
                self._send_datagrams(self._ice._nominated[1], answer, len(answer))
        return len(packets)

    def _end_batch(self) -> None:
        self._unanswered = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.batch_receiver is not None:
            self.batch_receiver.flush()


def _is_record(first: int) -> bool:
    """By its first byte a datagram is DTLS (RFC 7983)."""
    return 20 <= first <= 63


def _is_stun(first: int) -> bool:
    """By its first byte a datagram is STUN. Nothing else is for a connection of data channels, and
    aiortc's pump dies of some: whoever knows the port could end a connection with one datagram."""
    return first <= 3


def _run_end(packets: Sequence[bytes], at: int) -> int:
    """End of the longest run from `at` that one system call can send: one length, the last
    perhaps shorter."""
    length = len(packets[at])
    end = at + 1
    most = min(len(packets), at + min(MAX_SEGMENTS, MAX_BYTES // (length + RECORD_OVERHEAD)))
    while end < most and len(packets[end]) == length:
        end += 1
    if end < most and len(packets[end]) < length:
        end += 1
    return end


def _readable_socket(loop: asyncio.AbstractEventLoop, protocol: Any) -> socket.socket | None:
    """The socket under a protocol, if this loop lets us read it."""
    sock = getattr(protocol.transport, "_sock", None)
    if isinstance(sock, socket.socket) and hasattr(loop, "_add_reader"):
        return sock
    return None
