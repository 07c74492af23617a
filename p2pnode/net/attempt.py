"""Attempt: one try at a connection to one peer, from description to open channels.

May import: errors, limits, protocol.frames; of net: ice, rtc, signals.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from p2pnode.errors import PeerError
from p2pnode.limits import LIMITS, Limits
from p2pnode.net.ice import IcePolicy
from p2pnode.net.rtc import RtcTransport
from p2pnode.net.signals import Answer, Offer, Signal
from p2pnode.protocol.frames import Channel

EARLY_FRAMES = 64
"""Frames that may come before this side has seen its channels open (one round trip's worth)."""


class Attempt:
    """Owns the connection; whoever uses it afterwards sets `on_frame` and `on_closed`."""

    def __init__(
        self,
        link: bytes,
        ice: IcePolicy,
        slots: asyncio.Semaphore,
        send_signal: Callable[[Signal], None],
        limits: Limits = LIMITS,
    ) -> None:
        """link: the attempt's random name. slots: the handshakes this node may do at once."""
        self.link = link
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.on_frame: Callable[[Channel, bytes], None] | None = None
        self.on_closed: Callable[[Exception], None] | None = None
        self.offered_at: float | None = None
        """When an offer went out (loop time); None before, and if it is for us to answer."""
        self._slots = slots
        self._send_signal = send_signal
        self._limits = limits
        self._early: list[tuple[Channel, bytes]] = []
        self._failed: Exception | None = None
        self.transport = RtcTransport(ice, self._frame, self._closed, limits)

    @property
    def unanswered(self) -> bool:
        """Whether an offer went out and nobody has answered it."""
        answered = self.answered.done() and not self.answered.cancelled()
        return self.offered_at is not None and not answered

    async def offer(self) -> None:
        """Offer, wait for the answer, connect. Raises PeerError, ConnectionError.

        No slot is held while waiting: the other side may be busy with its own handshakes.
        """
        async with self._slots:
            sdp = await self.transport.offer()
        self.offered_at = asyncio.get_running_loop().time()
        self._send_signal(Offer(self.link, sdp))
        try:
            async with asyncio.timeout(self._limits.handshake):
                answer = await self.answered
        except TimeoutError:
            raise ConnectionError("it has not answered in time") from None
        async with self._slots:
            await self.transport.accept(answer.sdp)
            await self._open()

    async def answer(self, offer: Offer) -> None:
        """Answer the offer and connect. Raises as `offer` does."""
        async with self._slots:
            sdp = await self.transport.answer(offer.sdp)
            self._send_signal(Answer(self.link, sdp))
            await self._open()

    def take_over(
        self, on_frame: Callable[[Channel, bytes], None], on_closed: Callable[[Exception], None]
    ) -> None:
        """Connect the open connection to its user; frames that came early are delivered now."""
        self.on_frame, self.on_closed = on_frame, on_closed
        early, self._early = self._early, []
        for channel, frame in early:
            on_frame(channel, frame)
        if self._failed is not None:
            on_closed(self._failed)

    async def close(self) -> None:
        """Give the attempt up, and the connection if there is one."""
        self.answered.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.transport.close()

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._limits.handshake):
                await asyncio.shield(self.transport.opened)
        except TimeoutError:
            raise ConnectionError("no path between the two machines was found") from None

    def _frame(self, channel: Channel, frame: bytes) -> None:
        if self.on_frame is not None:
            self.on_frame(channel, frame)
        elif len(self._early) < EARLY_FRAMES:
            self._early.append((channel, frame))
        else:
            self._closed(PeerError("sent many frames before the connection was agreed to be open"))

    def _closed(self, error: Exception) -> None:
        self._failed = error
        if self.on_closed is not None:
            self.on_closed(error)
