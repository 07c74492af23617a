"""Real connections over loopback: every kind of ours with every other and with stock aiortc."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from aiortc import rtcsctptransport

from p2pnode.net.fast.datagrams import Address, DatagramSocket
from p2pnode.net.fast.dtls import FastDtlsTransport
from p2pnode.net.fast.packets import DataChunk, data_packet
from tests.net.fakes import until
from tests.net.fast.pairs import pair

SIZES = (1, 1159, 1160, 1161, 15_972, 48 * 1024, 100_001, 262_144)


def payloads(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size) for size in SIZES]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *[("fast", "fast"), ("small", "fast"), ("plain", "plain"), ("portable", "portable")],
        *[("fast", "stock"), ("stock", "fast"), ("portable", "stock"), ("fast", "portable")],
    ],
)
async def test_messages_arrive_whole_in_order_both_ways(a: str, b: str):
    async with pair(a, b) as (one, two):
        for end, seed in ((one, 1), (two, 2)):
            for data in payloads(seed):
                end.channels[1].send(data)
            end.channels[1].send("text, as browsers send it")
            end.channels[1].send(b"")
        await until(lambda: len(one.received) == len(two.received) == len(SIZES) + 2, 30)
        for end, seed in ((one, 2), (two, 1)):
            assert end.received == [*payloads(seed), "text, as browsers send it", b""]
        await until(lambda: one.channels[1].bufferedAmount == two.channels[1].bufferedAmount == 0)


async def test_unordered_channels_and_channels_announced_in_band():
    async with pair("fast", "stock", ordered=False) as (one, two):
        announced: list = []
        two.connection.on("datachannel", announced.append)
        made = one.connection.createDataChannel("more")
        await until(lambda: announced and made.readyState == "open")
        announced[0].on("message", two.received.append)
        for data in payloads(3):
            made.send(data)
            one.channels[1].send(data)
        await until(lambda: len(two.received) == 2 * len(SIZES), 30)
        assert sorted(two.received) == sorted(payloads(3) * 2)
        made.close()
        await until(lambda: announced[0].readyState == made.readyState == "closed")


@pytest.mark.parametrize("order", [("fast", "stock"), ("stock", "fast"), ("fast", "fast")])
async def test_a_closed_channel_can_be_made_again(order):
    """The stream is reset: sequence numbers begin anew, after all that was sent had arrived."""
    async with pair(*order) as (one, two):
        for _ in range(2):
            announced: list = []
            two.connection.once("datachannel", announced.append)
            made = one.connection.createDataChannel("again")
            await until(lambda: announced and made.readyState == "open")  # noqa: B023
            got: list = []
            announced[0].on("message", got.append)
            for i in range(5):
                made.send(b"%d" % i * 1000)
            made.close()
            await until(lambda: made.readyState == "closed")  # noqa: B023
            assert got == [b"%d" % i * 1000 for i in range(5)]


@pytest.mark.parametrize("kinds", [("fast", "fast"), ("fast", "stock"), ("stock", "portable")])
async def test_closing_is_seen(kinds):
    async with pair(*kinds) as (one, two):
        await one.connection.close()
        await asyncio.wait_for(two.closed.wait(), 10)
    async with pair(*kinds) as (one, two):
        await two.connection.close()
        await asyncio.wait_for(one.closed.wait(), 10)


async def test_two_of_ours_find_that_loopback_carries_large_packets():
    async with pair("fast", "fast") as (one, two):
        await until(lambda: one.sctp.association.sender.payload_bytes == 15_972)
        await until(lambda: two.sctp.association.sender.payload_bytes == 15_972)


async def test_what_is_lost_of_the_set_up_is_sent_again(monkeypatch):
    send, lost = FastDtlsTransport.send_packets, []

    def first_lost(self: FastDtlsTransport, packets: Sequence[bytes]) -> None:
        for packet in packets:
            kind = packet[12]
            if kind in (1, 2, 10, 11) and (id(self), kind) not in lost:  # INIT, COOKIE ECHO, ACKs
                lost.append((id(self), kind))
            else:
                send(self, [packet])

    monkeypatch.setattr(FastDtlsTransport, "send_packets", first_lost)
    async with pair("fast", "fast") as (one, two):
        one.channels[0].send(b"open")
        await until(lambda: two.received == [b"open"])
    assert {kind for _, kind in lost} >= {1, 2, 10, 11}


async def test_each_length_is_tried_for_itself(monkeypatch):
    """One that the interface refuses takes no other with it: jumbo frames carry the second."""
    send_whole = DatagramSocket.send_whole

    def jumbo(self: DatagramSocket, datagram: bytes, address: Address) -> None:
        if len(datagram) < 8_950:
            send_whole(self, datagram, address)

    monkeypatch.setattr(DatagramSocket, "send_whole", jumbo)
    async with pair("fast", "fast") as (one, two):
        for end in (one, two):
            await until(lambda: end.sctp.association.sender.payload_bytes == 8_772)  # noqa: B023


async def test_a_path_that_ceases_to_carry_large_packets_gets_small_ones(monkeypatch):
    async with pair("fast", "fast") as (one, two):
        sender = one.sctp.association.sender
        await until(lambda: sender.payload_bytes == 15_972)
        send, narrow = DatagramSocket.send, [True]

        def narrowed(self: DatagramSocket, data: bytes, each: int, address: Address) -> int:
            return len(data) if narrow[0] and each > 1_300 else send(self, data, each, address)

        monkeypatch.setattr(DatagramSocket, "send", narrowed)
        one.channels[1].send(payloads(1)[-1])
        await until(lambda: sender.payload_bytes == 1_160)
        assert two.received == []
        narrow[0] = False  # it carries fragments
        await until(lambda: two.received == [payloads(1)[-1]])
        await until(lambda: sender.payload_bytes == 15_972)


@pytest.mark.parametrize("kinds", [("fast", "small"), ("fragmented", "fast")])
async def test_packets_stay_small_if_the_peer_wants_it_or_ip_may_cut_them(kinds):
    async with pair(*kinds) as (one, _):
        await asyncio.sleep(0.2)
        assert one.sctp.association.sender.payload_bytes == rtcsctptransport.USERDATA_MAX_LENGTH


async def test_an_endless_message_ends_the_association():
    async with pair("fast", "fast") as (one, two):
        association = one.sctp.association
        tsn = association.sender.next_tsn
        for i in range(300):
            flags = 0 if i else 2
            chunk = DataChunk(flags, (tsn + i) % 2**32, 1, 0, 53, bytes(1160))
            one.sctp.transport.send_packets([data_packet(association.address, chunk)])
            await asyncio.sleep(0)
        await asyncio.wait_for(two.closed.wait(), 10)
        assert two.received == []


async def test_a_handler_that_fails_ends_the_association_and_nothing_else(caplog):
    async with pair("fast", "fast") as (one, two):
        two.channels[0].on("message", lambda _: 1 / 0)
        one.channels[0].send(b"x")
        await asyncio.wait_for(two.closed.wait(), 10)
        assert "the association ends" in caplog.text


@pytest.mark.parametrize("kind", ["fast", "portable"])
async def test_garbage_from_elsewhere_is_ignored(kind: str):
    async with pair("fast", kind) as (one, two):
        transport: FastDtlsTransport = two.sctp.transport
        port = transport.transport._connection._nominated[1].protocol
        to = port.transport.get_extra_info("sockname")
        loop = asyncio.get_running_loop()
        stranger, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
        )
        rng = random.Random(1)
        for first in (0, 1, 20, 22, 23, 63, 64, 128, 255):
            for length in (0, 1, 12, 13, 14, 100, 1200, 30_000):
                stranger.sendto(bytes([first]) + rng.randbytes(length), to)
        stranger.close()
        for data in payloads(4):
            one.channels[0].send(data)
        await until(lambda: two.received == payloads(4), 30)


async def test_what_was_buffered_is_told():
    async with pair("fast", "fast") as (one, two):
        channel = one.channels[1]
        low = asyncio.Event()
        channel.bufferedAmountLowThreshold = 100_000
        channel.on("bufferedamountlow", low.set)
        for _ in range(20):
            channel.send(bytes(200_000))
        assert channel.bufferedAmount == 4_000_000
        await asyncio.wait_for(low.wait(), 10)
        assert channel.bufferedAmount <= 100_000
        await until(lambda: len(two.received) == 20)
