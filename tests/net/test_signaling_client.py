"""The signaling client: real servers, restarted servers, and things that are no servers."""

import asyncio
import contextlib
import random
import secrets
import socket
import ssl
import sys

import pytest
from aiohttp import web

from p2pnode.errors import (
    IdentityError,
    OtherHostError,
    RefusedError,
    RoomCodeError,
    ServerUnreachableError,
    VersionMismatchError,
)
from p2pnode.net import signaling_client, signaling_socket
from p2pnode.net.nearby import find_nearby
from p2pnode.net.signaling_client import Lent, Offline, Registered, SignalingClient
from p2pnode.net.signaling_url import server_url
from p2pnode.protocol import admit
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.admit import Admission
from p2pnode.protocol.identity import Identity
from signaling.app import SignalingServer, tls_context
from signaling.data.folder import Folder
from signaling.messages import (
    PROTOCOL,
    Challenge,
    IceServer,
    Refused,
    Relayed,
    View,
    Welcome,
    decode_from_node,
    encode,
)
from signaling.turn import TurnLender
from tests.signaling.peers import self_signed

ROOM, SECRET = b"r" * 32, b"s" * 32
SOON = 30.0
"""Seconds after which a test gives up."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(signaling_client, "FIRST_DELAY", 0.02)
    monkeypatch.setattr(signaling_client, "MAX_DELAY", 0.2)


def client_of(server, identity=None, room=ROOM):
    address = server if isinstance(server, str) else server.url
    return SignalingClient(
        server_url(address), identity or Identity.ephemeral(), room, rng=random.Random(1)
    )


async def next_of(client, kind, wanted=lambda _: True):
    """The next event of a kind for which `wanted` holds."""
    async with asyncio.timeout(SOON):
        async for event in client:
            if isinstance(event, kind) and wanted(event):
                return event
    raise AssertionError("events ended")


class Node:
    """A node's signaling side as the real node runs it: client, admission, effects."""

    def __init__(self, name, server, approve="all", identity=None, saved=None):
        self.identity = identity or Identity.ephemeral()
        self.id = self.identity.peer_id
        self.client = client_of(server, self.identity)
        self.admission = Admission(
            *(self.identity, ROOM, SECRET),
            name=name,
            approve=approve,
            random=secrets.token_bytes,
            saved=saved,
        )
        self.log = []
        self.carry_out(self.admission.start())
        self.changed = asyncio.Event()
        self.view = None

    async def __aenter__(self):
        await self.client.__aenter__()
        self.tasks = [asyncio.create_task(self.run()), asyncio.create_task(self.tick())]
        return self

    async def __aexit__(self, *details):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.__aexit__(*details)

    async def run(self):
        loop = asyncio.get_running_loop()
        async for event in self.client:
            if isinstance(event, View):
                self.view = event
                self.carry_out(self.admission.on_view(event, loop.time()))
            elif isinstance(event, Relayed):
                out = self.admission.on_relayed(event.sender, event.sealed, loop.time())
                self.carry_out(out)
            elif isinstance(event, Offline):
                self.view = None
            self.changed.set()

    async def tick(self):
        while True:
            await asyncio.sleep(0.1)
            self.carry_out(self.admission.on_tick(asyncio.get_running_loop().time()))
            self.changed.set()

    def carry_out(self, out):
        self.log += out
        for effect in out:
            if isinstance(effect, effects.Send):
                self.client.send_envelope(effect.to, effect.sealed)
            elif isinstance(effect, effects.Publish):
                self.client.publish_roster(effect.signed)
            elif isinstance(effect, effects.DismissPeer):
                self.client.dismiss(effect.peer)
            elif isinstance(effect, effects.RosterChanged):
                self.client.set_roster(effect.roster.signed)

    async def until(self, condition):
        async with asyncio.timeout(SOON):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()

    def has_members(self, *nodes):
        roster = self.admission.roster
        return roster is not None and roster.ids == tuple(node.id for node in nodes)


# With a real server


async def test_events_of_a_registration():
    async with SignalingServer("127.0.0.1", 0) as server, client_of(server) as client:
        registered = await next_of(client, Registered)
        assert registered.ice == (IceServer((f"stun:127.0.0.1:{server.port}",)),)
        assert (await next_of(client, View)).role == "host"


async def test_recommended_ice_servers_are_passed_on():
    ice = (IceServer(("turn:example.org",), "user", "word"),)
    async with SignalingServer("127.0.0.1", 0, ice=ice) as server, client_of(server) as client:
        assert (await next_of(client, Registered)).ice[1:] == ice


async def test_turn_servers_are_lent_and_kept_through_a_reconnection():
    turn = TurnLender(["turn:example.org"], "a long enough secret")
    serving = SignalingServer("127.0.0.1", 0, turn=turn)
    async with serving as server, client_of(server) as host, client_of(server):
        stun, loan = (await next_of(host, Lent)).ice
        assert stun.urls == (f"stun:127.0.0.1:{server.port}",)
        assert loan.urls == ("turn:example.org",)
        assert loan.username
        assert loan.credential
        await server.stop()
        await server.start()
        assert (await next_of(host, Registered)).ice == (stun, loan)


async def test_text_is_offered_anew_after_a_reconnection(tmp_path):
    serving = SignalingServer("127.0.0.1", 0, data=[Folder(tmp_path)] * 2)
    async with serving as server, client_of(server) as host, client_of(server):
        first = (await next_of(host, Lent)).data
        assert first.sources == 2
        await server.stop()
        await server.start()
        assert (await next_of(host, Lent)).data.token != first.token


async def test_envelopes_and_dismissal():
    async with SignalingServer("127.0.0.1", 0) as server:
        one, two = Identity.ephemeral(), Identity.ephemeral()
        async with client_of(server, one) as host, client_of(server, two) as guest:
            await next_of(host, View, lambda view: view.waiting)
            await next_of(guest, View)
            guest.send_envelope(one.peer_id, b"sealed")
            assert await next_of(host, Relayed) == Relayed(two.peer_id, b"sealed")
            host.dismiss(two.peer_id)
            with pytest.raises(RefusedError):
                await next_of(guest, Offline)
        with pytest.raises(RefusedError):
            async with client_of(server, two):
                pass


async def test_guest_founds_no_room():
    async with SignalingServer("127.0.0.1", 0) as server:
        url = server_url(server.url)
        with pytest.raises(RoomCodeError, match="Check the code"):
            async with SignalingClient(url, Identity.ephemeral(), ROOM, guest=True):
                pass
        async with client_of(server) as host:
            await next_of(host, View)
            async with SignalingClient(url, Identity.ephemeral(), ROOM, guest=True) as guest:
                assert (await next_of(guest, View)).role == "waiting"


async def test_two_processes_with_one_identity_are_told():
    identity = Identity.ephemeral()
    async with SignalingServer("127.0.0.1", 0) as server, client_of(server, identity) as first:
        await next_of(first, View)
        async with client_of(server, identity) as second:
            with pytest.raises(IdentityError, match="identity file of its own"):
                await next_of(first, Offline)
            assert (await next_of(second, View)).role == "host"


async def test_room_is_kept_through_restarts_of_the_server():
    """Server killed; an empty one on the same port: same roles, and a newcomer can join."""
    server = SignalingServer("127.0.0.1", 0)
    await server.start()
    async with Node("host", server) as host, Node("one", server) as one:
        await one.until(lambda node: node.has_members(host, one))
        async with Node("two", server) as two:
            await two.until(lambda node: node.has_members(host, one, two))
            for _ in range(2):
                await server.stop()
                server = SignalingServer("127.0.0.1", server.port)
                for node in (host, one, two):
                    await node.until(lambda n: n.view is None)
                await server.start()
                for node, role in ((host, "host"), (one, "member"), (two, "member")):
                    await node.until(lambda n: n.view is not None and len(n.view.members) == 3)
                    assert node.view.role == role
            async with Node("late", server) as late:
                await late.until(lambda node: node.has_members(host, one, two, late))
                await two.until(lambda node: node.has_members(host, one, two, late))
                late.carry_out(late.admission.signal(two.id, "offer", b"sdp"))
                await two.until(lambda node: node.log and effects.Signal in map(type, node.log))
                assert effects.Signal(late.id, "offer", b"sdp") in two.log
    await server.stop()


async def test_killed_server_process_and_a_new_empty_one():
    """The same with a process that is killed: no goodbye, no memory."""

    async def start(port):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "signaling", "serve"),
            *("--host", "127.0.0.1", "--port", str(port)),
            stdout=asyncio.subprocess.PIPE,
        )
        line = (await process.stdout.readline()).decode()
        return process, int(line.partition("port ")[2].split()[0])

    process, port = await start(0)
    try:
        url = f"http://127.0.0.1:{port}"
        async with Node("host", url) as host, Node("one", url) as one:
            await one.until(lambda node: node.has_members(host, one))
            process.kill()
            await process.wait()
            for node in (host, one):
                await node.until(lambda n: n.view is None)
            process, _ = await start(port)
            for node in (host, one):
                await node.until(lambda n: n.view is not None and len(n.view.members) == 2)
            async with Node("late", url) as late:
                await late.until(lambda node: node.has_members(host, one, late))
                await one.until(lambda node: node.has_members(host, one, late))
    finally:
        process.kill()
        await process.wait()


async def test_restarted_member_needs_neither_host_nor_the_server_s_memory():
    async with SignalingServer("127.0.0.1", 0) as server:
        port = server.port
        async with Node("host", server) as host, Node("one", server) as one:
            await one.until(lambda node: node.has_members(host, one))
        saved, identity = one.admission.roster, one.identity
    async with (
        SignalingServer("127.0.0.1", port) as server,
        Node("one", server, identity=identity, saved=saved) as again,
    ):
        await again.until(lambda node: node.view is not None)
        assert again.view.role == "member"
        assert again.view.host is None
        back = Node("host", server, "ask", identity=host.identity, saved=host.admission.roster)
        async with back:
            await back.until(lambda node: node.view is not None)
            assert back.view.role == "host"
            assert set(back.view.members) == {back.id, again.id}
            assert not back.admission.waiting
            assert not any(isinstance(effect, effects.Knocked) for effect in back.log)


async def test_restarted_member_refuses_another_host():
    identity = Identity.ephemeral()
    async with SignalingServer("127.0.0.1", 0) as server:
        async with Node("host", server) as host, Node("one", server, identity=identity) as one:
            await one.until(lambda node: node.has_members(host, one))
        saved = one.admission.roster
    # A room with members of its own has settled: it has no early founder that would give way.
    async with (
        SignalingServer("127.0.0.1", 0) as server,
        Node("taker", server) as taker,
        Node("two", server) as two,
    ):
        await two.until(lambda node: node.has_members(taker, two))
        with pytest.raises(OtherHostError, match="another host than the one"):
            await Node("one", server, identity=identity, saved=saved).__aenter__()


async def test_waiting_guest_waits_on_through_a_restart():
    server = SignalingServer("127.0.0.1", 0)
    await server.start()
    async with Node("host", server, "ask") as host, Node("guest", server) as guest:
        await host.until(lambda node: node.admission.waiting)
        await server.stop()
        server = SignalingServer("127.0.0.1", server.port)
        host.view = None
        await server.start()
        await host.until(lambda node: node.view is not None and node.view.waiting)
        assert host.view.role == "host"
        await host.until(lambda node: node.admission.waiting)
        host.carry_out(host.admission.approve(guest.id))
        await guest.until(lambda node: node.has_members(host, guest))
    await server.stop()


async def test_approval_while_the_server_is_away_is_made_good_later(monkeypatch):
    monkeypatch.setattr(admit, "PATIENCE", 0.1)
    server = SignalingServer("127.0.0.1", 0)
    await server.start()
    async with Node("host", server, "ask") as host, Node("guest", server) as guest:
        await host.until(lambda node: node.admission.waiting)
        await server.stop()
        host.carry_out(host.admission.approve(guest.id))
        server = SignalingServer("127.0.0.1", server.port)
        await server.start()
        await guest.until(lambda node: node.has_members(host, guest))
    await server.stop()


async def test_offline_is_reported_and_envelopes_are_dropped():
    server = SignalingServer("127.0.0.1", 0)
    await server.start()
    async with client_of(server) as client:
        await next_of(client, View)
        await server.stop()
        assert "shutting down" in (await next_of(client, Offline)).reason
        client.send_envelope(b"x" * 32, b"sealed")
        assert client._outbox.empty()
        offline = await next_of(client, Offline)
        assert "Nothing listens" in offline.reason
        assert 0 < offline.retry_in <= 0.2


async def test_member_keeps_trying_even_if_a_server_says_it_was_dismissed():
    async def handler(ws):
        await ws.send_bytes(encode(Challenge(PROTOCOL, bytes(32))))
        await ws.receive_bytes()
        await ws.send_bytes(encode(Welcome()))
        await ws.send_bytes(encode(Refused("dismissed", "go away")))

    async with fake_server(handler) as url, client_of(url) as client:
        client.set_roster(b"signed")
        for _ in range(3):
            assert "turned this node away" in (await next_of(client, Offline)).reason


@pytest.mark.parametrize(
    ("role", "want"), [("host", "any"), ("member", "guest"), ("waiting", "guest")]
)
async def test_later_registrations_bring_the_roster_and_found_rooms_only_as_host(role, want):
    registrations = []

    async def conversation(ws):
        await ws.send_bytes(encode(Challenge(PROTOCOL, bytes(32))))
        registrations.append(decode_from_node(await ws.receive_bytes()))
        await ws.send_bytes(encode(Welcome()))
        await ws.send_bytes(encode(View(role, None)))

    async with fake_server(conversation) as url, client_of(url) as client:
        await next_of(client, View)
        client.publish_roster(b"signed")
        await next_of(client, View)
    assert (registrations[0].want, registrations[0].roster) == ("any", None)
    assert (registrations[1].want, registrations[1].roster) == (want, b"signed")


async def test_retries_are_spread_and_capped(monkeypatch):
    monkeypatch.setattr(signaling_client, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(signaling_client, "MAX_DELAY", 0.01)
    server = SignalingServer("127.0.0.1", 0)
    await server.start()
    async with client_of(server) as client:
        await next_of(client, View)
        await server.stop()
        delays = [(await next_of(client, Offline)).retry_in for _ in range(12)]
    assert max(delays) <= 0.01
    assert min(delays[5:]) >= 0.005
    assert len(set(delays)) > 6


async def test_server_that_falls_silent_is_noticed(monkeypatch):
    monkeypatch.setattr(signaling_socket, "HEARTBEAT", 0.2)

    async def conversation(ws):
        await ws.send_bytes(encode(Challenge(PROTOCOL, bytes(32))))
        await ws.receive_bytes()
        await ws.send_bytes(encode(Welcome()))
        await asyncio.sleep(SOON)  # reads no ping, answers none

    async with fake_server(conversation) as url, client_of(url) as client:
        assert "lost" in (await next_of(client, Offline)).reason


async def test_leaving_while_the_server_is_away():
    server = SignalingServer("127.0.0.1", 0)
    await server.start()
    async with asyncio.timeout(SOON):
        async with client_of(server) as client:
            await next_of(client, View)
            await server.stop()
            await next_of(client, Offline)


async def test_leaving_at_any_moment():
    """Also while a connection is being made, or is just ending by itself."""

    async def conversation(ws):
        await ws.send_bytes(encode(Challenge(PROTOCOL, bytes(32))))
        await ws.receive_bytes()
        await ws.send_bytes(encode(Welcome()))

    async with fake_server(conversation) as url:
        for turns in range(120):
            async with asyncio.timeout(SOON), client_of(url) as client:
                for _ in range(turns % 40):
                    await asyncio.sleep(0)
                if turns % 3 == 0:
                    await next_of(client, Offline)


async def test_outbox_is_bounded():
    async with SignalingServer("127.0.0.1", 0) as server, client_of(server) as client:
        await next_of(client, View)
        for _ in range(10_000):
            client.send_envelope(b"x" * 32, bytes(10))
        assert client._outbox.qsize() <= signaling_client._OUTBOX


# Without a server, or with something else in its place


class fake_server:
    """A WebSocket server with a given conversation. `async with` gives its address."""

    def __init__(self, conversation, path="/ws"):
        self.conversation = conversation
        self.path = path

    async def __aenter__(self):
        async def handler(request):
            ws = web.WebSocketResponse()
            await ws.prepare(request)
            await self.conversation(ws)
            await ws.close()
            return ws

        app = web.Application()
        app.router.add_get(self.path, handler)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def __aexit__(self, *_):
        await self.runner.cleanup()


async def failure(url):
    """The error of a first connection."""
    async with asyncio.timeout(SOON):
        try:
            async with client_of(url):
                raise AssertionError("it should not have connected")
        except AssertionError:
            raise
        except Exception as error:
            return error


async def tcp_server(respond):
    async def serve(reader, writer):
        await respond(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def test_nothing_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = await failure(f"127.0.0.1:{free.getsockname()[1]}")
    assert isinstance(error, ServerUnreachableError)
    assert "Nothing listens" in str(error)
    assert "python -m signaling serve" in str(error)


async def test_unknown_name():
    error = await failure("no-such-host.invalid")
    assert isinstance(error, ServerUnreachableError)
    assert "no-such-host.invalid" in str(error)


@pytest.mark.parametrize(("path", "status"), [("/ws", 200), ("/other", 404)])
async def test_some_other_web_server(path, status):
    app = web.Application()

    async def page(_):
        return web.Response(text="<html>hello")

    app.router.add_get(path, page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    error = await failure(f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()
    assert isinstance(error, ServerUnreachableError)
    assert f"HTTP status {status}" in str(error)
    assert "no signaling server" in str(error)


async def test_tls_expected_where_there_is_none():
    async with SignalingServer("127.0.0.1", 0) as server:
        error = await failure(server.url.replace("http", "https"))
    assert isinstance(error, ServerUnreachableError)
    assert "not with TLS" in str(error)


async def test_certificate_that_is_not_valid(tmp_path):
    # A made-up certificate needs no third-party tool: cryptography is there anyway.
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    day = datetime.datetime(2026, 1, 1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, day, day.replace(year=2046))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "both.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    error = await failure(f"https://localhost:{server.sockets[0].getsockname()[1]}")
    server.close()
    assert isinstance(error, ServerUnreachableError)
    assert "certificate" in str(error)


async def test_something_that_is_not_http():
    async def respond(_, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()

    server, port = await tcp_server(respond)
    error = await failure(f"127.0.0.1:{port}")
    server.close()
    assert isinstance(error, ServerUnreachableError)
    assert "no signaling server" in str(error)


async def test_something_that_never_answers(monkeypatch):
    monkeypatch.setattr(signaling_socket, "ANSWER", 0.2)

    async def respond(reader, _):
        await reader.read()

    server, port = await tcp_server(respond)
    error = await failure(f"127.0.0.1:{port}")
    server.close()
    assert isinstance(error, ServerUnreachableError)
    assert "No answer" in str(error)


async def test_websocket_that_never_greets(monkeypatch):
    monkeypatch.setattr(signaling_socket, "ANSWER", 0.2)

    async def conversation(ws):
        await ws.receive()

    async with fake_server(conversation) as url:
        error = await failure(url)
    assert isinstance(error, ServerUnreachableError)
    assert "does not answer" in str(error)


@pytest.mark.parametrize(("version", "update"), [(PROTOCOL + 1, "node"), (0, "server")])
async def test_other_protocol_version(version, update):
    async def conversation(ws):
        await ws.send_bytes(encode(Challenge(version, bytes(32))))
        await ws.receive()

    async with fake_server(conversation) as url:
        error = await failure(url)
    assert isinstance(error, VersionMismatchError)
    assert str(error).endswith(f"Update the {update}.")


@pytest.mark.parametrize("first", ["text", b"\xc0", encode(Welcome()), bytes(70_000)])
async def test_websocket_that_speaks_something_else(first):
    async def conversation(ws):
        await (ws.send_str(first) if isinstance(first, str) else ws.send_bytes(first))
        await ws.receive()

    async with fake_server(conversation) as url:
        assert isinstance(await failure(url), ServerUnreachableError)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("version", VersionMismatchError),
        ("unavailable", RoomCodeError),
        ("contested", OtherHostError),
        ("dismissed", RefusedError),
        ("busy", ServerUnreachableError),
        ("proof", ServerUnreachableError),
        ("new reason", ServerUnreachableError),
    ],
)
async def test_refusals_become_our_own_sentences(reason, kind):
    async def conversation(ws):
        await ws.send_bytes(encode(Challenge(PROTOCOL, bytes(32))))
        await ws.receive_bytes()
        await ws.send_bytes(encode(Refused(reason, "\x1b[2Jrun\nrm -rf /")))

    async with fake_server(conversation) as url:
        error = await failure(url)
    assert type(error) is kind
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)


async def test_server_that_misbehaves_later_is_left_and_tried_again():
    async def conversation(ws):
        await ws.send_bytes(encode(Challenge(PROTOCOL, bytes(32))))
        await ws.receive_bytes()
        await ws.send_bytes(encode(Welcome()))
        await ws.send_bytes(b"\xff junk")
        await ws.receive()

    async with fake_server(conversation) as url, client_of(url) as client:
        for _ in range(2):
            offline = await next_of(client, Offline)
            assert "not a signaling message" in offline.reason


async def test_pings_of_a_server_that_has_gone_meanwhile_end_nothing():
    """What a node finds when it wakes up after minutes: it answers them to nobody."""

    async def conversation(ws):
        await ws.send_bytes(encode(Challenge(PROTOCOL, bytes(32))))
        await ws.receive_bytes()
        await ws.send_bytes(encode(Welcome()))
        for _ in range(20):
            await ws.ping()
        ws._req.transport.abort()

    async with fake_server(conversation) as url, client_of(url) as client:
        for _ in range(2):
            offline = await next_of(client, Offline)
            assert "was lost" in offline.reason


# Groups by public address


async def test_second_node_nearby_finds_the_room_of_the_first():
    async with SignalingServer("127.0.0.1", 0, group_private=True) as server:
        url = server_url(server.url)
        with pytest.raises(RoomCodeError, match="opened a group"):
            await find_nearby(url, ROOM, guest=True)
        assert await find_nearby(url, ROOM, guest=False) == ROOM
        assert await find_nearby(url, b"x" * 32, guest=False) == ROOM
        assert await find_nearby(url, b"x" * 32, guest=True) == ROOM


async def test_private_addresses_do_not_meet_and_the_sentence_says_what_to_do():
    async with SignalingServer("127.0.0.1", 0) as server:
        with pytest.raises(RoomCodeError, match=r"private address.*Use a room code"):
            await find_nearby(server_url(server.url), ROOM, guest=False)


async def test_nearby_without_a_server_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ServerUnreachableError):
        await find_nearby(server_url(f"127.0.0.1:{port}"), ROOM, guest=False)


async def test_host_opens_its_group_again_at_a_restarted_server():
    identity = Identity.ephemeral()
    async with contextlib.AsyncExitStack() as stack:
        async with SignalingServer("127.0.0.1", 0, group_private=True) as server:
            url = server_url(server.url)
            client = SignalingClient(url, identity, ROOM, nearby=True, rng=random.Random(1))
            await stack.enter_async_context(client)
            assert (await next_of(client, View)).role == "host"
        async with SignalingServer("127.0.0.1", server.port, group_private=True):
            await next_of(client, View)
            assert await find_nearby(url, b"x" * 32, guest=False) == ROOM


async def test_members_do_not_open_groups_and_need_none():
    async with SignalingServer("127.0.0.1", 0) as server:  # no groups here at all
        async with SignalingClient(
            server_url(server.url), Identity.ephemeral(), ROOM, nearby=True
        ) as client:
            assert (await next_of(client, View)).role == "host", "the room is open all the same"
        async with SignalingServer("127.0.0.1", 0, group_private=True) as other:
            client = SignalingClient(server_url(other.url), Identity.ephemeral(), ROOM, nearby=True)
            client._role = "member"
            with pytest.raises(RoomCodeError):
                await client.__aenter__()
            assert await find_nearby(server_url(other.url), b"x" * 32, guest=False) == b"x" * 32


async def test_self_signed_server_is_a_sentence(tmp_path):
    async with SignalingServer("127.0.0.1", 0, tls=tls_context(*self_signed(tmp_path))) as server:
        with pytest.raises(ServerUnreachableError, match=r"certificate .* is not valid"):
            await SignalingClient(server_url(server.url), Identity.ephemeral(), ROOM).__aenter__()
