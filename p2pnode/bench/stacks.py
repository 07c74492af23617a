"""The transports that are compared, behind one small interface: a control and a bulk channel.

`fast` is what a node uses; `small` is the same with packets of 1,200 bytes; `plain` in addition
without the kernel's help in cutting and joining datagrams; `portable` as on an event loop that does
not let us read its sockets; `aiortc` is stock aiortc; `native` is Chrome's libwebrtc from the wheel
`wrtc`; `tcp` is two plain TCP connections. May import: of net: fast, ice.
"""

from __future__ import annotations

import abc
import asyncio
import os
import struct
from collections.abc import Callable
from typing import Any

from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from p2pnode.net.fast.connection import FastPeerConnection
from p2pnode.net.fast.dtls import FastDtlsTransport
from p2pnode.net.fast.sctp import FastSctpTransport
from p2pnode.net.ice import IceMode, IcePolicy

OURS = ("fast", "small", "plain", "portable")
KINDS = (*OURS, "aiortc", "native", "tcp")
CONTROL, BULK = 0, 1
OPEN_SECONDS = 30.0
HOST = "127.0.0.1"

POLICY = IcePolicy(mode=IceMode.LOOPBACK)

Received = Callable[[int, bytes], None]
"""(channel, message)"""


class Stack(abc.ABC):
    """One end of one connection."""

    def __init__(self, received: Received) -> None:
        self.received = received

    @abc.abstractmethod
    async def offer(self) -> str:
        """Our description, to begin with."""

    @abc.abstractmethod
    async def answer(self, offer: str) -> str:
        """Our description in answer to the peer's."""

    @abc.abstractmethod
    async def accept(self, answer: str) -> None:
        """Take the peer's answer."""

    @abc.abstractmethod
    async def opened(self) -> None:
        """Wait until both channels are open."""

    @abc.abstractmethod
    def send(self, channel: int, message: bytes) -> None:
        """Hand over a message."""

    @abc.abstractmethod
    def buffered(self) -> int:
        """Bytes of bulk handed over and not yet sent."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End the connection."""


class WebRtc(Stack):
    """aiortc, ours, or the native library through its layer that looks like aiortc."""

    def __init__(self, kind: str, received: Received) -> None:
        super().__init__(received)
        self._description: Any = RTCSessionDescription
        self._peer: Any
        if kind == "native":
            os.environ.setdefault("WRTC_ALLOW_LOOPBACK", "1")  # read when it is loaded
            from webrtc import aiortc as native  # type: ignore[import-not-found,unused-ignore]

            self._peer = native.RTCPeerConnection(native.RTCConfiguration(iceServers=[]))
            self._description = native.RTCSessionDescription
        elif kind == "aiortc":
            self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        else:
            self._peer = _ours(kind)(RTCConfiguration(iceServers=[]))
        self._open = asyncio.Event()
        self._channels = [self._channel(i) for i in (CONTROL, BULK)]
        if kind != "native":
            POLICY.attach(self._peer)
        if isinstance(self._peer.sctp, FastSctpTransport):
            self._peer.sctp.prefer(CONTROL)

    def _channel(self, number: int) -> Any:
        made = self._peer.createDataChannel(str(number), negotiated=True, id=number)
        made.on("message", lambda message: self.received(number, message))
        made.on("open", self._opened)
        return made

    def _opened(self) -> None:
        if all(channel.readyState == "open" for channel in self._channels):
            self._open.set()

    async def offer(self) -> str:
        await self._peer.setLocalDescription(await self._peer.createOffer())
        return str(self._peer.localDescription.sdp)

    async def answer(self, offer: str) -> str:
        await self._peer.setRemoteDescription(self._description(offer, "offer"))
        await self._peer.setLocalDescription(await self._peer.createAnswer())
        return str(self._peer.localDescription.sdp)

    async def accept(self, answer: str) -> None:
        await self._peer.setRemoteDescription(self._description(answer, "answer"))

    async def opened(self) -> None:
        async with asyncio.timeout(OPEN_SECONDS):
            await self._open.wait()

    def send(self, channel: int, message: bytes) -> None:
        self._channels[channel].send(message)

    def buffered(self) -> int:
        return int(self._channels[BULK].bufferedAmount)

    async def close(self) -> None:
        await self._peer.close()


def _ours(kind: str) -> type[FastPeerConnection]:
    class Dtls(FastDtlsTransport):
        offload = kind in ("fast", "small")
        portable = kind == "portable"

    class Sctp(FastSctpTransport):
        largest_packet = None if kind == "fast" else 1188

    class Connection(FastPeerConnection):
        sctp_class = Sctp
        dtls_class = Dtls

    return Connection


class Tcp(Stack):
    """Messages with their length before them, over a connection for each channel."""

    def __init__(self, received: Received) -> None:
        super().__init__(received)
        self._server: asyncio.Server | None = None
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._open = asyncio.Event()

    async def offer(self) -> str:
        self._server = await asyncio.start_server(self._accepted, HOST, 0)
        return str(self._server.sockets[0].getsockname()[1])

    async def answer(self, offer: str) -> str:
        for channel in (CONTROL, BULK):
            reader, writer = await asyncio.open_connection(HOST, int(offer))
            writer.write(bytes([channel]))
            self._add(channel, reader, writer)
        return ""

    async def accept(self, answer: str) -> None:
        pass

    async def opened(self) -> None:
        async with asyncio.timeout(OPEN_SECONDS):
            await self._open.wait()

    def send(self, channel: int, message: bytes) -> None:
        self._writers[channel].write(struct.pack("!L", len(message)) + message)

    def buffered(self) -> int:
        return self._writers[BULK].transport.get_write_buffer_size()

    async def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        if self._server is not None:
            self._server.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._add((await reader.readexactly(1))[0], reader, writer)

    def _add(
        self, channel: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._writers[channel] = writer
        self._readers.append(asyncio.ensure_future(self._read(channel, reader)))
        if len(self._writers) == 2:
            self._open.set()

    async def _read(self, channel: int, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = struct.unpack("!L", await reader.readexactly(4))
                self.received(channel, await reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return


def make(kind: str, received: Received) -> Stack:
    """One end of a connection of this kind, one of KINDS."""
    if kind not in KINDS:
        raise ValueError(f"there is no transport {kind!r}")
    return Tcp(received) if kind == "tcp" else WebRtc(kind, received)
