"""Gathering: the candidates of one connection, which are our ways of being reached.

aioice asks one STUN and one TURN server, waits 5 s for them, and ranks all addresses alike. Here
every server is asked at once, the first answer of each kind ends the waiting, and a server that was
silent before is hardly waited for. Sockets and transactions are aioice's.
May import: limits; of net: ice_servers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

import aioice
import aioice.ice
from aioice import stun
from aioice.candidate import candidate_foundation, candidate_priority

from p2pnode.limits import LIMITS, Limits
from p2pnode.net.ice_servers import IceServer, SilentServers

log = logging.getLogger(__name__)

SILENT_PATIENCE = 0.3
"""Seconds that a server which was silent lately gets when nothing else is waited for."""

OTHERS_PATIENCE = 0.1
"""Seconds, beside twice the time of the first, that the public addresses of other sockets get."""

LOOK = 0.1
"""Longest wait, seconds, after which is looked at whether the loop was held meanwhile."""

_TOP_PREFERENCE = 65_535

Answer: TypeAlias = "tuple[aioice.Candidate, Any]"
"""A candidate, and the protocol object of a relayed one (None of others)."""


async def gather(
    ice: Any,
    hosts: Callable[[], Awaitable[list[aioice.Candidate]]],
    servers: Sequence[IceServer],
    silent: SilentServers,
    limits: Limits = LIMITS,
) -> list[aioice.Candidate]:
    """All candidates of the aioice.Connection `ice`, at the latest after `limits.gather` seconds.

    hosts: makes the host candidates, best first. Their rank becomes their priority, for the other
    side too. Raises ConnectionError if there is not one candidate.
    """
    candidates = list(await hosts())
    for rank, candidate in enumerate(candidates):
        candidate.priority = _priority("host", rank)
    candidates += await _Questions(ice, servers, silent, limits, hidden=not candidates).ask()
    if not candidates:
        raise ConnectionError(
            "this machine has no address to offer and no TURN server has answered"
        )
    return candidates


def _priority(kind: str, rank: int) -> int:
    return int(candidate_priority(1, kind, _TOP_PREFERENCE - rank))


class _Questions:
    """Everything that is asked of servers for one connection."""

    def __init__(
        self,
        ice: Any,
        servers: Sequence[IceServer],
        silent: SilentServers,
        limits: Limits,
        *,
        hidden: bool,
    ) -> None:
        """hidden: tell the other side no address but relayed ones."""
        self._ice = ice
        self._silent = silent
        self._limits = limits
        self._hidden = hidden
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._asked: dict[asyncio.Task[Answer], tuple[IceServer, object]] = {}
        """What each server is asked, and what for: a socket's public address or a relay."""
        self._answered: set[IceServer] = set()
        self._first: float | None = None
        """Seconds that the first public address took."""
        self._got: dict[object, aioice.Candidate] = {}
        protocols = list(ice._protocols)
        for server in servers:
            if server.kind == "turn":
                self._add(server, "relay", _relayed(ice, server, hidden=hidden))
                continue
            for rank, protocol in enumerate(protocols):
                self._add(server, protocol, _reflexive(protocol, server, rank))

    def _add(self, server: IceServer, what_for: object, ask: Coroutine[Any, Any, Answer]) -> None:
        self._asked[self._loop.create_task(ask)] = (server, what_for)

    async def ask(self) -> list[aioice.Candidate]:
        """Wait for as much as is worth waiting for."""
        try:
            while (seconds := self._worth_waiting()) > 0:
                seconds = min(seconds, LOOK)
                before = self._loop.time()
                done, _ = await asyncio.wait(
                    self._asked, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                # While the loop was held nobody could be heard: that is not the servers' time.
                self._began += max(0.0, self._loop.time() - before - seconds)
                for task in done:
                    self._take(task)
        finally:
            for task in [task for task in self._asked if task.done()]:
                self._take(task)  # a relay nobody knows of would be kept up for ever
            for task in self._asked:
                task.cancel()
        self._judge()
        if self._asked:
            await asyncio.wait(self._asked)
        unique = {(c.host, c.port): c for c in self._got.values() if not self._is_host(c)}
        return list(unique.values())

    def _worth_waiting(self) -> float:
        """Seconds until the last open question of use has had its time."""
        now = self._loop.time()
        longest = 0.0
        for server, what_for in self._asked.values():
            if what_for in self._got:
                continue
            patience = self._patience(server, now)
            if server.kind == "stun" and self._first is not None:
                # Sockets of container bridges and the like never get an answer.
                patience = min(patience, 2 * self._first + OTHERS_PATIENCE)
            longest = max(longest, patience)
        return self._began + longest - now

    def _patience(self, server: IceServer, now: float) -> float:
        """Seconds from the beginning that its answers may take."""
        silent = self._silent.is_silent(server, now)
        return min(SILENT_PATIENCE, self._limits.gather) if silent else self._limits.gather

    def _take(self, task: asyncio.Task[Answer]) -> None:
        server, what_for = self._asked.pop(task)
        error = task.exception()
        if error is not None:
            self._failed(server, error)
            return
        candidate, protocol = task.result()
        self._answered.add(server)
        if server.kind == "stun" and self._first is None:
            self._first = self._loop.time() - self._began
        if what_for in self._got:
            if protocol is not None:
                protocol.transport.close()  # gives the second relay back
            return
        self._got[what_for] = candidate
        if protocol is not None:
            self._ice._protocols.append(protocol)

    def _failed(self, server: IceServer, error: BaseException) -> None:
        where = f"{server.kind} server {server.host}:{server.port}"
        if isinstance(error, stun.TransactionFailed):
            self._answered.add(server)
            log.warning("the %s refuses: %s", where, error)
        elif isinstance(error, stun.TransactionError | OSError):
            log.info("the %s cannot be used: %s", where, error)
        else:
            log.warning("asking the %s failed: %r", where, error)

    def _judge(self) -> None:
        """Remember who has used up its time without a word."""
        now = self._loop.time()
        for server, _ in list(self._asked.values()):
            if now >= self._began + self._patience(server, now):
                self._silent.note(server, now, answered=server in self._answered)
        for server in self._answered:
            self._silent.note(server, now, answered=True)

    def _is_host(self, candidate: aioice.Candidate) -> bool:
        """Without a NAT the public address is the local one."""
        return any(
            (candidate.host, candidate.port) == (p.local_candidate.host, p.local_candidate.port)
            for p in self._ice._protocols
            if p.local_candidate is not candidate
        )


async def _reflexive(protocol: Any, server: IceServer, rank: int) -> Answer:
    """The public address of one of our sockets."""
    local = protocol.local_candidate
    family = socket.AF_INET6 if ":" in local.host else socket.AF_INET
    found = await asyncio.get_running_loop().getaddrinfo(
        server.host, server.port, family=family, type=socket.SOCK_DGRAM
    )
    request = stun.Message(message_method=stun.Method.BINDING, message_class=stun.Class.REQUEST)
    response, _ = await protocol.request(request, found[0][4][:2])
    host, port = response.attributes["XOR-MAPPED-ADDRESS"]
    candidate = aioice.Candidate(
        foundation=candidate_foundation("srflx", "udp", local.host),
        component=local.component,
        transport="udp",
        priority=_priority("srflx", rank),
        host=str(ipaddress.ip_address(host)),
        port=port,
        type="srflx",
        related_address=local.host,
        related_port=local.port,
    )
    return candidate, None


async def _relayed(ice: Any, server: IceServer, *, hidden: bool) -> Answer:
    """An address of the TURN server's that it forwards from."""
    tls: Any = False  # annotated as bool, handed to asyncio, which takes a context too
    if server.transport == "tls":
        # Reading the system's certificates would hold the loop for a tenth of a second.
        loop = asyncio.get_running_loop()
        tls = await loop.run_in_executor(None, ssl.create_default_context)
    candidate, protocol = await aioice.ice.relayed_candidate(
        component=1,
        hide_related_address=hidden,
        protocol_factory=lambda: aioice.ice.StunProtocol(ice),
        turn_server=(server.host, server.port),
        turn_username=server.username,
        turn_password=server.credential,
        turn_ssl=tls,
        turn_transport="udp" if server.transport == "udp" else "tcp",
    )
    return candidate, protocol
