"""Groups of nodes behind one public address, at a real server."""

import contextlib
import random
import socket

import pytest

from p2pnode.errors import RoomCodeError, ServerUnreachableError
from p2pnode.net.nearby import find_nearby
from p2pnode.net.signaling_client import SignalingClient
from p2pnode.net.signaling_url import server_url
from p2pnode.protocol.identity import Identity
from signaling.app import SignalingServer
from signaling.messages import View
from tests.net.signaling_nodes import ROOM, next_of


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
