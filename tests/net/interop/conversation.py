"""Two ends of one connection that talk in our framing, whichever stack holds each end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from p2pnode.net.events import NO_RUN, Priority
from p2pnode.net.ice import IceMode, IcePolicy
from p2pnode.net.link import Link, LinkCallbacks
from p2pnode.net.rtc import RtcTransport
from p2pnode.net.transport import Transport
from p2pnode.protocol.frames import Channel
from tests.net.interop.partner import Partner

OnFrame = Callable[[Channel, bytes], None]
OnClosed = Callable[[Exception], None]


class Connection(Transport, Protocol):
    """What `RtcTransport` and `Partner` have in common."""

    opened: asyncio.Future[None]

    async def offer(self) -> str: ...
    async def answer(self, offer: str) -> str: ...
    async def accept(self, answer: str) -> None: ...
    async def close(self) -> None: ...


class End:
    """A link over one end of the connection, and what came over it."""

    def __init__(self, make: Callable[[OnFrame, OnClosed], Connection]) -> None:
        self.messages: list[bytes] = []
        self.ended: list[Exception] = []
        self._early: list[tuple[Channel, bytes]] = []
        self._link: Link | None = None
        self.connection = make(self._frame, self.ended.append)

    def begin(self) -> None:
        """The connection is open."""
        loop = asyncio.get_running_loop()
        self._link = Link(
            self.connection,
            LinkCallbacks(
                on_message=lambda _run, message: self.messages.append(bytes(message)),
                on_heard=lambda _nbytes: None,
                on_relay=lambda *_frame: None,
                on_broken=self.ended.append,
            ),
            loop.time,
            loop.call_soon,
        )
        for frame in self._early:
            self._link.received(*frame)

    def send(self, message: bytes, priority: Priority) -> None:
        assert self._link is not None
        assert self._link.send([message], priority, NO_RUN, None)

    def tick(self) -> None:
        if self._link is not None:
            self._link.tick()

    def digests(self) -> list[str]:
        return [digest(message) for message in self.messages]

    def _frame(self, channel: Channel, frame: bytes) -> None:
        if self._link is None:
            self._early.append((channel, frame))
        else:
            self._link.received(channel, frame)


def digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()


@contextlib.asynccontextmanager
async def conversation(
    partner: Callable[[OnFrame, OnClosed], Partner], *, we_offer: bool
) -> AsyncIterator[tuple[End, End]]:
    """Our end and the partner's, connected over loopback."""
    policy = IcePolicy(mode=IceMode.LOOPBACK)
    ours = End(lambda on_frame, on_closed: RtcTransport(policy, on_frame, on_closed))
    theirs = End(partner)
    ends = (ours, theirs)
    ticking: asyncio.Task[None] | None = None
    try:
        assert isinstance(theirs.connection, Partner)
        await theirs.connection.start()
        first, second = ends if we_offer else (theirs, ours)
        await first.connection.accept(
            await second.connection.answer(await first.connection.offer())
        )
        async with asyncio.timeout(30):
            await asyncio.gather(*(end.connection.opened for end in ends))
        for end in ends:
            end.begin()
        ticking = asyncio.create_task(_tick(ends))
        yield ends
    finally:
        if ticking is not None:
            ticking.cancel()
        await asyncio.gather(*(end.connection.close() for end in ends))


async def _tick(ends: Sequence[End]) -> None:
    while True:
        for end in ends:
            end.tick()
        await asyncio.sleep(0.25)
