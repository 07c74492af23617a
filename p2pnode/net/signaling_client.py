"""The node's connection to the signaling server, kept up for as long as the node runs.

May import: errors, `protocol.identity`, `protocol.text`, signaling_url, and `signaling.messages`.

    async with SignalingClient(url, identity, room) as client:   # raises if the first try fails
        async for event in client: ...

The first connection must work, so that a wrong address is reported at once. After it the client
reconnects for ever, because training goes on while the server is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
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
from p2pnode.net.signaling_url import stun_url
from p2pnode.protocol.identity import Identity, PeerId
from p2pnode.protocol.text import clean
from signaling.messages import (
    MESSAGE_BYTES,
    PROTOCOL,
    Challenge,
    DataOffer,
    Dismiss,
    FromNode,
    FromServer,
    Group,
    IceServer,
    Loan,
    Nearby,
    Publish,
    Refused,
    Register,
    Relay,
    Relayed,
    Role,
    View,
    Welcome,
    decode_from_server,
    encode,
    registration_parts,
)

T = TypeVar("T")

ANSWER = 10.0
"""Seconds for the server to connect and to answer each step of the registration."""
HEARTBEAT = 20.0
"""Seconds between WebSocket pings; an unanswered one ends the connection half as long after."""
GOODBYE = 1.0
"""Seconds to wait for the server's half of a close; leaving must not hang on it."""
FIRST_DELAY, MAX_DELAY = 0.5, 15.0
"""Seconds before the first retry and the longest between two; the real one is 50 to 100 %."""
STEADY = 10.0
"""A connection that held this long was sound: the next retry starts from the shortest delay."""
_OUTBOX = 256
"""Unsent messages kept while the line is slow; beyond it the oldest go, as if lost on the way."""
_EVENTS = 256
_LOST = "The connection to the signaling server was lost."


class Registered(msgspec.Struct, frozen=True):
    """(Re)connected. `ice` includes the server's own STUN responder and the TURN servers of the
    last loan; a `View` follows."""

    ice: tuple[IceServer, ...]


class Lent(msgspec.Struct, frozen=True):
    """The server lends TURN servers, or text. `ice` and `data` are all that counts from now on."""

    ice: tuple[IceServer, ...]
    data: DataOffer | None = None


class Offline(msgspec.Struct, frozen=True):
    """Not connected; the next try is in `retry_in` seconds."""

    reason: str
    retry_in: float


Event = Registered | Lent | View | Relayed | Offline


class SignalingClient:
    """One registration in one room. Use as an async context manager and iterate its events."""

    def __init__(
        self,
        url: URL,
        identity: Identity,
        room: bytes,
        *,
        guest: bool = False,
        nearby: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        """`url` from `server_url`; `room`: 32 bytes from the code; `guest`: never found a room;
        `nearby`: while this node is host, nodes behind its public address are told of the room;
        `rng` spreads reconnections."""
        self._url = url
        self._identity = identity
        self._room = room
        self._rng = rng or random.Random()
        self._guest = guest
        self._nearby = nearby
        self._roster: bytes | None = None
        self._role: Role | None = None
        self._lent: tuple[IceServer, ...] = ()
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue(_EVENTS)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue(_OUTBOX)
        self._online = False
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SignalingClient:
        """Connect and register. Raises ServerUnreachableError, VersionMismatchError,
        RoomCodeError, RefusedError or IdentityError, each with a sentence."""
        self._session = aiohttp.ClientSession()
        try:
            socket, welcome = await self._open(self._session)
        except BaseException:
            await self._session.close()
            raise
        self._task = asyncio.create_task(self._run(self._session, socket, welcome))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._session is not None:
            await self._session.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events until the node is turned away for good, which raises the reason."""
        while True:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            yield event

    def send_envelope(self, to: PeerId, sealed: bytes) -> None:
        """Relay a sealed envelope; dropped while offline (its receiver asks or retries)."""
        self._put(Relay(to, sealed))

    def publish_roster(self, signed: bytes) -> None:
        """Host: make this the room's roster, now and at every later registration."""
        self.set_roster(signed)
        self._put(Publish(signed))

    def set_roster(self, signed: bytes) -> None:
        """Show this roster at every later registration: a restarted server learns who is who."""
        self._roster = signed

    def dismiss(self, peer: PeerId) -> None:
        """Host: have the server put a peer out of the room."""
        self._put(Dismiss(peer))

    def _put(self, message: FromNode) -> None:
        if not self._online:
            return
        if self._outbox.full():
            self._outbox.get_nowait()
        self._outbox.put_nowait(encode(message))

    async def _run(
        self,
        session: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
        welcome: Welcome,
    ) -> None:
        try:
            await self._keep_up(session, socket, welcome)
        except Exception as error:
            await self._events.put(error)

    async def _keep_up(
        self,
        session: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
        welcome: Welcome,
    ) -> None:
        """Serve and reconnect for ever. Raises what ends this node's stay in the room."""
        loop = asyncio.get_running_loop()
        failures = 0
        connection: tuple[aiohttp.ClientWebSocketResponse, Welcome] | None = (socket, welcome)
        while True:
            since = loop.time()
            try:
                if connection is None:
                    connection = await self._open(session)
                reason = await self._serve(*connection)
            except IdentityError:
                raise
            except P2PNodeError as error:
                # A member trains on over the mesh, whatever a server says about it.
                if isinstance(error, RefusedError) and self._roster is None:
                    raise
                reason = str(error)
            connection = None
            failures = 0 if loop.time() - since >= STEADY else failures + 1
            delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(failures, 10))
            delay *= self._rng.uniform(0.5, 1.0)
            await self._events.put(Offline(reason, delay))
            await asyncio.sleep(delay)

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse, welcome: Welcome) -> str:
        """Carry messages until the connection ends; returns why it did."""
        ice = welcome.ice
        if welcome.stun_port:
            ice = (IceServer((stun_url(self._url, welcome.stun_port),)), *ice)
        while not self._outbox.empty():
            self._outbox.get_nowait()
        await self._events.put(Registered((*ice, *self._lent)))
        self._online = True
        sender = asyncio.create_task(self._send_all(socket))
        try:
            while True:
                message = await _receive(socket)
                if isinstance(message, Refused):
                    raise _refusal(message)
                if isinstance(message, View):
                    self._role = message.role
                if isinstance(message, Loan):
                    self._lent = message.ice
                    await self._events.put(Lent((*ice, *self._lent), message.data))
                if isinstance(message, View | Relayed):
                    await self._events.put(message)
        except ServerUnreachableError as error:
            return str(error)
        finally:
            self._online = False
            sender.cancel()
            # Not `await sender`: its cancellation and our own could not be told apart.
            await asyncio.wait([sender])
            await socket.close()

    async def _send_all(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        # A broken connection also ends the receiving side, which reports it.
        with contextlib.suppress(OSError, aiohttp.ClientError):
            while True:
                await socket.send_bytes(await self._outbox.get())

    async def _open(
        self, session: aiohttp.ClientSession
    ) -> tuple[aiohttp.ClientWebSocketResponse, Welcome]:
        """Connect and register once."""
        socket = await _connect(session, self._url)
        try:
            return socket, await _in_time(self._url, self._register(socket))
        except BaseException:
            await socket.close()
            raise

    async def _register(self, socket: aiohttp.ClientWebSocketResponse) -> Welcome:
        challenge = await _challenge(socket, self._url)
        if self._nearby and self._role in (None, "host"):
            # Whatever the answer: the room is there for those who have the code.
            await _ask_group(socket, self._url, self._room)
        parts = registration_parts(challenge.nonce, self._room)
        register = Register(
            protocol=PROTOCOL,
            room=self._room,
            key=self._identity.key,
            signature=self._identity.sign(b"register", *parts),
            # Only a first registration, or a host, may found a room: a guest that comes back before
            # the others after a restart of the server must not become host.
            want="guest" if self._guest or self._role in ("member", "acting", "waiting") else "any",
            roster=self._roster,
        )
        with contextlib.suppress(OSError, aiohttp.ClientError):
            await socket.send_bytes(encode(register))
        answer = await _receive(socket)
        if isinstance(answer, Refused):
            raise _refusal(answer)
        if not isinstance(answer, Welcome):
            raise ServerUnreachableError(f"The server at {self._url} does not answer as it should.")
        return answer


async def find_group(url: URL, proposed: bytes | None) -> Group:
    """Ask the server which room nodes behind this node's public address meet in. If they have
    none, it is `proposed` for a short while, or none. Raises like `SignalingClient`."""
    async with aiohttp.ClientSession() as session:
        socket = await _connect(session, url)

        async def ask() -> Group:
            await _challenge(socket, url)
            return await _ask_group(socket, url, proposed)

        try:
            return await _in_time(url, ask())
        finally:
            await socket.close()


async def _connect(session: aiohttp.ClientSession, url: URL) -> aiohttp.ClientWebSocketResponse:
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
        raise ServerUnreachableError(explain(url, error)) from None


async def _in_time(url: URL, exchange: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(ANSWER):
            return await exchange
    except TimeoutError:
        raise ServerUnreachableError(
            f"The signaling server at {url} accepts connections but does not answer."
        ) from None


async def _challenge(socket: aiohttp.ClientWebSocketResponse, url: URL) -> Challenge:
    """The server's greeting."""
    challenge = await _receive(socket)
    if isinstance(challenge, Refused):
        raise _refusal(challenge)
    if not isinstance(challenge, Challenge):
        raise ServerUnreachableError(f"The server at {url} does not greet as it should.")
    if challenge.protocol != PROTOCOL:
        raise _version_error(challenge.protocol)
    return challenge


async def _ask_group(
    socket: aiohttp.ClientWebSocketResponse, url: URL, proposed: bytes | None
) -> Group:
    with contextlib.suppress(OSError, aiohttp.ClientError):
        await socket.send_bytes(encode(Nearby(proposed)))
    answer = await _receive(socket)
    if isinstance(answer, Refused):
        raise _refusal(answer)
    if not isinstance(answer, Group):
        raise ServerUnreachableError(f"The server at {url} does not answer as it should.")
    return answer


async def _receive(socket: aiohttp.ClientWebSocketResponse) -> FromServer:
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


def _refusal(refused: Refused) -> P2PNodeError:
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


def explain(url: URL, error: Exception) -> str:
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
