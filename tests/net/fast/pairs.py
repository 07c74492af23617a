"""Two connections in one process over loopback, each of a chosen kind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection

from p2pnode.net.fast.connection import FastPeerConnection
from p2pnode.net.fast.dtls import FastDtlsTransport
from p2pnode.net.fast.sctp import FastSctpTransport
from p2pnode.net.ice import IceMode, IcePolicy
from tests.net.fakes import until

LOOPBACK = IcePolicy(mode=IceMode.LOOPBACK)


class SmallSctp(FastSctpTransport):
    largest_packet = 1188


class PlainDtls(FastDtlsTransport):
    offload = False


class PortableDtls(FastDtlsTransport):
    portable = True


class Small(FastPeerConnection):
    sctp_class = SmallSctp


class Plain(Small):
    dtls_class = PlainDtls


class Portable(Small):
    dtls_class = PortableDtls


class Fragmented(FastPeerConnection):
    dtls_class = PortableDtls


KINDS = {
    "stock": RTCPeerConnection,
    "fast": FastPeerConnection,
    "small": Small,
    "plain": Plain,
    "portable": Portable,
    "fragmented": Fragmented,
}


class End:
    def __init__(self, kind: str, **channel: object) -> None:
        self.connection = KINDS[kind](RTCConfiguration(iceServers=[]))
        self.received: list[bytes | str] = []
        self.channels: list[RTCDataChannel] = []
        for i in range(2):
            made = self.connection.createDataChannel(str(i), negotiated=True, id=i, **channel)
            made.on("message", self.received.append)
            self.channels.append(made)
        self.closed = asyncio.Event()
        self.channels[0].on("close", self.closed.set)
        LOOPBACK.attach(self.connection)

    @property
    def sctp(self) -> FastSctpTransport:
        return self.connection.sctp

    def open(self) -> bool:
        return all(channel.readyState == "open" for channel in self.channels)


@contextlib.asynccontextmanager
async def pair(a: str, b: str, **channel: object) -> AsyncIterator[tuple[End, End]]:
    """a offers, b answers; both channels of both are open."""
    ends = End(a, **channel), End(b, **channel)
    one, two = (end.connection for end in ends)
    try:
        await one.setLocalDescription(await one.createOffer())
        await two.setRemoteDescription(one.localDescription)
        await two.setLocalDescription(await two.createAnswer())
        await one.setRemoteDescription(two.localDescription)
        await until(lambda: ends[0].open() and ends[1].open())
        yield ends
    finally:
        await asyncio.gather(one.close(), two.close())
