"""Two ends of one connection over loopback."""

from __future__ import annotations

import asyncio
import contextlib

from p2pnode.net.ice import IceMode, IcePolicy
from p2pnode.net.rtc import RtcTransport
from p2pnode.protocol.frames import Channel

LOOPBACK = IcePolicy(mode=IceMode.LOOPBACK)


class Side:
    def __init__(self) -> None:
        self.frames: list[tuple[Channel, bytes]] = []
        self.ended: list[Exception] = []
        self.transport = RtcTransport(
            LOOPBACK, lambda c, f: self.frames.append((c, f)), self.ended.append
        )


@contextlib.asynccontextmanager
async def sides():
    pair = Side(), Side()
    try:
        yield pair
    finally:
        await asyncio.gather(*(side.transport.close() for side in pair))


async def connect(a: Side, b: Side, alter_offer=lambda s: s, alter_answer=lambda s: s) -> None:
    offer = alter_offer(await a.transport.offer())
    answer = alter_answer(await b.transport.answer(offer))
    await a.transport.accept(answer)
    async with asyncio.timeout(20):
        await asyncio.gather(a.transport.opened, b.transport.opened)
