"""The signaling client at real servers, restarted servers, and servers that misbehave."""

import asyncio
import sys

import pytest

from p2pnode.errors import IdentityError, OtherHostError, RefusedError, RoomCodeError
from p2pnode.net import signaling_client, signaling_socket
from p2pnode.net.signaling_client import Lent, Offline, Registered, SignalingClient
from p2pnode.net.signaling_url import server_url
from p2pnode.protocol import admit
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.identity import Identity
from signaling.app import SignalingServer
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
from tests.net.signaling_nodes import ROOM, SOON, Node, client_of, fake_server, next_of


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(signaling_client, "FIRST_DELAY", 0.02)
    monkeypatch.setattr(signaling_client, "MAX_DELAY", 0.2)


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
