"""A native stack: Chrome's libwebrtc, from the wheel `wrtc`, which is imported as `webrtc`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

# Read when the library is loaded: it too leaves out 127.0.0.1 unless told otherwise.
os.environ.setdefault("WRTC_ALLOW_LOOPBACK", "1")

import webrtc

from p2pnode.protocol.frames import Channel
from tests.net.interop.partner import NAMES, Partner


class LibWebRtc(Partner):
    """libwebrtc through its Python binding."""

    def __init__(
        self, on_frame: Callable[[Channel, bytes], None], on_closed: Callable[[Exception], None]
    ) -> None:
        super().__init__(on_frame, on_closed)
        self._connection = webrtc.RTCPeerConnection(webrtc.RTCConfiguration())
        self._channels = {channel: self._make(channel) for channel in Channel}

    def _make(self, channel: Channel) -> webrtc.RTCDataChannel:
        made = self._connection.create_data_channel(
            NAMES[channel], webrtc.RTCDataChannelInit(negotiated=True, id=int(channel))
        )
        made.on("message", lambda event: self.on_frame(channel, event.data))
        made.on("open", lambda _event: self._opened())
        made.on("close", lambda _event: self.on_closed(ConnectionError("closed")))
        return made

    def _opened(self) -> None:
        if all(str(channel.ready_state) == "open" for channel in self._channels.values()):
            self.is_open()

    async def offer(self) -> str:
        return await self._describe(await self._connection.create_offer())

    async def answer(self, offer: str) -> str:
        await self._take("offer", offer)
        return await self._describe(await self._connection.create_answer())

    async def accept(self, answer: str) -> None:
        await self._take("answer", answer)

    async def _describe(self, description: object) -> str:
        gathered = asyncio.Event()

        def look(_event: object = None) -> None:
            if str(self._connection.ice_gathering_state) == "complete":
                gathered.set()

        self._connection.on("icegatheringstatechange", look)
        await self._connection.set_local_description(description)
        look()
        async with asyncio.timeout(10):
            await gathered.wait()
        return str(self._connection.local_description.sdp)

    async def _take(self, kind: str, sdp: str) -> None:
        self.read_max_message(sdp)
        await self._connection.set_remote_description(
            webrtc.RTCSessionDescriptionInit(webrtc.RTCSdpType(kind), sdp)
        )

    def send(self, channel: Channel, frame: bytes) -> None:
        self._channels[channel].send(frame)

    async def close(self) -> None:
        self._connection.close()
