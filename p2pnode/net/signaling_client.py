"""The node's connection to the signaling server, kept up for as long as the node runs.

May import: errors, `protocol.identity`, signaling_socket, signaling_url, and `signaling.messages`.

    async with SignalingClient(url, identity, room) as client:   # raises if the first try fails
        async for event in client: ...

The first connection must work, so that a wrong address is reported at once. After it the client
reconnects for ever, because training goes on while the server is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from types import TracebackType

import aiohttp
import msgspec
from yarl import URL

from p2pnode.errors import IdentityError, P2PNodeError, RefusedError, ServerUnreachableError
from p2pnode.net.signaling_socket import (
    ask,
    ask_group,
    connect,
    greeting,
    in_time,
    receive,
    refusal,
)
from p2pnode.net.signaling_url import stun_url
from p2pnode.protocol.identity import Identity, PeerId
from signaling.messages import (
    PROTOCOL,
    DataOffer,
    Dismiss,
    FromNode,
    IceServer,
    Loan,
    Publish,
    Refused,
    Register,
    Relay,
    Relayed,
    Role,
    View,
    Welcome,
    encode,
    registration_parts,
)

FIRST_DELAY, MAX_DELAY = 0.5, 15.0
"""Seconds before the first retry and the longest between two; the real one is 50 to 100 %."""
STEADY = 10.0
"""A connection that held this long was sound: the next retry starts from the shortest delay."""
_OUTBOX = 256
"""Unsent messages kept while the line is slow; beyond it the oldest go, as if lost on the way."""
_EVENTS = 256


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
                message = await receive(socket)
                if isinstance(message, Refused):
                    raise refusal(message)
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
        socket = await connect(session, self._url)
        try:
            return socket, await in_time(self._url, self._register(socket))
        except BaseException:
            await socket.close()
            raise

    async def _register(self, socket: aiohttp.ClientWebSocketResponse) -> Welcome:
        challenge = await greeting(socket, self._url)
        if self._nearby and self._role in (None, "host"):
            # Whatever the answer: the room is there for those who have the code.
            await ask_group(socket, self._url, self._room)
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
        return await ask(socket, self._url, register, Welcome)
