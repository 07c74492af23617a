"""Finding the room that nodes behind this node's public address meet in.

May import: errors, signaling_socket, and `signaling.messages`.
"""

from __future__ import annotations

import aiohttp
from yarl import URL

from p2pnode.errors import RoomCodeError
from p2pnode.net.signaling_socket import ask_group, connect, greeting, in_time
from signaling.messages import Group

_REASONS = {
    "private": (
        "The server sees this node under a private address (its own network, a carrier's, or a "
        "proxy's), which strangers may share; so it introduces nobody here without a code."
    ),
    "proxy": (
        "Between this node and the server stands a proxy, whose address strangers share; so the "
        "server introduces nobody here without a code."
    ),
    "none": "No node behind this public address has opened a group.",
}
_INSTEAD = (
    "Use a room code: the first machine runs `python -m p2pnode join` and prints the command for "
    "the others."
)


async def find_nearby(url: URL, proposed: bytes, *, guest: bool) -> bytes:
    """Id of the room to enter: `proposed` if this node is the first here.

    Raises RoomCodeError where nodes are not introduced without a code, and for a `guest` that is
    the first; else like `SignalingClient`.
    """
    group = await _find_group(url, None if guest else proposed)
    if group.room is None:
        raise RoomCodeError(f"{_REASONS.get(group.reason, _REASONS['proxy'])} {_INSTEAD}")
    return group.room


async def _find_group(url: URL, proposed: bytes | None) -> Group:
    async with aiohttp.ClientSession() as session:
        socket = await connect(session, url)

        async def ask() -> Group:
            await greeting(socket, url)
            return await ask_group(socket, url, proposed)

        try:
            return await in_time(url, ask())
        finally:
            await socket.close()
