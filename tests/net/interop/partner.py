"""Foreign WebRTC stacks as partners of ours: what each has in common, and stock aiortc.

A partner is a `Transport` with the same three steps of a handshake as `RtcTransport`. It has two
ordered, reliable channels with ids 0 and 1 that both sides agree on beforehand, as ours.
"""

from __future__ import annotations

import abc
import asyncio
import re
from collections.abc import Callable

from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription

from p2pnode.protocol.frames import Channel

NAMES = {channel: channel.name.lower() for channel in Channel}


class Partner(abc.ABC):
    """A connection made by another stack."""

    def __init__(
        self, on_frame: Callable[[Channel, bytes], None], on_closed: Callable[[Exception], None]
    ) -> None:
        """As `RtcTransport`."""
        self.on_frame = on_frame
        self.on_closed = on_closed
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.max_message = 65_536

    async def start(self) -> None:  # noqa: B027
        """Prepare whatever takes time (a browser)."""

    @abc.abstractmethod
    async def offer(self) -> str: ...

    @abc.abstractmethod
    async def answer(self, offer: str) -> str: ...

    @abc.abstractmethod
    async def accept(self, answer: str) -> None: ...

    @abc.abstractmethod
    def send(self, channel: Channel, frame: bytes) -> None: ...

    @abc.abstractmethod
    async def close(self) -> None: ...

    def buffered(self, channel: Channel) -> int:
        return 0

    def check(self) -> None:  # noqa: B027
        """Nothing is held back here."""

    def read_max_message(self, sdp: str) -> None:
        found = re.search(r"a=max-message-size:(\d+)", sdp)
        self.max_message = int(found.group(1)) if found else 65_536

    def is_open(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)


class StockAiortc(Partner):
    """aiortc as it is installed, without a line of ours but the choice of addresses."""

    def __init__(
        self, on_frame: Callable[[Channel, bytes], None], on_closed: Callable[[Exception], None]
    ) -> None:
        super().__init__(on_frame, on_closed)
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._channels = {channel: self._make(channel) for channel in Channel}
        sctp = self._connection.sctp
        assert sctp is not None
        ice = sctp.transport.transport.iceGatherer._connection
        gather = ice.get_component_candidates

        async def gather_loopback(*, component: int, addresses: object) -> object:
            return await gather(component, ["127.0.0.1"])  # which aioice would leave out

        ice.get_component_candidates = gather_loopback

    def _make(self, channel: Channel) -> RTCDataChannel:
        made = self._connection.createDataChannel(NAMES[channel], negotiated=True, id=int(channel))
        made.on("message", lambda message: self.on_frame(channel, message))
        made.on("open", self._opened)
        made.on("close", lambda: self.on_closed(ConnectionError("closed")))
        return made

    def _opened(self) -> None:
        if all(channel.readyState == "open" for channel in self._channels.values()):
            self.is_open()

    async def offer(self) -> str:
        await self._connection.setLocalDescription(await self._connection.createOffer())
        return self._connection.localDescription.sdp

    async def answer(self, offer: str) -> str:
        self.read_max_message(offer)
        await self._connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        await self._connection.setLocalDescription(await self._connection.createAnswer())
        return self._connection.localDescription.sdp

    async def accept(self, answer: str) -> None:
        self.read_max_message(answer)
        await self._connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))

    def send(self, channel: Channel, frame: bytes) -> None:
        self._channels[channel].send(frame)

    async def close(self) -> None:
        await self._connection.close()
