"""One WebRTC connection to one peer, as the mesh sees it: two ordered, reliable channels of bytes.

Only this file and ice import aiortc.
May import: errors, limits, protocol.frames; of net: ice, paths.
Only this file, ice and fast import aiortc. May import: errors, limits, protocol.frames; of net:
fast, ice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

from aiortc import RTCDataChannel, RTCSessionDescription

from p2pnode.errors import PeerError, told
from p2pnode.limits import LIMITS, Limits
from p2pnode.net.fast.sctp import FastSctpTransport
from p2pnode.net.ice import IcePolicy, filter_description
from p2pnode.net.paths import is_ours, local_address, uses_turn
from p2pnode.protocol.frames import DATA_HEADER_BYTES, MIN_FRAGMENT_BYTES, Channel

log = logging.getLogger(__name__)

DEFAULT_MAX_MESSAGE = 65_536
"""What a peer takes that announces nothing (RFC 8841, section 6)."""

CLOSE_SECONDS = 3.0
"""A connection that has not closed by then is left to the garbage collector."""

ADDRESS_SECONDS = 2.0
"""Seconds between looks whether this machine still has the address that a connection uses."""

HELD_BYTES = 8 * 1024 * 1024
"""Most bytes of unfinished SCTP messages: eight times the window that aiortc announces but does
not enforce. Only a peer that ignores the window gets there."""


def fingerprint(sdp: str) -> str:
    """SHA-256 fingerprint of the certificate a description promises: 64 lower-case hex digits.

    Raises PeerError if it has none or more than one value.
    """
    found = set(re.findall(r"(?m)^a=fingerprint:sha-256 ([0-9A-Fa-f:]{95})\r?$", sdp))
    if len(found) != 1:
        raise PeerError("sent a session description without exactly one SHA-256 fingerprint")
    return str(found.pop()).replace(":", "").lower()


def max_message(sdp: str) -> int:
    """Longest message the writer of this description takes. Raises PeerError if too short."""
    found = re.search(r"(?m)^a=max-message-size:(\d{1,12})\r?$", sdp)
    size = int(found.group(1)) if found else DEFAULT_MAX_MESSAGE
    if size == 0:  # "any"
        size = DEFAULT_MAX_MESSAGE
    if size < DATA_HEADER_BYTES + MIN_FRAGMENT_BYTES:
        raise PeerError(f"takes messages of at most {size} bytes, too few for this protocol")
    return size


class RtcTransport:
    """A WebRTC connection; a `Transport` once `opened` is done.

    One side calls offer() and later accept(answer), the other answer(offer). aiortc refuses the
    connection unless the certificate met in the DTLS handshake has the fingerprint of the remote
    description, so whoever signed that description is who we talk to.
    """

    def __init__(
        self,
        ice: IcePolicy,
        on_frame: Callable[[Channel, bytes], None],
        on_closed: Callable[[Exception], None],
        limits: Limits = LIMITS,
    ) -> None:
        """Inside a running loop. on_closed: called once, unless close() came first, with a
        PeerError if the peer broke a rule, else a ConnectionError. on_frame: called for every
        message, also before `opened` is seen to be done."""
        self._limits = limits
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._over = False
        self.max_message = DEFAULT_MAX_MESSAGE
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when both channels are open; ConnectionError or PeerError if that cannot be."""
        self._connection = ice.connection()
        self._channels = {channel: self._make_channel(channel) for channel in Channel}
        self._ice = ice.attach(self._connection)
        self._look_at = 0.0
        sctp = self._connection.sctp
        if isinstance(sctp, FastSctpTransport):
            sctp.prefer(int(Channel.CONTROL))
        self._connection.on("connectionstatechange", self._state_changed)
        self._connection.on("datachannel", self._uninvited_channel)

    async def offer(self) -> str:
        """Gather and return our offer."""
        await self._connection.setLocalDescription(await self._connection.createOffer())
        return self._connection.localDescription.sdp

    async def answer(self, offer: str) -> str:
        """Take the peer's offer; gather and return our answer. Raises PeerError."""
        await self._take(offer, "offer")
        await self._connection.setLocalDescription(await self._connection.createAnswer())
        return self._connection.localDescription.sdp

    async def accept(self, answer: str) -> None:
        """Take the peer's answer to our offer. Raises PeerError."""
        await self._take(answer, "answer")

    def send(self, channel: Channel, frame: bytes) -> None:
        if len(frame) > self.max_message:
            raise ValueError(f"a frame of {len(frame)} bytes; the peer takes {self.max_message}")
        data_channel = self._channels[channel]
        if self._over or data_channel.readyState != "open":
            raise ConnectionError("the connection is closed")
        data_channel.send(frame)

    def buffered(self, channel: Channel) -> int:
        return int(self._channels[channel].bufferedAmount)

    @property
    def via_turn(self) -> bool:
        """Whether a TURN server, ours or the peer's, forwards what is sent."""
        return uses_turn(self._ice)

    def check(self) -> None:
        """As in `Transport`; ConnectionError if the network of this machine has changed: what is
        sent from an address that it has lost goes nowhere, and nobody says so."""
        sctp = self._connection.sctp
        window = getattr(sctp, "_advertised_rwnd", 0)
        if window < -HELD_BYTES:
            raise PeerError("sends a message without end, past the window it was given")
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            self._look_at = now + ADDRESS_SECONDS
            address = local_address(self._ice)
            if address is not None and not is_ours(address):
                raise ConnectionError(f"this machine no longer has the address {address}")

    async def close(self) -> None:
        """Close; returns within CLOSE_SECONDS whatever the peer does."""
        self._over = True
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("closed"))
        self.opened.exception()  # seen, also if nobody waits for it
        try:
            await asyncio.wait_for(self._connection.close(), CLOSE_SECONDS)
        except TimeoutError:
            log.warning("a connection did not close within %.0f s", CLOSE_SECONDS)
        except Exception as error:  # whatever aiortc's state machines raise half-way
            log.debug("closing a connection: %r", error)

    def _make_channel(self, channel: Channel) -> RTCDataChannel:
        data_channel = self._connection.createDataChannel(
            channel.name.lower(), negotiated=True, id=int(channel)
        )
        data_channel.on("open", self._channel_opened)
        data_channel.on("close", lambda: self._lost("the peer closed the connection"))
        data_channel.on("message", lambda message: self._message(channel, message))
        return data_channel

    async def _take(self, sdp: str, kind: str) -> None:
        fingerprint(sdp)
        self.max_message = max_message(sdp)
        description = RTCSessionDescription(filter_description(sdp, self._limits), kind)
        try:
            await self._connection.setRemoteDescription(description)
        except ConnectionError:
            raise
        except Exception as error:  # aiortc's parser raises many types on bad text
            raise PeerError(
                f"sent a session description that makes no sense: {told(error)}"
            ) from None

    def _channel_opened(self) -> None:
        everywhere = all(c.readyState == "open" for c in self._channels.values())
        if everywhere and not self.opened.done():
            self.opened.set_result(None)

    def _message(self, channel: Channel, message: str | bytes) -> None:
        if self._over:
            return
        if isinstance(message, str):
            self._ended(PeerError("sent text where only binary frames are allowed"))
        else:
            self._on_frame(channel, message)

    def _uninvited_channel(self, _channel: RTCDataChannel) -> None:
        self._ended(PeerError("opened a data channel that was not agreed"))

    def _state_changed(self) -> None:
        state = self._connection.connectionState
        if state in ("failed", "closed"):
            self._lost(f"the connection {'failed' if state == 'failed' else 'was closed'}")

    def _lost(self, reason: str) -> None:
        self._ended(ConnectionError(reason))

    def _ended(self, error: Exception) -> None:
        if self._over:
            return
        self._over = True
        if not self.opened.done():
            self.opened.set_exception(error)
        self.opened.exception()  # seen, also if nobody waits for it
        self._on_closed(error)
