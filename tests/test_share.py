"""A run's text on its way between meshes that live in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from p2pnode.errors import PeerError
from p2pnode.net.events import Priority
from p2pnode.protocol.fetch import Blob
from p2pnode.protocol.messages import (
    PART_BYTES,
    BlobIndex,
    BlobPart,
    BlobWant,
    Confess,
    Message,
    PeerId,
    decode,
)
from p2pnode.share import DataShare, share
from tests.net.fakes import until

RUN = b"r" * 16
SECONDS = 60.0
TEXT = random.Random(1).randbytes(9 * PART_BYTES + 1234)
"""Ten parts: more than are asked of one donor at a time."""

Tamper = Callable[[Message, bytes], tuple[Message, bytes]]


class Member:
    """One node: a mesh that passes messages on in memory, and its share of the text."""

    def __init__(self, net: Net, number: int, root: bytes) -> None:
        self.id = bytes([number]) * 32
        self.net = net
        self.asked: list[int] = []
        self.dropped: list[PeerId] = []
        self.tamper: Tamper = lambda message, payload: (message, payload)
        self.mute = False
        self.share = DataShare(self, RUN, root)  # type: ignore[arg-type]

    def donors(self) -> list[PeerId]:
        """Whoever is linked, in the order in which they came."""
        return [peer for peer in self.net.members if peer not in (self.id, *self.dropped)]

    # What a DataShare uses of a mesh

    def send(self, peer: PeerId, buffers: list[Any], priority: Priority, *, key: object) -> bool:
        message, payload = decode(b"".join(bytes(b) for b in buffers))
        bulk = isinstance(message, BlobIndex | BlobPart)
        assert priority is (Priority.STATE if bulk else Priority.CONTROL)
        if not self.mute:
            message, sent = self.tamper(message, bytes(payload))
            asyncio.get_running_loop().call_soon(self.net.deliver, self.id, peer, message, sent)
        return True

    # What a node does with what comes

    def receive(self, sender: PeerId, message: Message, payload: bytes) -> None:
        if sender in self.dropped:
            return
        if isinstance(message, BlobWant):
            self.asked.append(message.part)
        try:
            assert self.share.takes(sender, message, memoryview(payload))
        except PeerError:
            self.dropped.append(sender)
            self.share.link_down(sender)


class Net:
    """All members; messages to those who are gone are lost."""

    def __init__(self) -> None:
        self.members: dict[PeerId, Member] = {}

    def add(self, number: int, root: bytes, blob: Blob | None = None) -> Member:
        member = Member(self, number, root)
        self.members[member.id] = member
        if blob is not None:
            member.share.serve(blob)
        return member

    def deliver(self, sender: PeerId, to: PeerId, message: Message, payload: bytes) -> None:
        if sender in self.members and to in self.members:
            self.members[to].receive(sender, message, payload)

    def hide(self, member: Member) -> None:
        del self.members[member.id]

    def remove(self, member: Member) -> None:
        self.hide(member)
        for other in self.members.values():
            other.share.link_down(member.id)


BLOB = share(TEXT)


async def fetched(member: Member, size: int = len(TEXT)) -> bytes:
    fetch = member.share.fetch(size, member.donors, lambda here, total: None)
    return await asyncio.wait_for(fetch, SECONDS)


async def test_the_text_arrives_whole() -> None:
    net = Net()
    donor, joiner = net.add(1, BLOB.root, BLOB), net.add(2, BLOB.root)
    assert await fetched(joiner) == TEXT
    assert sorted(donor.asked) == [-1, *range(10)]  # each part once, the index once


async def test_the_work_is_shared_among_donors() -> None:
    net = Net()
    donors = [net.add(n, BLOB.root, BLOB) for n in (1, 2)]
    assert await fetched(net.add(3, BLOB.root)) == TEXT
    assert all(len([part for part in donor.asked if part >= 0]) >= 3 for donor in donors)


async def test_who_has_fetched_can_serve() -> None:
    net = Net()
    first, second = net.add(1, BLOB.root, BLOB), net.add(2, BLOB.root)
    second.share.serve(share(await fetched(second)))
    net.remove(first)
    assert await fetched(net.add(3, BLOB.root)) == TEXT


async def test_a_donor_that_vanishes_costs_only_what_it_owed() -> None:
    net = Net()
    stays = net.add(1, BLOB.root, BLOB)
    leaves = net.add(2, BLOB.root, BLOB)
    joiner = net.add(3, BLOB.root)

    def vanish(message: Message, payload: bytes) -> tuple[Message, bytes]:
        if isinstance(message, BlobPart) and leaves.id in net.members:
            asyncio.get_running_loop().call_soon(net.remove, leaves)
        return message, payload

    leaves.tamper = vanish
    assert await fetched(joiner) == TEXT
    assert leaves.id not in net.members  # it was used before it went
    assert len(stays.asked) > 5


async def test_a_fetch_without_donors_waits_for_one() -> None:
    net = Net()
    joiner = net.add(1, BLOB.root)
    progress: list[tuple[int, int]] = []
    fetch = joiner.share.fetch(
        len(TEXT), joiner.donors, lambda here, total: progress.append((here, total))
    )
    work = asyncio.create_task(fetch)
    await asyncio.sleep(0.02)
    assert not work.done()
    net.add(2, BLOB.root, BLOB)
    assert await asyncio.wait_for(work, SECONDS) == TEXT
    assert progress == sorted(set(progress))  # told when something came, and then only
    assert progress[-1] == (len(TEXT), len(TEXT))


@pytest.mark.parametrize("foul", ["part", "length", "index", "size"])
async def test_wrong_bytes_are_refused_and_had_elsewhere(foul: str) -> None:
    net = Net()
    liar = net.add(1, BLOB.root, BLOB)
    honest = net.add(2, BLOB.root, BLOB)
    joiner = net.add(3, BLOB.root)

    def lie(message: Message, payload: bytes) -> tuple[Message, bytes]:
        match message, foul:
            case BlobPart(), "part":
                return message, bytes([payload[0] ^ 1]) + payload[1:]
            case BlobPart(), "length":
                return message, payload[:-1]
            case BlobIndex(), "index":
                return message, bytes([payload[0] ^ 1]) + payload[1:]
            case BlobIndex(), "size":
                return BlobIndex(message.run, message.root, message.size + 1), payload
        return message, payload

    liar.tamper = lie
    net.hide(honest)  # the liar comes first
    work = asyncio.create_task(fetched(joiner))
    await until(lambda: joiner.dropped == [liar.id])
    net.members[honest.id] = honest
    assert await work == TEXT


async def test_a_blob_larger_than_the_manifest_says_is_refused() -> None:
    net = Net()
    donor, joiner = net.add(1, BLOB.root, BLOB), net.add(2, BLOB.root)
    work = asyncio.create_task(fetched(joiner, len(TEXT) - 1))
    await until(lambda: joiner.dropped == [donor.id])
    work.cancel()


async def test_another_blob_is_not_ours() -> None:
    other = share(b"another text")
    net = Net()
    member = net.add(1, BLOB.root, other)  # has another text than the run's: must not serve it
    assert member.share._blob is None
    joiner = net.add(2, BLOB.root)
    peer = joiner.id
    for message in (
        BlobWant(RUN, other.root, 0),
        BlobIndex(RUN, other.root, 12),
        BlobPart(RUN, other.root, 0),
        Confess(RUN, 1, -1, "w", "lookup"),
    ):
        assert not member.share.takes(peer, message, b"")
    work = asyncio.create_task(fetched(joiner))
    await until(lambda: member.asked)
    await asyncio.sleep(0.01)
    assert not work.done()
    work.cancel()


async def test_what_nobody_asked_for_is_taken_and_forgotten() -> None:
    net = Net()
    donor, idle = net.add(1, BLOB.root, BLOB), net.add(2, BLOB.root)
    assert idle.share.takes(donor.id, BlobPart(RUN, BLOB.root, 0), b"unasked")
    assert idle.share.takes(donor.id, BlobIndex(RUN, BLOB.root, 7), b"unasked")
    assert idle.share.takes(donor.id, BlobWant(RUN, BLOB.root, 0), b"")  # has nothing to give
    assert donor.share.takes(idle.id, BlobWant(RUN, BLOB.root, 10), b"")  # there is no such part
    await asyncio.sleep(0.01)
    assert await fetched(idle) == TEXT
    # Late repeats of what it asked for change nothing.
    assert idle.share.takes(donor.id, BlobPart(RUN, BLOB.root, 0), b"late")


async def test_a_donor_that_keeps_silent_is_asked_last() -> None:
    """One that says it has the text, and does not give it."""
    net = Net()
    silent = net.add(1, BLOB.root)
    donor, joiner = net.add(2, BLOB.root, BLOB), net.add(3, BLOB.root)
    assert await fetched(joiner) == TEXT
    assert silent.asked.count(-1) == 1  # the next request for it went elsewhere
    assert set(donor.asked) == {-1, *range(10)}


async def test_a_slow_donor_that_is_heard_of_is_not_asked_twice() -> None:
    """Bytes that come, as they do amid a long message, are a sign that the transfer moves."""
    net = Net()
    donor, joiner = net.add(1, BLOB.root, BLOB), net.add(2, BLOB.root)
    donor.mute = True
    work = asyncio.create_task(fetched(joiner))
    await until(lambda: donor.asked)
    loop = asyncio.get_running_loop()
    fetcher = joiner.share._fetcher
    assert fetcher is not None
    joiner.share.heard(donor.id, loop.time() + 100.0)
    assert fetcher.requests(loop.time() + 101.0) == []
    assert fetcher.requests(loop.time() + 103.0) != []
    work.cancel()
