"""The running server on loopback: sockets, pages, ends of connections, limits that need both."""

import asyncio
import dataclasses
import gc
import logging
import socket
import ssl

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from multidict import CIMultiDict

from p2pnode.protocol.identity import Identity
from signaling import app as app_module
from signaling.app import BindError, CertificateError, SignalingServer, tls_context
from signaling.grouping import parse_network
from signaling.limits import LIMITS
from signaling.messages import (
    MESSAGE_BYTES,
    PROTOCOL,
    Challenge,
    Group,
    IceServer,
    Nearby,
    Publish,
    Relay,
    Relayed,
    View,
    Welcome,
    decode_from_server,
    encode,
)
from signaling.outgoing import Outgoing
from tests.signaling.peers import register, roster, self_signed

SOON = 30.0
"""Seconds after which a test gives up; nothing here takes one on an idle machine."""


@pytest.fixture
async def server():
    async with SignalingServer("127.0.0.1", 0) as running:
        yield running


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


async def receive(ws):
    async with asyncio.timeout(SOON):
        return decode_from_server(await ws.receive_bytes())


async def receive_until(ws, wanted):
    """The next message for which `wanted` holds."""
    while not wanted(message := await receive(ws)):
        pass
    return message


async def until(condition):
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def join(http, server, identity, **options):
    ws = await http.ws_connect(f"{server.url}/ws", max_msg_size=0)
    challenge = await receive(ws)
    assert isinstance(challenge, Challenge)
    await ws.send_bytes(encode(register(identity, challenge.nonce, **options)))
    assert isinstance(await receive(ws), Welcome)
    return ws


async def closed(ws):
    """The close code, once the server has ended the connection."""
    async with asyncio.timeout(SOON):
        while (await ws.receive()).type not in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
            aiohttp.WSMsgType.ERROR,
        ):
            pass
    return ws.close_code


async def test_two_nodes_meet(http, server):
    host, guest = Identity.ephemeral(), Identity.ephemeral()
    h = await join(http, server, host)
    assert (await receive(h)).role == "host"
    g = await join(http, server, guest)
    assert await receive(g) == View("waiting", host.peer_id)
    assert (await receive(h)).waiting == (guest.peer_id,)
    await g.send_bytes(encode(Relay(host.peer_id, b"sealed")))
    assert await receive(h) == Relayed(guest.peer_id, b"sealed")
    await h.send_bytes(encode(Publish(roster(host, guest))))
    assert (await receive(g)).role == "member"
    await g.close()
    view = await receive_until(h, lambda message: len(message.members) == 1)
    assert view.members == (host.peer_id,)


async def test_nonces_are_fresh(http, server):
    sockets = [await http.ws_connect(f"{server.url}/ws") for _ in range(5)]
    assert len({(await receive(ws)).nonce for ws in sockets}) == 5


async def test_recommended_ice_servers_and_own_stun_port(http):
    ice = (IceServer(("turn:example.org",), "user", "word"),)
    async with SignalingServer("127.0.0.1", 0, ice=ice) as server:
        ws = await http.ws_connect(f"{server.url}/ws")
        challenge = await receive(ws)
        await ws.send_bytes(encode(register(Identity.ephemeral(), challenge.nonce)))
        assert await receive(ws) == Welcome(ice, server.port)


async def test_oversized_message_ends_the_connection(http, server):
    ws = await join(http, server, Identity.ephemeral())
    await ws.send_bytes(bytes(MESSAGE_BYTES + 1))
    assert await closed(ws) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG


async def test_text_and_garbage_end_the_connection(http, server):
    ws = await http.ws_connect(f"{server.url}/ws")
    await ws.send_str("hello")
    await closed(ws)
    ws = await http.ws_connect(f"{server.url}/ws")
    await ws.send_bytes(b"hello")
    assert await closed(ws) == aiohttp.WSCloseCode.POLICY_VIOLATION


async def test_nothing_of_a_closed_connection_stays_in_memory(http, server):
    """A flood of connections must not pile up behind timers of aiohttp."""

    def alive() -> int:
        gc.collect()
        # Not isinstance: it would ask dead weak proxies, which other tests leave, for their class.
        return sum(type(thing) is web.WebSocketResponse for thing in gc.get_objects())

    before = alive()
    for _ in range(20):
        ws = await http.ws_connect(f"{server.url}/ws")
        await ws.send_bytes(b"junk")
        assert await closed(ws) == aiohttp.WSCloseCode.POLICY_VIOLATION
    await until(lambda: not server._sockets)
    await asyncio.sleep(0.1)
    assert alive() - before <= 1


async def test_broken_connections_are_noticed(http, server):
    host, guest = Identity.ephemeral(), Identity.ephemeral()
    h = await join(http, server, host)
    async with aiohttp.ClientSession() as other:
        ws = await join(other, server, guest)
        await receive_until(h, lambda message: message.waiting)
        ws._response.connection.transport.abort()
        await receive_until(h, lambda message: not message.waiting)


async def test_silent_connections_are_noticed(http, monkeypatch):
    monkeypatch.setattr(app_module, "HEARTBEAT", 0.2)
    host, guest = Identity.ephemeral(), Identity.ephemeral()
    async with SignalingServer("127.0.0.1", 0) as server:
        h = await join(http, server, host)
        async with aiohttp.ClientSession() as other:
            await join(other, server, guest)  # it reads no more, so it answers no ping
            await receive_until(h, lambda message: message.waiting)
            await receive_until(h, lambda message: not message.waiting)


async def test_stop_with_open_sockets_tells_everyone(http):
    server = SignalingServer("127.0.0.1", 0)
    await server.start()
    joined = [await join(http, server, Identity.ephemeral()) for _ in range(3)]
    unregistered = await http.ws_connect(f"{server.url}/ws")
    raw = socket.create_connection(("127.0.0.1", server.port))
    deaf = await asyncio.open_connection("127.0.0.1", server.port)  # never answers a close
    deaf[1].write(
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    await deaf[0].readuntil(b"\r\n\r\n")
    codes = asyncio.gather(*(closed(ws) for ws in [*joined, unregistered]))
    async with asyncio.timeout(SOON):
        await server.stop()
        assert await codes == [aiohttp.WSCloseCode.GOING_AWAY] * 4
    raw.close()
    deaf[1].close()
    async with SignalingServer("127.0.0.1", server.port):
        pass  # the port is free again at once


async def test_members_return_to_a_restarted_server(http):
    host, guest = Identity.ephemeral(), Identity.ephemeral()
    async with SignalingServer("127.0.0.1", 0) as server:
        await join(http, server, host)
    async with SignalingServer("127.0.0.1", server.port) as server:
        blob = roster(host, guest, epoch=3)
        g = await join(http, server, guest, want="guest", blob=blob)
        assert (await receive(g)).role == "member"
        h = await join(http, server, host, want="guest", blob=blob)
        assert (await receive(h)).role == "host"


async def test_taken_port_is_a_sentence(server):
    with pytest.raises(BindError, match=f"port {server.port} .TCP"):
        await SignalingServer("127.0.0.1", server.port).start()


async def test_taken_udp_port_is_a_sentence():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        with socket.create_server(("127.0.0.1", 0)) as tcp:  # a port that is free for TCP
            port = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", port))
        with pytest.raises(BindError, match=f"port {port} .UDP"):
            await SignalingServer("127.0.0.1", port).start()
        with socket.create_server(("127.0.0.1", port)):
            pass  # nothing is left listening


async def test_foreign_address_is_a_sentence():
    for host in ("192.0.2.1", "no.such.name.invalid"):
        with pytest.raises(BindError):
            await SignalingServer(host, 0).start()


async def test_url_of_a_server_that_listens_everywhere():
    async with SignalingServer("0.0.0.0", 0) as server, aiohttp.ClientSession() as session:
        assert server.url == f"http://127.0.0.1:{server.port}"
        async with session.get(f"{server.url}/healthz") as response:
            assert response.status == 200


async def test_connection_cap_reaches_the_socket(http):
    limits = dataclasses.replace(LIMITS, connections=2)
    async with SignalingServer("127.0.0.1", 0, limits=limits) as server:
        sockets = [await http.ws_connect(f"{server.url}/ws") for _ in range(3)]
        assert (await receive(sockets[2])).reason == "busy"
        assert await closed(sockets[2]) == aiohttp.WSCloseCode.POLICY_VIOLATION
        await sockets[0].close()
        await until(lambda: server._rooms.connections < 2)
        assert isinstance(await receive(await http.ws_connect(f"{server.url}/ws")), Challenge)
        assert len(server._outgoing) == len(server._sockets) == 2


async def test_idle_tcp_connections_are_closed(http, monkeypatch):
    monkeypatch.setattr(app_module, "_TICK", 0.05)
    limits = dataclasses.replace(LIMITS, unused_seconds=0.2)
    async with SignalingServer("127.0.0.1", 0, limits=limits) as server:
        ws = await join(http, server, Identity.ephemeral())
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\n")  # and then nothing more
        async with asyncio.timeout(SOON):
            assert await reader.read() == b""
        writer.close()
        await ws.ping()
        assert isinstance(await receive(ws), View), "WebSockets stay"
        assert not ws.closed


async def test_idle_tcp_connections_are_capped(monkeypatch):
    monkeypatch.setattr(app_module, "_TICK", 0.05)
    limits = dataclasses.replace(LIMITS, unused_connections=3)
    async with SignalingServer("127.0.0.1", 0, limits=limits) as server:
        pairs = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
        async with asyncio.timeout(SOON):
            assert [await reader.read() for reader, _ in pairs[:2]] == [b"", b""]
        await until(lambda: len(server._runner.server.connections) == 3)
        assert not pairs[4][0].at_eof()
        for _, writer in pairs:
            writer.close()


class SlowSocket:
    """A WebSocket whose peer reads nothing until allowed."""

    def __init__(self):
        self.allowed = asyncio.Event()
        self.sent = []
        self.code = None

    async def send_bytes(self, raw):
        await self.allowed.wait()
        self.sent.append(raw)

    async def close(self, code):
        self.code = code


class Transport:
    aborted = False

    def abort(self):
        self.aborted = True


@pytest.fixture
async def slow():
    ws, transport = SlowSocket(), Transport()
    limits = dataclasses.replace(LIMITS, outgoing_bytes=1000, outgoing_messages=8)
    outgoing = Outgoing(ws, transport, limits)
    task = asyncio.create_task(outgoing.run())
    yield ws, transport, outgoing
    task.cancel()


async def test_slow_reader_loses_envelopes_first_then_its_connection(slow):
    ws, transport, outgoing = slow
    for _ in range(100):
        outgoing.put(bytes(100), may_drop=True)
    assert outgoing._bytes <= 500
    assert not transport.aborted, "a room must not be able to have a member cut off"
    for _ in range(3):
        outgoing.put(bytes(100), may_drop=False)
    assert not transport.aborted
    for _ in range(10):
        outgoing.put(bytes(100), may_drop=False)
    assert transport.aborted
    assert outgoing._bytes <= 1000
    assert ws.sent == []


async def test_number_of_unsent_messages_is_bounded_too(slow):
    _, transport, outgoing = slow
    for _ in range(9):
        outgoing.put(b"", may_drop=False)
    assert transport.aborted
    assert len(outgoing._queue) <= 8


async def test_what_was_queued_is_sent_before_the_close(slow):
    ws, _, outgoing = slow
    outgoing.put(b"last words", may_drop=False)
    outgoing.close()
    ws.allowed.set()
    await until(lambda: ws.code is not None)
    assert ws.sent == [b"last words"]
    outgoing.put(bytes(900), may_drop=False)
    assert outgoing._bytes == 900, "sent bytes no longer count"


async def test_member_that_does_not_read_loses_envelopes_and_harms_nobody(http):
    """Real sockets: what the kernel and aiohttp buffer is not bounded by us, but is bounded."""
    limits = dataclasses.replace(
        LIMITS, outgoing_bytes=200_000, bytes_burst=1e9, messages_burst=1e6
    )
    host, deaf = Identity.ephemeral(), Identity.ephemeral()
    async with SignalingServer("127.0.0.1", 0, limits=limits) as server:
        h = await join(http, server, host)
        async with aiohttp.ClientSession() as other:
            ws = await join(other, server, deaf)
            ws._response.connection.transport.pause_reading()
            await h.send_bytes(encode(Publish(roster(host, deaf))))
            letter = encode(Relay(deaf.peer_id, bytes(60_000)))
            for _ in range(300):
                await h.send_bytes(letter)
            number = next(
                n for n, c in server._rooms._connections.items() if c.peer == deaf.peer_id
            )
            assert server._outgoing[number]._bytes <= 200_000
            assert not h.closed
            ws._response.connection.transport.abort()
            await receive_until(h, lambda m: isinstance(m, View) and len(m.members) == 1)


# Addresses, as real requests bring them


LOOPBACK = (parse_network("127.0.0.0/8"),)
ROOM_A, ROOM_B = b"a" * 32, b"b" * 32


async def group_of(http, server, room, *headers):
    """What a node with these headers is told, and the origin that the server noted."""
    ws = await http.ws_connect(f"{server.url}/ws", headers=CIMultiDict(headers))
    assert isinstance(await receive(ws), Challenge)
    await ws.send_bytes(encode(Nearby(room)))
    answer = await receive(ws)
    origin = next(iter(server._rooms._connections.values())).origin
    await ws.close()
    await until(lambda: server._rooms.connections == 0)
    return answer, origin.key


async def test_headers_of_strangers_change_nothing(http, server):
    for headers in (
        [("X-Forwarded-For", "8.8.4.4")],
        [("X-Forwarded-For", "1.1.1.1, 8.8.4.4"), ("X-Forwarded-For", "8.8.4.4")],
        [("Forwarded", "for=8.8.4.4")],
    ):
        assert await group_of(http, server, ROOM_A, *headers) == (Group(None, "proxy"), "127.0.0.1")
    assert await group_of(http, server, ROOM_A) == (Group(None, "private"), "127.0.0.1")


async def test_households_behind_a_named_proxy(http):
    async with SignalingServer("127.0.0.1", 0, proxies=LOOPBACK) as server:
        for room, value, group, key in (
            (ROOM_A, "9.9.9.9, 2a00:1450:1:2::a", ROOM_A, "2a00:1450:1:2::/64"),
            (ROOM_B, "[2a00:1450:1:2::b]:99", ROOM_A, "2a00:1450:1:2::/64"),
            (ROOM_B, "2a00:1450:1:3::a, 127.0.0.1", ROOM_B, "2a00:1450:1:3::/64"),
        ):
            found = await group_of(http, server, room, ("X-Forwarded-For", value))
            assert found == (Group(group), key)
        junk = await group_of(http, server, ROOM_A, ("X-Forwarded-For", "8.8.4.4, ?"))
        assert junk == (Group(None, "proxy"), "127.0.0.1")
        lines = [("X-Forwarded-For", "8.8.4.4"), ("X-Forwarded-For", "2a00:1450:1:3::c")]
        assert (await group_of(http, server, ROOM_A, *lines))[0] == Group(ROOM_B)
        long = await group_of(http, server, ROOM_A, ("X-Forwarded-For", "x," * 3000 + "8.8.8.8"))
        assert long == (Group(ROOM_A), "8.8.8.8")


async def test_oversized_header_is_refused_by_http(http):
    async with SignalingServer("127.0.0.1", 0, proxies=LOOPBACK) as server:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="400"):
            await http.ws_connect(
                f"{server.url}/ws", headers={"X-Forwarded-For": "1," * 5_000 + "8.8.8.8"}
            )


async def test_limits_follow_the_address_behind_the_proxy(http):
    limits = dataclasses.replace(LIMITS, connections_per_address=1)
    async with SignalingServer("127.0.0.1", 0, proxies=LOOPBACK, limits=limits) as server:
        firsts = []
        for value in ("8.8.8.8", "2a00:1450:1:2::a"):
            headers = {"X-Forwarded-For": value}
            firsts.append(await http.ws_connect(f"{server.url}/ws", headers=headers))
            assert isinstance(await receive(firsts[-1]), Challenge)
        for value in ("1.1.1.1, 8.8.8.8", "2a00:1450:1:2::b"):
            headers = {"X-Forwarded-For": value}
            ws = await http.ws_connect(f"{server.url}/ws", headers=headers)
            assert (await receive(ws)).reason == "busy"


async def test_private_addresses_group_if_the_operator_says_so(http):
    async with SignalingServer("127.0.0.1", 0, group_private=True) as server:
        assert await group_of(http, server, ROOM_A) == (Group(ROOM_A), "127.0.0.1")


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("tls"))


async def test_tls(http, certificate):
    chain, key = certificate
    trusting = ssl.create_default_context(cafile=str(chain))
    server = SignalingServer("127.0.0.1", 0, tls=tls_context(chain, key))
    await server.start()
    try:
        assert server.url == f"https://127.0.0.1:{server.port}"
        async with http.get(f"{server.url}/healthz", ssl=trusting) as response:
            assert response.status == 200
        ws = await http.ws_connect(f"{server.url}/ws", ssl=trusting)
        assert isinstance(await receive(ws), Challenge)
        with pytest.raises(aiohttp.ClientError):
            await http.get(f"http://127.0.0.1:{server.port}/healthz")
        code = asyncio.create_task(closed(ws))
    finally:
        await server.stop()
    assert await code == aiohttp.WSCloseCode.GOING_AWAY


async def test_unfinished_tls_handshakes_are_ended(certificate):
    limits = dataclasses.replace(LIMITS, tls_seconds=0.2)
    async with SignalingServer("127.0.0.1", 0, limits=limits, tls=tls_context(*certificate)) as s:
        reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
        async with asyncio.timeout(SOON):
            assert await reader.read() == b""
        writer.close()


def test_certificates_of_no_use_are_sentences(certificate, tmp_path):
    chain, key = certificate
    other = self_signed(tmp_path)[1]
    with pytest.raises(CertificateError, match=r"Cannot read .*missing"):
        tls_context(tmp_path / "missing", key)
    for pair in ((chain, other), (key, key), (chain, chain)):
        with pytest.raises(CertificateError, match="PEM"):
            tls_context(*pair)
    locked = tmp_path / "locked.pem"
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    with pytest.raises(CertificateError, match="pass phrase"):
        tls_context(chain, locked)


# Pages


async def test_page_says_what_this_is_and_loads_nothing_from_elsewhere(http, server):
    async with http.get(f"{server.url}/") as response:
        text = await response.text()
        assert response.status == 200
        assert response.content_type == "text/html"
        policy = response.headers["Content-Security-Policy"]
    assert "python -m p2pnode join --room" in text
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<script" not in text
    assert "<form" not in text
    assert "<input" not in text
    assert "//" not in text.replace("<!doctype html>", "")
    async with http.get(f"{server.url}/style.css") as response:
        assert response.content_type == "text/css"
        assert "url(" not in await response.text()


async def test_every_answer_carries_the_protective_headers(http, server):
    for path in ("/", "/style.css", "/healthz"):
        async with http.get(server.url + path) as response:
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Referrer-Policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]


async def test_health(http, server):
    async with http.get(f"{server.url}/healthz") as response:
        assert await response.json() == {"status": "ok", "protocol": PROTOCOL}


@pytest.mark.parametrize(
    "path", ["/nothing", "/static/index.html", "/../pyproject.toml", "/%2e%2e/x"]
)
async def test_nothing_else_is_served(http, server, path):
    async with http.get(server.url + path) as response:
        assert response.status == 404


async def test_plain_request_to_the_socket_path(http, server):
    async with http.get(f"{server.url}/ws") as response:
        assert response.status == 400


async def test_pages_in_browsers_cannot_take_places(http, server):
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        await http.ws_connect(f"{server.url}/ws", origin="http://example.org")


async def test_log_holds_no_addresses_rooms_or_names(http, caplog):
    caplog.set_level(logging.DEBUG)
    identity = Identity.ephemeral()
    async with SignalingServer("127.0.0.1", 0) as server:
        ws = await join(http, server, identity)
        async with http.get(f"{server.url}/") as response:
            assert response.status == 200
        await ws.send_bytes(b"junk")
        await closed(ws)
    text = caplog.text
    assert "127.0.0.1" not in text
    assert "72" * 8 not in text  # the room id, in hexadecimal
    assert identity.peer_id.hex()[:8] not in text
