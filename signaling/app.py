"""The signaling server: sockets around the decisions of `rooms`.

May import: data, grouping, limits, messages, outgoing, page, rooms, stun, turn.

    async with SignalingServer("127.0.0.1", 0) as server:
        print(server.url)
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import secrets
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from aiohttp import WSCloseCode, WSMsgType, web

from signaling.data.proxy import PATH, DataProxy
from signaling.data.sources import Source
from signaling.grouping import Network, origin_of
from signaling.limits import LIMITS, Limits
from signaling.messages import PROTOCOL, IceServer, Loan, PeerId, Relayed, encode
from signaling.outgoing import Outgoing
from signaling.page import add_pages
from signaling.rooms import Effect, Lend, Rooms, Send
from signaling.stun import StunResponder
from signaling.turn import TurnLender

HEARTBEAT = 20.0
"""Seconds between WebSocket pings; an unanswered one ends the connection half as long after."""
GOODBYE = 1.0
"""Seconds that each stage of a shutdown may take: closing WebSockets, then everything else."""
_TICK = 1.0
_BACKLOG = 128


class BindError(Exception):
    """The address cannot be listened on; the text is a sentence for the user."""


class CertificateError(Exception):
    """The certificate or its key cannot be used; the text is a sentence for the user."""


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Server side of TLS with a certificate chain and its key (PEM). Raises CertificateError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise CertificateError(f"Cannot read {path} ({error.strerror}).") from None
    try:
        # A key with a pass phrase would be asked for on the terminal, which may not be there.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(
            f"{certificate} and {key} are no certificate chain and its key without a pass phrase, "
            f"both in PEM form ({error})."
        ) from None
    return context


class SignalingServer:
    """A running server: WebSocket, page and STUN on one port. An async context manager."""

    def __init__(
        self,
        host: str = "0.0.0.0",
        port: int = 8765,
        *,
        limits: Limits = LIMITS,
        ice: tuple[IceServer, ...] = (),
        turn: TurnLender | None = None,
        data: Sequence[Source] = (),
        tls: ssl.SSLContext | None = None,
        proxies: Sequence[Network] = (),
        group_private: bool = False,
    ) -> None:
        """`port` 0 takes any free one. `ice`: further STUN and TURN servers to recommend
        to everybody, `turn`: TURN servers to lend to approved members,
        `data`: sources of text that these may read through the server.
        `proxies` and `group_private`: see `grouping.origin_of`."""
        self.host = host
        self.port = port
        self._limits = limits
        self._ice = ice
        self._turn = turn
        self._data = data
        self._proxy: DataProxy | None = None
        self._tls = tls
        self._proxies = proxies
        self._group_private = group_private
        self._numbers = itertools.count()
        self._outgoing: dict[int, Outgoing] = {}
        self._sockets: dict[int, web.WebSocketResponse] = {}
        self._in_use: set[object] = set()
        self._idle_since: dict[web.RequestHandler, float] = {}

    @property
    def url(self) -> str:
        """Address for a node on this machine (loopback if the server listens everywhere)."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        scheme = "http" if self._tls is None else "https"
        return (
            f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"
        )

    async def __aenter__(self) -> SignalingServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. Raises BindError if the address is taken or not this machine's."""
        self._loop = asyncio.get_running_loop()
        tcp, udp = await self._bind()
        self.port = tcp.getsockname()[1]
        self._stun, _ = await self._loop.create_datagram_endpoint(
            lambda: StunResponder(self._limits), sock=udp
        )
        self._rooms = Rooms(
            self._loop.time(),
            limits=self._limits,
            ice=self._ice,
            stun_port=self.port,
            lends=self._turn is not None or bool(self._data),
        )
        app = web.Application(client_max_size=1024)
        add_pages(app)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/ws", self._serve_socket)
        if self._data:
            self._proxy = DataProxy(
                self._data, self._limits, self._rooms.member_at, self._loop.time
            )
            app.router.add_get(PATH, self._serve_data, allow_head=False)
        # No access log: it would hold addresses.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=GOODBYE)
        await self._runner.setup()
        assert self._runner.server is not None
        # Not aiohttp's SockSite: it leaves a TLS handshake a minute.
        self._listener = await self._loop.create_server(
            self._runner.server,
            sock=tcp,
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self._limits.tls_seconds,
        )
        self._ticker = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Close everything within about two seconds; nodes are told that the server goes away."""
        self._ticker.cancel()
        await asyncio.wait([self._ticker])
        self._listener.close()
        self._stun.close()
        # aiohttp's own clean-up would wait for the WebSocket handlers until its time-out.
        goodbyes = [
            asyncio.create_task(ws.close(code=WSCloseCode.GOING_AWAY))
            for ws in self._sockets.values()
        ]
        if goodbyes:
            await asyncio.wait(goodbyes, timeout=GOODBYE)
            for goodbye in goodbyes:
                goodbye.cancel()
        if self._proxy is not None:
            await self._proxy.close()
        await self._runner.cleanup()

    async def _bind(self) -> tuple[socket.socket, socket.socket]:
        """A TCP and a UDP socket on the same port."""
        try:
            found = await self._loop.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except (socket.gaierror, OverflowError, UnicodeError):
            raise BindError(
                f"{self.host!r} is no address of this machine; 0.0.0.0 listens on all of them."
            ) from None
        family, _, _, _, address = found[0]
        attempts = 10 if self.port == 0 else 1
        for attempt in range(attempts):
            try:
                tcp = socket.create_server(address, family=family, backlog=_BACKLOG)
            except OSError as error:
                raise BindError(self._bind_text("TCP", error)) from None
            udp = socket.socket(family, socket.SOCK_DGRAM)
            try:
                udp.bind(tcp.getsockname())
            except OSError as error:
                tcp.close()
                udp.close()
                if attempt == attempts - 1:
                    raise BindError(self._bind_text("UDP", error)) from None
            else:
                udp.setblocking(False)
                return tcp, udp
        raise AssertionError("unreachable")

    def _bind_text(self, kind: str, error: OSError) -> str:
        if error.errno == errno.EADDRNOTAVAIL:
            return f"{self.host} is no address of this machine; 0.0.0.0 listens on all of them."
        if error.errno == errno.EACCES:
            return (
                f"This user may not listen on port {self.port}; ports from 1024 on are free to all."
            )
        return (
            f"Cannot listen on {self.host} port {self.port} ({kind}: {error.strerror}). Another "
            "program may use the port; choose another one with --port, or 0 for any."
        )

    async def _serve_socket(self, request: web.Request) -> web.WebSocketResponse:
        if "Origin" in request.headers:
            # Only browsers send it: no page that somebody visits shall use up places here.
            raise web.HTTPForbidden(text="This address is for nodes, not for browsers.")
        ws = web.WebSocketResponse(
            heartbeat=HEARTBEAT,
            max_msg_size=self._limits.message_bytes,
            compress=False,
            timeout=GOODBYE,
        )
        await ws.prepare(request)
        transport = request.transport
        if transport is None:
            return ws
        number = next(self._numbers)
        outgoing = Outgoing(ws, transport, self._limits)
        self._in_use.add(request.protocol)
        self._sockets[number] = ws
        self._outgoing[number] = outgoing
        sender = asyncio.create_task(outgoing.run())
        peername = transport.get_extra_info("peername")
        address = peername[0] if isinstance(peername, tuple) else ""
        origin = origin_of(
            address, request.headers, self._proxies, group_private=self._group_private
        )
        try:
            self._carry_out(
                self._rooms.on_connect(number, origin, secrets.token_bytes(32), self._loop.time())
            )
            async for frame in ws:
                if frame.type is not WSMsgType.BINARY:
                    break
                self._carry_out(self._rooms.on_frame(number, frame.data, self._loop.time()))
        finally:
            del self._outgoing[number]
            if self._proxy is not None:
                self._proxy.withdraw(number)
            self._carry_out(self._rooms.on_disconnect(number, self._loop.time()))
            sender.cancel()
            await asyncio.wait([sender])
            # The answer to our close has wound it up again, and its timer would keep all of the
            # connection in memory for 20 s: 100 MiB under a flood.
            ws._cancel_heartbeat()
            del self._sockets[number]
            self._in_use.discard(request.protocol)
        return ws

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            outgoing = self._outgoing.get(effect.connection)
            if outgoing is None:
                continue  # it has just gone
            if isinstance(effect, Send):
                message = effect.message
                outgoing.put(encode(message), may_drop=isinstance(message, Relayed))
            elif isinstance(effect, Lend):
                loan = self._loan(effect.connection, effect.peer)
                outgoing.put(encode(loan), may_drop=False)
            else:
                outgoing.close()

    def _loan(self, number: int, peer: PeerId) -> Loan:
        offer = self._proxy.offer(number) if self._proxy is not None else None
        if self._turn is None:
            return Loan((), self._limits.turn_seconds, offer)
        return self._turn.lend(peer, offer)

    async def _serve_data(self, request: web.Request) -> web.StreamResponse:
        assert self._proxy is not None
        self._in_use.add(request.protocol)
        try:
            return await self._proxy.serve(request)
        finally:
            self._in_use.discard(request.protocol)

    async def _health(self, _: web.Request) -> web.Response:
        state: dict[str, object] = {"status": "ok", "protocol": PROTOCOL}
        if self._proxy is not None:
            state["data_proxy"] = self._proxy.counts()
        return web.json_response(state)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            now = self._loop.time()
            self._carry_out(self._rooms.on_tick(now))
            self._end_unused(now)

    def _end_unused(self, now: float) -> None:
        """Close TCP connections that are neither WebSockets nor being sent text; aiohttp lets them
        stay for ever."""
        server = self._runner.server
        handlers = [] if server is None else server.connections
        unused = [handler for handler in handlers if handler not in self._in_use]
        self._idle_since = {handler: self._idle_since.get(handler, now) for handler in unused}
        surplus = len(unused) - self._limits.unused_connections
        for index, (handler, since) in enumerate(self._idle_since.items()):
            if index < surplus or now >= since + self._limits.unused_seconds:
                handler.force_close()
