"""One node of a measured exchange, a process of its own.

Started with a `Plan` as JSON; says and is told one JSON object a line: says its offers to the nodes
after it, by number; is told those made to it, says answers; is told answers, says that all is open;
is told to begin, says the `Outcome`.
May import: bench.peer, bench.stacks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import struct
import sys
import time
from collections import deque

import numpy as np
from numpy.typing import NDArray

from p2pnode.bench.peer import BUFFERED, MESSAGE_BYTES, SETTLE_SECONDS, say, told
from p2pnode.bench.stacks import BULK, Stack, make

_HEADER = struct.Struct("!BxHI")
"""What the values are, shard or sender, position of the first value."""

ADD, TAKE = 0, 1
VALUES = MESSAGE_BYTES // 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """kind: one of stacks.KINDS. scatter: every shard is summed by its owner and sent to all; else
    every node sends everything to everyone."""

    kind: str
    scatter: bool
    me: int
    nodes: int
    values: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """seconds: from "go" until this node had the sum. right: the sum is the sum."""

    seconds: float
    right: bool
    digest: str


def contribution(node: int, values: int) -> NDArray[np.int32]:
    """[values] of one node; sums of all nodes fit int32."""
    rng = np.random.Generator(np.random.PCG64(node))
    return rng.integers(-(1 << 24), 1 << 24, values, dtype=np.int32)


class Node:
    """Sends and receives until it holds the sum of all contributions."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._mine = contribution(plan.me, plan.values)
        others = [n for n in range(plan.nodes) if n != plan.me]
        self.stacks: dict[int, Stack] = {n: make(plan.kind, self._received) for n in others}
        self._bounds = [k * plan.values // plan.nodes for k in range(plan.nodes + 1)]
        self._sum = self._mine.copy()
        self._to_add, self._to_take = self._expected()
        self._waiting: dict[int, deque[tuple[int, int, int, int]]] = {n: deque() for n in others}
        self._done = asyncio.Event()

    def _expected(self) -> tuple[int, int]:
        plan, own = self._plan, self._shard(self._plan.me)
        if not plan.scatter:
            return (plan.nodes - 1) * plan.values, 0
        return (plan.nodes - 1) * len(self._mine[own]), plan.values - len(self._mine[own])

    def _shard(self, number: int) -> slice:
        return slice(self._bounds[number], self._bounds[number + 1])

    async def exchange(self) -> NDArray[np.int32]:
        """[values], the sum."""
        for node in self.stacks:
            whole = self._shard(node) if self._plan.scatter else slice(0, self._plan.values)
            self._queue(node, ADD, self._plan.me, whole)
        while not self._done.is_set() or any(self._waiting.values()):
            for node, stack in self.stacks.items():
                waiting = self._waiting[node]
                while waiting and stack.buffered() < BUFFERED:
                    what, shard, first, end = waiting.popleft()
                    source = self._sum if what == TAKE else self._mine
                    stack.send(BULK, _HEADER.pack(what, shard, first) + source[first:end].tobytes())
            await asyncio.sleep(0.001)
        return self._sum

    def _queue(self, node: int, what: int, shard: int, values: slice) -> None:
        for first in range(values.start, values.stop, VALUES):
            end = min(first + VALUES, values.stop)
            self._waiting[node].append((what, shard, first, end))

    def _received(self, channel: int, message: bytes) -> None:
        what, _, first = _HEADER.unpack_from(message)
        values = np.frombuffer(message, np.int32, offset=_HEADER.size)
        place = self._sum[first : first + len(values)]
        if what == ADD:
            place += values
            self._to_add -= len(values)
            if not self._to_add and self._plan.scatter:
                for node in self.stacks:
                    self._queue(node, TAKE, self._plan.me, self._shard(self._plan.me))
        else:
            place[:] = values
            self._to_take -= len(values)
        if not (self._to_add or self._to_take):
            self._done.set()


async def run(plan: Plan) -> None:
    """The whole conversation."""
    node = Node(plan)
    after = [n for n in node.stacks if n > plan.me]
    say(descriptions={n: await node.stacks[n].offer() for n in after})
    offers = (await told())["descriptions"]
    say(descriptions={n: await node.stacks[int(n)].answer(offer) for n, offer in offers.items()})
    for n, answer in (await told())["descriptions"].items():
        await node.stacks[int(n)].accept(answer)
    for stack in node.stacks.values():
        await stack.opened()
    await asyncio.sleep(SETTLE_SECONDS)
    say(open=True)
    await told()
    began = time.monotonic()
    got = await node.exchange()
    seconds = time.monotonic() - began
    expected = np.sum([contribution(n, plan.values) for n in range(plan.nodes)], 0, np.int32)
    digest = hashlib.sha256(got.tobytes()).hexdigest()
    say(**dataclasses.asdict(Outcome(seconds, bool(np.array_equal(got, expected)), digest)))
    await told()
    await asyncio.gather(*(stack.close() for stack in node.stacks.values()))


if __name__ == "__main__":
    asyncio.run(run(Plan(**json.loads(sys.argv[1]))))
