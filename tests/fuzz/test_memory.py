"""What one member can make a step core hold: floods of acceptable messages, all different.

Reassembly, queues and readers have their own tests; here memory is that of the core.
"""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from p2pnode.errors import PeerError
from p2pnode.protocol import events as ev
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.messages import Message, Shard, decode
from p2pnode.protocol.setup import Setup
from p2pnode.rehearse import toy
from tests.fuzz import shapes
from tests.fuzz.effort import ASKED

ME, PEER, THIRD = (bytes([byte]) * 32 for byte in (1, 2, 3))
RUN = b"r" * 16
PARAMETERS, SLOTS = 2_048, 8
COUNT = 600 * int(ASKED or 1)
BOUND = 4 << 20
"""Bytes. The stated bounds (PROTOCOL: what a peer can make us hold) come to less for this run: sums
of 32 steps in 4 cuts (1 MiB), contributions two steps ahead (128 KiB), and what names them."""

KINDS = shapes.tags(Message)


def flooded() -> StepCore:
    core = StepCore(
        Setup(
            me=ME,
            run=RUN,
            parameters=PARAMETERS,
            tensors=toy.TENSORS,
            slots=SLOTS,
            steps=1_000,
            state_hash=toy.initial().hash,
            boot=1,
            probe=toy.PROBE,
            members=(ME, PEER, THIRD),
            secret=b"secret",
            sign=lambda digest: digest,
            signed=lambda peer, digest, signature: True,
        )
    )
    for event in (ev.LinkUp(PEER), ev.LinkUp(THIRD), ev.Start(lead=True)):
        core.handle(event, 0.0)
    return core


def some(info: inspect.Type, chance: random.Random, name: str = "") -> Any:
    """A value of a type in wire form; what is named by numbers is near what the core works on."""
    match info:
        case inspect.NoneType():
            return None
        case inspect.BoolType():
            return chance.random() < 0.5
        case inspect.FloatType():
            return chance.random() * 100
        case inspect.IntType():
            near = {"step": 40, "applied": 3, "committed": 3, "slot": SLOTS - 1, "last_step": 9}
            low, high = info.ge or 0, info.le if info.le is not None else 2**40
            return chance.randint(max(low, 0), min(high, near.get(name, high)))
        case inspect.BytesType():
            size = info.min_length or min(info.max_length or 32, 64)
            known = [ME, PEER, THIRD, toy.initial().hash] if size == 32 else []
            return chance.choice([*known, chance.randbytes(size), chance.randbytes(size)])
        case inspect.StrType():
            return "x" * chance.randrange(min(info.max_length or 50, 200))
        case inspect.UnionType():
            return some(chance.choice(info.types), chance, name)
        case inspect.VarTupleType() if name in ("slots", "sets") and isinstance(
            info.item_type, inspect.IntType
        ):
            return sorted(chance.sample(range(SLOTS), chance.randint(1, SLOTS)))
        case inspect.VarTupleType():
            least, most = info.min_length or 0, info.max_length or 8
            count = (
                toy.TENSORS
                if name == "max_abs"
                else chance.randint(least, max(least, min(most, 8)))
            )
            return [some(info.item_type, chance, name) for _ in range(count)]
        case inspect.TupleType():
            return [some(kind, chance, name) for kind in info.item_types]
        case inspect.StructType():
            tag = [] if info.tag is None else [info.tag]
            fields = [some(field.type, chance, field.name) for field in info.fields]
            if info.cls is Shard:
                fields[0] %= fields[1]
            return [*tag, *fields]
    raise NotImplementedError(info)


def flood(name: str, seed: int, count: int) -> tuple[StepCore, int]:
    """A core after `count` different messages of one kind, and the bytes that it holds more."""
    chance = random.Random(seed)
    info = inspect.type_info(KINDS[name])
    zeros = bytes(4 * PARAMETERS)
    raws = []
    for _ in range(count):
        wire = some(info, chance)
        wire[1] = RUN
        header = msgspec.msgpack.encode(wire)
        raws.append(len(header).to_bytes(4, "little") + header)
    core = flooded()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, raw in enumerate(raws):
            try:
                message, payload = decode(raw)
            except PeerError:
                continue
            shard = getattr(message, "shard", None)
            if shard is not None:
                low, high = shard.bounds(PARAMETERS)
                payload = memoryview(bytearray(zeros[: 4 * (high - low)]))
            core.handle(ev.MessageReceived(PEER, message, payload), 0.001 * number)
        return core, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", KINDS)
def test_a_flood_is_held_within_bounds(name: str) -> None:
    _, held = flood(name, 1, COUNT)
    assert held < BOUND


def test_the_floods_get_in() -> None:
    """They are of use only if the core takes them."""
    core, held = flood("ShardSum", 2, 500)
    assert len(core._shelf.sums) >= 10
    assert held > 100_000
    core, _ = flood("Contribution", 2, 500)
    assert sum(len(parts) for parts in core._shelf.parts.values()) >= 10
    core, _ = flood("Status", 2, 50)
    assert core._board.peers[PEER].status is not None
