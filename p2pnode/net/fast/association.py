"""An established SCTP association between two ports: packets in, messages and packets out.

What the two halves (sending, receiving) have in common: addresses, the largest packet, when a SACK
is due. Sans-IO: `now` is an argument, seconds; whoever calls sends what comes out.
May import: of net.fast: flight, packets, receiving, sending.
"""

from __future__ import annotations

from p2pnode.net.fast.flight import MODULUS
from p2pnode.net.fast.packets import (
    DATA_BYTES,
    NOW,
    Address,
    DataChunk,
    SackChunk,
    data_packet,
    parse,
    sack_packet,
)
from p2pnode.net.fast.receiving import Message, Receiver
from p2pnode.net.fast.sending import Sender

WINDOW_BYTES = 4 * 1024 * 1024
"""Most bytes held for the peer, and most on their way to it: 80 ms at 400 Mbit/s."""

PACKET_BYTES = 1188
"""SCTP packet that fits the smallest IPv6 path with UDP and DTLS around it."""


def payload_of(packet_bytes: int) -> int:
    """User data in one packet of at most this length: a multiple of four."""
    return (packet_bytes - DATA_BYTES) // 4 * 4


class Association:
    """Both directions."""

    def __init__(self, local: Address, initial_tsn: int, max_message: int) -> None:
        """local: ports of both sides and the tag that the peer must use. max_message: longest
        message taken."""
        self._local = local
        self._max_message = max_message
        self._address = local._replace(tag=0)
        self._remote_tsn: int | None = None
        self.receiver = Receiver(0, WINDOW_BYTES, max_message)
        self.sender = Sender(initial_tsn, payload_of(PACKET_BYTES), WINDOW_BYTES, self._pack)
        self.messages: list[Message] = []
        """Whole messages that came; whoever reads it clears it."""
        self.unacknowledged = 0
        """Packets with data since the last SACK."""
        self.asked = False
        """The peer asked for a SACK at once."""

    def set_remote_port(self, port: int) -> None:
        self._address = self._address._replace(destination_port=port)

    def peer_starts(self, tag: int, initial_tsn: int, window: int) -> None:
        """The peer's INIT or INIT ACK: its verification tag, first TSN and receive window.

        It may come several times, for either side may begin; only what is new counts.
        """
        self._address = self._address._replace(tag=tag)
        if initial_tsn != self._remote_tsn:
            self._remote_tsn = initial_tsn
            self.receiver = Receiver(initial_tsn, WINDOW_BYTES, self._max_message)
            self.sender.peer_window = window

    @property
    def address(self) -> Address:
        """What packets to the peer are headed with."""
        return self._address

    @property
    def deadline(self) -> float | None:
        """When `expire` is due."""
        return self.sender.deadline

    def receive(self, packet: bytes, now: float) -> bool:
        """A packet came. False: it holds other chunks than DATA and SACK, or is damaged or
        another's; nothing was done. Raises ProtocolViolation."""
        chunks = parse(packet, self._local.tag)
        if chunks is None or self._remote_tsn is None:
            return False
        for chunk in chunks:
            self.take(chunk, now)
        return True

    def take(self, chunk: DataChunk | SackChunk, now: float) -> None:
        """One chunk came. Raises ProtocolViolation."""
        if isinstance(chunk, DataChunk):
            self.unacknowledged += 1
            self.asked = self.asked or bool(chunk.flags & NOW)
            self.receiver.take(chunk, self.messages)
        else:
            self.sender.take(chunk, now)

    def packets(self, now: float) -> list[bytes]:
        """All that is to be sent now: a SACK if data came, and data."""
        out = []
        if self.unacknowledged:
            out.append(self._sack())
        out.extend(self.sender.packets(now))
        return out

    def expire(self, now: float) -> list[bytes]:
        """The deadline may have come: packets to send."""
        return self.sender.expire(now)

    def _sack(self) -> bytes:
        self.unacknowledged = 0
        self.asked = False
        receiver = self.receiver
        duplicates, receiver.duplicates = receiver.duplicates, []
        return sack_packet(
            *(self._address, receiver.cumulative % MODULUS, receiver.room),
            *(receiver.blocks(), duplicates),
        )

    def _pack(self, chunk: DataChunk) -> bytes:
        return data_packet(self._address, chunk)
