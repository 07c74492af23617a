"""Sequences of messages into the signaling server's decisions, and raw bytes into its sockets."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import aiohttp
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from p2pnode.protocol.identity import Identity
from signaling import rooms
from signaling.app import SignalingServer
from signaling.grouping import Origin
from signaling.limits import LIMITS
from signaling.messages import FromNode, Publish, Relay, Relayed, View, encode
from tests.fuzz import shapes
from tests.fuzz.effort import effort
from tests.signaling.peers import ROOM, register, roster

HOST, MEMBER, MALLORY = (Identity(bytes([byte]) * 32) for byte in b"hmx")
NONCE = b"n" * 32
TIGHT = dataclasses.replace(LIMITS, connections=12, rooms=3, waiting=2, joins_burst=10_000.0)
"""Small bounds, so that short sequences meet them."""

MESSAGES = shapes.values(FromNode)


class Server:
    """The server's core with an honest host and member in it, and strangers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.core = rooms.Rooms(self.now, limits=TIGHT)
        self.sent: dict[int, list[Any]] = {}
        self.open: set[int] = set()
        for number, identity in ((0, HOST), (1, MEMBER)):
            self.connect(number, "192.0.2.1")
            self.frame(number, encode(register(identity, NONCE, blob=roster(HOST, MEMBER))))

    def connect(self, number: int, address: str) -> None:
        self.open.add(number)
        self.carry_out(self.core.on_connect(number, Origin(address, address), NONCE, self.now))

    def frame(self, number: int, raw: bytes) -> None:
        self.now += 0.01
        self.carry_out(self.core.on_frame(number, raw, self.now))

    def leave(self, number: int) -> None:
        self.open.discard(number)
        self.carry_out(self.core.on_disconnect(number, self.now))

    def carry_out(self, effects: list[rooms.Effect]) -> None:
        for effect in effects:
            assert effect.connection in self.open, "nothing is sent to one that is gone"
            if isinstance(effect, rooms.Close):
                self.leave(effect.connection)
            else:
                assert len(encode(effect.message)) <= LIMITS.message_bytes
                self.sent.setdefault(effect.connection, []).append(effect.message)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """What a stranger sends: registrations that prove a key, anything else, and rubbish."""
    match draw(st.integers(0, 4)):
        case 0:
            identity = draw(st.sampled_from([MALLORY, Identity(b"y" * 32)]))
            blobs = [None, roster(HOST, MEMBER), roster(identity), roster(identity, HOST)]
            return encode(
                register(
                    identity,
                    draw(st.sampled_from([NONCE, b"?" * 32])),
                    want=draw(st.sampled_from(["any", "guest"])),
                    room=draw(st.sampled_from([ROOM, b"q" * 32, b"w" * 32])),
                    blob=draw(st.sampled_from(blobs)),
                )
            )
        case 1:
            peer = draw(st.sampled_from([HOST.peer_id, MEMBER.peer_id, MALLORY.peer_id]))
            return encode(
                draw(st.sampled_from([Relay(peer, b"sealed"), Publish(roster(MALLORY, HOST))]))
            )
        case 2:
            return draw(st.binary(max_size=100))
        case _:
            return msgspec.msgpack.encode(draw(MESSAGES | shapes.damaged(MESSAGES)))


@effort(60)
@given(data=st.data())
def test_strangers_cannot_disturb_a_room(data: st.DataObject) -> None:
    server = Server()
    for _ in range(data.draw(st.integers(1, 25))):
        number = data.draw(st.integers(2, 9))
        match data.draw(st.integers(0, 9)):
            case 0:
                server.leave(number)
            case 1:
                server.now += data.draw(st.sampled_from([0.5, 11.0, 700.0]))
                server.carry_out(server.core.on_tick(server.now))
            case _:
                if number not in server.open:
                    server.connect(number, data.draw(st.sampled_from(["192.0.2.9", "192.0.2.8"])))
                server.frame(number, data.draw(frames()))
        assert server.core.connections <= TIGHT.connections
        assert server.core.rooms <= TIGHT.rooms
    assert {0, 1} <= server.open, "the honest two are still there"
    views = [message for message in server.sent[1] if isinstance(message, View)]
    assert set(views[-1].members) == {HOST.peer_id, MEMBER.peer_id}
    for message in server.sent[1]:
        assert not isinstance(message, Relayed), "who waits reaches the host only"
    server.frame(0, encode(Relay(MEMBER.peer_id, b"still")))
    assert server.sent[1][-1] == Relayed(HOST.peer_id, b"still")


HTTP = st.lists(
    st.sampled_from(
        [
            b"GET / HTTP/1.1\r\n",
            b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n",
            b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
            b"Content-Length: 99999999999999\r\n",
            b"X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\n",
            b"Host: \x1b[2J\r\n",
            b"X: " + b"a" * 20_000 + b"\r\n",
            b"\r\n\r\n",
            b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x81\x85\x00\x00\x00\x00hello",
            b"\x00\xff\x16\x03\x01",
        ]
    )
    | st.binary(max_size=30),
    max_size=6,
).map(b"".join)


@effort(20)
@given(requests=st.lists(HTTP, min_size=1, max_size=6))
def test_any_bytes_on_its_sockets_leave_the_server_well(requests: list[bytes]) -> None:
    async def run() -> None:
        async with SignalingServer("127.0.0.1", 0) as server:
            udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=("127.0.0.1", server.port)
            )
            for request in requests:
                udp.sendto(request[:1200])
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(request)
                writer.write_eof()
                writer.close()
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{server.url}/healthz") as answer,
            ):
                assert answer.status == 200
            udp.close()

    asyncio.run(run())
