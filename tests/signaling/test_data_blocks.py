"""Blocks at the server: read once, bounded, dropped when their file changes; and the meter."""

import asyncio
import dataclasses

import pytest

from signaling.data.blocks import Blocks
from signaling.data.meter import Meter
from signaling.data.sources import BLOCK, AwayError, MissingError, Piece
from signaling.limits import LIMITS

MIB = 1 << 20
ALICE, BOB = b"a" * 32, b"b" * 32


class Slow:
    """A source whose answers the test gives."""

    def __init__(self):
        self.asked = []
        self.gate = asyncio.Event()
        self.version = "1"
        self.size = 100 * BLOCK

    async def read(self, name, start, length):
        self.asked.append((name, start // BLOCK))
        await self.gate.wait()
        if name == "none":
            raise MissingError
        return Piece(bytes(length), self.size, self.version)

    async def close(self):
        pass


def blocks_of(source, **bounds):
    return Blocks([source], dataclasses.replace(LIMITS, **bounds))


async def asleep():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_block_is_read_once_however_many_ask():
    source = Slow()
    blocks = blocks_of(source)
    asked = [asyncio.create_task(blocks.get(0, "a", 3)) for _ in range(20)]
    await asleep()
    source.gate.set()
    assert len({id(piece) for piece in await asyncio.gather(*asked)}) == 1
    await blocks.get(0, "a", 3)
    assert source.asked == [("a", 3)]
    assert (blocks.found, blocks.read) == (1, BLOCK)


async def test_a_read_outlives_who_asked_for_it():
    source = Slow()
    blocks = blocks_of(source)
    first, second = (asyncio.create_task(blocks.get(0, "a", 0)) for _ in range(2))
    await asleep()
    first.cancel()
    await asleep()
    source.gate.set()
    assert (await second).size == source.size
    assert source.asked == [("a", 0)]


async def test_a_failure_reaches_everybody_and_is_not_kept():
    source = Slow()
    source.gate.set()
    blocks = blocks_of(source)
    asked = [blocks.get(0, "none", 0) for _ in range(3)]
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(error) for error in errors} == {MissingError}
    assert (len(source.asked), blocks.failed) == (1, 1)
    with pytest.raises(MissingError):
        await blocks.get(0, "none", 0)
    assert len(source.asked) == 2


async def test_what_is_kept_is_bounded_and_the_least_used_goes():
    source = Slow()
    source.gate.set()
    blocks = blocks_of(source, data_cache_bytes=3 * BLOCK + 10_000)
    for index in (0, 1, 2, 0, 3):
        await blocks.get(0, "a", index)
        assert blocks.size <= 3 * BLOCK + 10_000
    await blocks.get(0, "a", 0)
    await blocks.get(0, "a", 1)
    assert source.asked == [("a", i) for i in (0, 1, 2, 3, 1)]


async def test_many_tiny_files_are_bounded_too():
    source = Slow()
    source.gate.set()
    blocks = blocks_of(source, data_cache_bytes=10**9, data_files=5)
    for i in range(20):
        await blocks.get(0, f"f{i}", 0)
    assert len(blocks._kept) == len(blocks._versions) == 5
    assert blocks.size < 6 * BLOCK


async def test_reads_under_way_are_bounded():
    source = Slow()
    blocks = blocks_of(source, data_pending=2)
    under_way = [asyncio.create_task(blocks.get(0, "a", i)) for i in range(2)]
    await asleep()
    with pytest.raises(AwayError, match="Too much"):
        await blocks.get(0, "a", 9)
    joins = asyncio.create_task(blocks.get(0, "a", 1))  # no further read
    source.gate.set()
    await asyncio.gather(*under_way, joins)
    await blocks.get(0, "a", 9)


async def test_blocks_of_a_file_that_changed_are_dropped():
    source = Slow()
    source.gate.set()
    blocks = blocks_of(source)
    await blocks.get(0, "a", 0)
    await blocks.get(0, "b", 0)
    source.version = "2"
    await blocks.get(0, "a", 1)
    assert (await blocks.get(0, "a", 0)).version == "2"
    assert (await blocks.get(0, "b", 0)).version == "1", "another file"


async def test_reads_end_with_the_server():
    blocks = blocks_of(Slow())
    waiting = asyncio.create_task(blocks.get(0, "a", 0))
    await asleep()
    await blocks.close()
    assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], BaseException)


# The meter


def meter_of(**bounds):
    names = ("data_member_burst", "data_address_burst", "data_questions_burst")
    loose = {"data_hour_bytes": 10**15, **dict.fromkeys(names, 1e12)}
    return Meter(dataclasses.replace(LIMITS, **(loose | bounds)), 0.0)


def asked(meter, peer=ALICE, address="x", size=MIB, now=0.0):
    """The refusal, if there is one; an answer ends at once."""
    refused = meter.ask(peer, address, size, now)
    if refused is None:
        meter.done(peer)
    return refused


def test_a_member_has_a_share_and_is_told_when_to_ask_again():
    meter = meter_of(data_member_burst=3.0 * MIB, data_member_rate=1.0 * MIB)
    assert [asked(meter) for _ in range(4)] == [None, None, None, (429, 1)]
    assert asked(meter, size=2 * MIB) == (429, 2)
    assert asked(meter, BOB) is None, "another member"
    assert asked(meter, now=1.0) is None
    assert asked(meter, now=1.0) is not None


def test_those_behind_one_address_share():
    meter = meter_of(data_address_burst=2.0 * MIB, data_address_rate=1.0)
    assert [asked(meter, peer) for peer in (ALICE, BOB)] == [None, None]
    assert asked(meter, ALICE) == asked(meter, BOB) == (429, MIB)
    assert asked(meter, BOB, "y") is None


def test_everyone_has_no_more_than_the_hours_bytes():
    """Also who waits for the best moment: what was saved up and what came meanwhile."""
    meter = meter_of(data_hour_bytes=60 * MIB)
    served = sum(
        asked(meter, bytes([peer]) * 32, str(peer), now=float(now)) is None
        for now in range(0, 3600, 60)
        for peer in range(20)
    )
    assert 50 <= served <= 60
    assert asked(meter, now=3_540.0) == (503, 120)


def test_vain_questions_are_counted_too():
    meter = meter_of(data_questions_burst=5.0, data_questions_rate=1.0)
    assert [asked(meter, size=0) for _ in range(6)] == [None] * 5 + [(429, 1)]


def test_answers_at_the_same_time_are_bounded():
    meter = meter_of(data_member_requests=2, data_requests=3)
    assert [meter.ask(ALICE, "x", 1, 0.0) for _ in range(3)] == [None, None, (429, 1)]
    assert [meter.ask(BOB, "x", 1, 0.0) for _ in range(2)] == [None, (503, 1)]
    meter.done(ALICE)
    assert (meter.ask(BOB, "x", 1, 0.0), meter.open) == (None, 3)
    for peer in (ALICE, BOB, BOB):
        meter.done(peer)
    assert (meter.open, meter._open) == (0, {})
