"""One end of a measured exchange, a process of its own.

Started with `send` or `receive` and a `Setting` as JSON; says and is told one JSON object a line.
Sending: says {"descriptions": offers}, is told {"descriptions": answers}, says a `Result`, or
{"stuck": seconds} if it waited so long in vain for the rest to arrive.
Receiving: is told offers, says answers, says {"cpu": seconds} when its input ends.
May import: bench.stacks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import json
import random
import statistics
import struct
import sys
import time
from typing import Any

from p2pnode.bench.stacks import BULK, CONTROL, Stack, make

MESSAGE_BYTES = 48 * 1024
BUFFERED = 1024 * 1024
"""Most bytes handed to one connection and not yet sent."""

PING_SECONDS = 0.02
IDLE_PINGS = 30
SETTLE_SECONDS = 0.3
"""Probes for larger packets are answered by then."""

DRAIN_SECONDS = 30.0
PAYLOADS = 32
"""Different messages: as many as stay in a processor's cache."""

PING, END = b"P", b"E"
"""First byte of a control message. PING: a time, sent back as it is. END: bytes sent on the bulk
channel; answered, when so many have come, with their hash."""

_TIME = struct.Struct("!cd51x")
_END = struct.Struct("!cQ")


@dataclasses.dataclass(frozen=True)
class Setting:
    """What both ends must know. kind: one of stacks.KINDS."""

    kind: str
    connections: int
    seconds: float
    seed: int


@dataclasses.dataclass(frozen=True)
class Result:
    """What the sending end saw. Times in seconds."""

    rate: float
    """Bytes per second of bulk data, over all connections."""
    nbytes: int
    idle: float
    """Median round trip of a short control message before the bulk data."""
    loaded: float
    """The same while bulk data goes out."""
    loaded_worst: float
    cpu: float
    """Of the processor, for the bulk data."""
    intact: bool
    """Every connection's bulk data has the same hash at both ends."""


class Flow:
    """The sending end of one connection."""

    def __init__(self, kind: str) -> None:
        self.stack = make(kind, self._received)
        self.nbytes = 0
        self.round_trips: list[float] = []
        self.heard = asyncio.Event()
        self.hash = hashlib.sha256()
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def ping(self) -> None:
        self.stack.send(CONTROL, _TIME.pack(PING, time.monotonic()))

    def bulk(self, message: bytes) -> None:
        self.stack.send(BULK, message)
        self.hash.update(message)
        self.nbytes += len(message)

    async def end(self) -> bool:
        """Wait until all has arrived; whether it did so intact."""
        self.stack.send(CONTROL, _END.pack(END, self.nbytes))
        async with asyncio.timeout(DRAIN_SECONDS):
            return await self.answered == self.hash.digest()

    def _received(self, channel: int, message: bytes) -> None:
        if message[:1] == PING:
            self.round_trips.append(time.monotonic() - _TIME.unpack(message)[1])
            self.heard.set()
        elif not self.answered.done():
            self.answered.set_result(message[1:])


class Sink:
    """The receiving end of one connection."""

    def __init__(self, kind: str) -> None:
        self.stack = make(kind, self._received)
        self._nbytes = 0
        self._expected: int | None = None
        self._hash = hashlib.sha256()

    def _received(self, channel: int, message: bytes) -> None:
        if channel == BULK:
            self._hash.update(message)
            self._nbytes += len(message)
        elif message[:1] == PING:
            self.stack.send(CONTROL, message)
        else:
            self._expected = _END.unpack(message)[1]
        if self._nbytes == self._expected:
            self._expected = None
            self.stack.send(CONTROL, END + self._hash.digest())


async def send(setting: Setting) -> None:
    """The sending end."""
    flows = [Flow(setting.kind) for _ in range(setting.connections)]
    say(descriptions=[await flow.stack.offer() for flow in flows])
    for flow, answer in zip(flows, (await told())["descriptions"], strict=True):
        await flow.stack.accept(answer)
    for flow in flows:
        await flow.stack.opened()
    await asyncio.sleep(SETTLE_SECONDS)
    idle = await _idle(flows[0])
    rng = random.Random(setting.seed)
    messages = [rng.randbytes(MESSAGE_BYTES) for _ in range(PAYLOADS)]
    began, cpu = time.monotonic(), time.process_time()
    await _bulk(flows, messages, began + setting.seconds)
    try:
        intact = all(await asyncio.gather(*(flow.end() for flow in flows)))
    except TimeoutError:
        say(stuck=DRAIN_SECONDS)
        return
    seconds = time.monotonic() - began
    loaded = flows[0].round_trips or [seconds]
    nbytes = sum(flow.nbytes for flow in flows)
    result = Result(
        rate=nbytes / seconds,
        nbytes=nbytes,
        idle=idle,
        loaded=statistics.median(loaded),
        loaded_worst=max(loaded),
        cpu=time.process_time() - cpu,
        intact=intact,
    )
    say(**dataclasses.asdict(result))
    await told()  # the other end has said what it has to say
    await asyncio.gather(*(flow.stack.close() for flow in flows))


async def _idle(flow: Flow) -> float:
    for _ in range(IDLE_PINGS):
        flow.heard.clear()
        flow.ping()
        await flow.heard.wait()
    idle = statistics.median(flow.round_trips)
    flow.round_trips.clear()
    return idle


async def _bulk(flows: list[Flow], messages: list[bytes], until: float) -> None:
    sent = 0
    pinged = 0.0
    while (now := time.monotonic()) < until:
        for flow in flows:
            while flow.stack.buffered() < BUFFERED:
                flow.bulk(messages[sent % PAYLOADS])
                sent += 1
        if now - pinged >= PING_SECONDS:
            pinged = now
            flows[0].ping()
        await asyncio.sleep(0.001)


async def receive(setting: Setting) -> None:
    """The receiving end."""
    sinks = [Sink(setting.kind) for _ in range(setting.connections)]
    offers = (await told())["descriptions"]
    stacks: list[Stack] = [sink.stack for sink in sinks]
    say(descriptions=[await s.answer(offer) for s, offer in zip(stacks, offers, strict=True)])
    for stack in stacks:
        await stack.opened()
    cpu = time.process_time()
    await told()
    say(cpu=time.process_time() - cpu)
    await asyncio.gather(*(stack.close() for stack in stacks))


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def told() -> dict[str, Any]:
    read = functools.partial(sys.stdin.readline)
    line = await asyncio.get_running_loop().run_in_executor(None, read)
    return dict(json.loads(line or "{}"))


def main() -> None:
    """Run as the process that the module describes."""
    setting = Setting(**json.loads(sys.argv[2]))
    asyncio.run(send(setting) if sys.argv[1] == "send" else receive(setting))


if __name__ == "__main__":
    main()
