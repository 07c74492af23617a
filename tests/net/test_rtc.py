"""One real connection: open, hostile descriptions, size limits, close."""

from __future__ import annotations

import asyncio

import pytest
from aiortc import RTCPeerConnection, RTCSessionDescription

from p2pnode.errors import PeerError
from p2pnode.net.rtc import HELD_BYTES
from p2pnode.protocol.frames import Channel
from tests.net.fakes import until
from tests.net.sides import LOOPBACK, Side, connect, sides


async def test_both_channels_carry_frames_and_closing_is_seen():
    async with sides() as (a, b):
        await connect(a, b)
        a.transport.send(Channel.CONTROL, b"control")
        a.transport.send(Channel.BULK, b"b" * 60_000)
        b.transport.send(Channel.BULK, b"back")
        await until(lambda: len(b.frames) == 2 and a.frames)
        assert sorted(b.frames) == [(Channel.CONTROL, b"control"), (Channel.BULK, b"b" * 60_000)]
        await a.transport.close()
        await until(lambda: b.ended)
        assert isinstance(b.ended[0], ConnectionError)
        assert not a.ended
        with pytest.raises(ConnectionError):
            b.transport.send(Channel.CONTROL, b"late")
        with pytest.raises(ConnectionError):
            a.transport.send(Channel.CONTROL, b"late")


async def test_another_certificate_than_the_described_one_is_refused():
    def forge(sdp: str) -> str:
        lines = sdp.splitlines(keepends=True)
        for i, line in enumerate(lines):
            if line.startswith("a=fingerprint:sha-256"):
                flipped = "0" if line.strip()[-1] != "0" else "1"
                lines[i] = line.strip()[:-1] + flipped + "\r\n"
        return "".join(lines)

    async with sides() as (a, b):
        with pytest.raises(ConnectionError):
            await connect(a, b, alter_answer=forge)
        assert not b.frames
        with pytest.raises(ConnectionError):
            a.transport.send(Channel.CONTROL, b"secret")


async def test_frames_over_the_remote_limit_raise_here_and_the_channel_lives():
    def small(sdp: str) -> str:
        return sdp.replace("a=max-message-size:262144", "a=max-message-size:16384")

    async with sides() as (a, b):
        await connect(a, b, alter_answer=small)
        assert a.transport.max_message == 16_384
        with pytest.raises(ValueError, match="16384"):
            a.transport.send(Channel.BULK, b"x" * 16_385)
        a.transport.send(Channel.BULK, b"x" * 16_384)
        await until(lambda: b.frames)


@pytest.mark.parametrize(
    "alter",
    [
        lambda sdp: "",
        lambda sdp: "nonsense",
        lambda sdp: sdp.replace("a=ice-pwd", "a=ice-xyz"),
        lambda sdp: sdp.replace("a=setup:actpass", "a=setup:holdconn"),
        lambda sdp: sdp.replace("m=application", "m=audio"),
        lambda sdp: sdp.replace("a=sctp-port:5000", "a=sctp-port:x"),
    ],
)
async def test_descriptions_that_make_no_sense_are_the_peers_fault(alter):
    async with sides() as (a, b):
        offer = await a.transport.offer()
        with pytest.raises(PeerError):
            await b.transport.answer(alter(offer))


async def hostile(side: Side) -> RTCPeerConnection:
    """A peer that is not ours, connected to `side`."""
    stranger = RTCPeerConnection()
    for channel in Channel:
        stranger.createDataChannel(channel.name, negotiated=True, id=int(channel))
    LOOPBACK.attach(stranger)
    await stranger.setLocalDescription(await stranger.createOffer())
    answer = await side.transport.answer(stranger.localDescription.sdp)
    await stranger.setRemoteDescription(RTCSessionDescription(answer, "answer"))
    async with asyncio.timeout(20):
        await side.transport.opened
    await until(lambda: stranger.sctp.state == "connected")
    return stranger


async def test_text_and_uninvited_channels_are_the_peers_fault():
    for act, says in (
        (lambda pc: pc.sctp._data_channels[0].send("text"), "sent text"),
        (lambda pc: pc.createDataChannel("more"), "not agreed"),
    ):
        side = Side()
        stranger = await hostile(side)
        try:
            act(stranger)
            await until(lambda: side.ended)  # noqa: B023
            assert isinstance(side.ended[0], PeerError)
            assert says in str(side.ended[0])
        finally:
            await asyncio.gather(stranger.close(), side.transport.close())


async def test_a_message_without_end_is_noticed():
    side = Side()
    stranger = await hostile(side)
    try:
        side.transport.check()
        side.transport._connection.sctp._advertised_rwnd = -HELD_BYTES - 1
        with pytest.raises(PeerError, match="without end"):
            side.transport.check()
    finally:
        await asyncio.gather(stranger.close(), side.transport.close())


async def test_close_returns_while_a_handshake_hangs():
    async with sides() as (a, b):
        await a.transport.offer()
        await b.transport.answer(await Side().transport.offer())
        await asyncio.gather(a.transport.close(), b.transport.close())
        with pytest.raises(ConnectionError):
            await a.transport.opened
