"""One connection to the signaling server: opened, greeted, and its failures put into sentences.

May import: errors, protocol.text, and `signaling.messages`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
import msgspec
from yarl import URL

from p2pnode.errors import (
    IdentityError,
    OtherHostError,
    P2PNodeError,
    RefusedError,
    RoomCodeError,
    ServerUnreachableError,
    VersionMismatchError,
    told,
)
from p2pnode.protocol.text import clean
from signaling.messages import (
    MESSAGE_BYTES,
    PROTOCOL,
    Challenge,
    FromNode,
    FromServer,
    Group,
    Nearby,
    Refused,
    decode_from_server,
    encode,
)

T = TypeVar("T")

ANSWER = 10.0
"""Seconds for the server to connect and to answer each step of the registration."""
HEARTBEAT = 20.0
"""Seconds between WebSocket pings; an unanswered one ends the connection half as long after."""
GOODBYE = 1.0
"""Seconds to wait for the server's half of a close; leaving must not hang on it."""
_LOST = "The connection to the signaling server was lost."


async def connect(session: aiohttp.ClientSession, url: URL) -> aiohttp.ClientWebSocketResponse:
    """Raises ServerUnreachableError."""
    try:
        async with asyncio.timeout(ANSWER):
            return await session.ws_connect(
                url,
                timeout=aiohttp.ClientWSTimeout(ws_close=GOODBYE),
                heartbeat=HEARTBEAT,
                max_msg_size=MESSAGE_BYTES,
                compress=0,
            )
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ServerUnreachableError(_explain(url, error)) from None


async def in_time(url: URL, exchange: Coroutine[Any, Any, T]) -> T:
    """Await an exchange of messages, not for ever. Raises ServerUnreachableError."""
    try:
        async with asyncio.timeout(ANSWER):
            return await exchange
    except TimeoutError:
        raise ServerUnreachableError(
            f"The signaling server at {url} accepts connections but does not answer."
        ) from None


async def greeting(socket: aiohttp.ClientWebSocketResponse, url: URL) -> Challenge:
    """The server's first word. Raises VersionMismatchError if it speaks another protocol."""
    challenge = await _expect(socket, url, Challenge)
    if challenge.protocol != PROTOCOL:
        raise _version_error(challenge.protocol)
    return challenge


async def ask(
    socket: aiohttp.ClientWebSocketResponse, url: URL, question: FromNode, kind: type[T]
) -> T:
    """Send a message and take its answer. Raises P2PNodeError if that is a refusal or of another
    kind."""
    with contextlib.suppress(OSError, aiohttp.ClientError):  # receiving tells what happened
        await socket.send_bytes(encode(question))
    return await _expect(socket, url, kind)


async def ask_group(
    socket: aiohttp.ClientWebSocketResponse, url: URL, proposed: bytes | None
) -> Group:
    """Which room nodes behind this node's public address meet in. If they have none, it is
    `proposed` for a short while, or none."""
    return await ask(socket, url, Nearby(proposed), Group)


async def _expect(socket: aiohttp.ClientWebSocketResponse, url: URL, kind: type[T]) -> T:
    answer = await receive(socket)
    if isinstance(answer, Refused):
        raise refusal(answer)
    if not isinstance(answer, kind):
        raise ServerUnreachableError(f"The server at {url} does not answer as it should.")
    return answer


async def receive(socket: aiohttp.ClientWebSocketResponse) -> FromServer:
    """The next message. Raises ServerUnreachableError when the connection ends or misbehaves."""
    try:
        frame = await socket.receive()
    except (OSError, aiohttp.ClientError):
        # aiohttp answers pings in there, also those that lay here while this machine slept.
        raise ServerUnreachableError(_LOST) from None
    if frame.type is aiohttp.WSMsgType.BINARY:
        try:
            return decode_from_server(frame.data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ServerUnreachableError(
                f"The server sent something that is not a signaling message ({told(error)})."
            ) from None
    if frame.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING):
        if frame.data == aiohttp.WSCloseCode.GOING_AWAY:
            raise ServerUnreachableError("The signaling server is shutting down.")
        raise ServerUnreachableError("The signaling server ended the connection.")
    if frame.type is aiohttp.WSMsgType.TEXT:
        raise ServerUnreachableError("The server sent text, so it is no signaling server.")
    raise ServerUnreachableError(_LOST)


def _version_error(theirs: int) -> VersionMismatchError:
    older = "server" if theirs < PROTOCOL else "node"
    return VersionMismatchError(
        f"The signaling server speaks protocol version {theirs}, this node version {PROTOCOL}. "
        f"Update the {older}."
    )


def refusal(refused: Refused) -> P2PNodeError:
    """The error for a server's refusal; our own sentences, so that a server cannot put words
    into this program's mouth for the cases that it knows."""
    known: dict[str, P2PNodeError] = {
        "version": VersionMismatchError(
            "The signaling server speaks another protocol version. Install the same version of "
            "this program at both ends."
        ),
        "unavailable": RoomCodeError(
            "The server lets nobody into such a room: the code is mistyped, the host has left, or "
            "the room is full. Check the code with the host."
        ),
        "contested": OtherHostError(
            "At the server this room has another host than the one that admitted this node."
        ),
        "dismissed": RefusedError("The host has turned this node away."),
        "replaced": IdentityError(
            "Another process has registered with this node's identity. Give each node on a "
            "machine an identity file of its own."
        ),
        "busy": ServerUnreachableError("The signaling server is full; try again later."),
    }
    text = f"The signaling server refuses: {clean(refused.text, 200)}"
    return known.get(refused.reason, ServerUnreachableError(text))


def _explain(url: URL, error: Exception) -> str:
    """A sentence for a failed connection: what was met and what to try."""
    where = f"{url.host}:{url.port}"
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return (
            f"There is a web server at {where}, but it is no signaling server (HTTP status "
            f"{error.status} for {url.path}). Check address and port."
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"The certificate of {where} is not valid ({error.certificate_error})."
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"The name {url.host} is not known. Check its spelling and the network."
    if isinstance(error, aiohttp.ClientConnectorSSLError | ssl.SSLError):
        return (
            f"{where} answers, but not with TLS. If the server runs without it, write http:// or "
            "ws:// instead of https:// or wss://."
        )
    if isinstance(error, TimeoutError):
        return f"No answer from {where}. Is a firewall in between, or the address wrong?"
    if isinstance(error, aiohttp.ClientConnectorError):
        return (
            f"Nothing listens at {where} ({error.strerror}). Is the signaling server running? "
            "Start one with: python -m signaling serve"
        )
    return (
        f"What listens at {where} is no signaling server, or it needs https:// "
        f"({clean(str(error), 120)})."
    )
