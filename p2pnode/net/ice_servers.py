"""STUN and TURN servers: their addresses as people write them, and which of them are silent.

May import: errors.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Sequence
from typing import Literal

from p2pnode.errors import UsageError

_URL = re.compile(
    r"(?P<scheme>stun|turn|turns):"
    r"(?:(?P<user>[^:@]+):(?P<password>[^@]+)@)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:?/@\[\]]+))"
    r"(?::(?P<port>\d{1,5}))?"
    r"(?:\?transport=(?P<transport>udp|tcp))?"
)

MAX_OFFERED = 6
"""Servers taken from a signaling server: each is asked for every connection."""

SILENT_SECONDS = 60.0
"""For so long a server that gave no answer is hardly waited for."""


@dataclasses.dataclass(frozen=True)
class IceServer:
    """A server that tells us our public address (STUN) or forwards for us (TURN)."""

    kind: Literal["stun", "turn"]
    host: str
    port: int
    transport: Literal["udp", "tcp", "tls"] = "udp"
    """How we reach a TURN server; what it forwards is UDP."""
    username: str = ""
    credential: str = dataclasses.field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, username: str = "", credential: str = "") -> IceServer:
        """`stun:HOST[:PORT]`, `turn:HOST[:PORT][?transport=tcp]` or `turns:HOST[:PORT]` (RFC 7064,
        7065), a TURN host perhaps after `USER:PASSWORD@`; IPv6 addresses in brackets.

        Raises UsageError.
        """
        found = _URL.fullmatch(url)
        if found is None:
            raise UsageError(
                f"{_hidden(url)!r} is not a usable ICE server; write stun:HOST:PORT or "
                "turn:USER:PASSWORD@HOST:PORT, the latter with ?transport=tcp at its end where UDP "
                "is blocked, or with turns: for TLS."
            )
        scheme, transport = found["scheme"], found["transport"]
        username, credential = found["user"] or username, found["password"] or credential
        port = int(found["port"] or (5349 if scheme == "turns" else 3478))
        host = found["v6"] or found["host"]
        if scheme == "stun" and (transport or found["user"]):
            raise UsageError(f"{_hidden(url)!r}: STUN knows neither transports nor passwords.")
        if scheme == "turns" and transport == "udp":
            raise UsageError(f"{_hidden(url)!r}: TLS to a TURN server goes over TCP only.")
        if scheme != "stun" and not (username and credential):
            raise UsageError(
                f"{_hidden(url)!r}: a TURN server needs a user name and a password, "
                "as in turn:USER:PASSWORD@HOST:PORT"
            )
        if not 1 <= port <= 65_535 or (found["v6"] and not _is_v6(host)):
            raise UsageError(f"{_hidden(url)!r} names no possible host and port.")
        if scheme == "stun":
            return cls("stun", host, port)
        if scheme == "turns":
            return cls("turn", host, port, "tls", username, credential)
        return cls("turn", host, port, "tcp" if transport == "tcp" else "udp", username, credential)

    @property
    def place(self) -> tuple[str, str, int, str]:
        """The server itself, whoever we are to it."""
        return (self.kind, self.host, self.port, self.transport)


def _is_v6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _hidden(url: str) -> str:
    """The beginning of the text, without what may be a password."""
    url = url[:100]
    return re.sub(r":[^:@]*@", ":...@", url)


def chosen(own: Sequence[IceServer], offered: Sequence[IceServer]) -> tuple[IceServer, ...]:
    """The owner's servers, and of a kind that the owner named none of, the first MAX_OFFERED."""
    kinds = {server.kind for server in own}
    usable = [server for server in offered if server.kind not in kinds]
    return (*own, *usable[:MAX_OFFERED])


class SilentServers:
    """Which servers gave no answer lately. Times in seconds of any one clock."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, int, str], float] = {}

    def note(self, server: IceServer, now: float, *, answered: bool) -> None:
        """What came of asking it."""
        if answered:
            self._since.pop(server.place, None)
        elif not self.is_silent(server, now):
            self._since[server.place] = now

    def is_silent(self, server: IceServer, now: float) -> bool:
        """Whether it is hardly worth waiting for."""
        since = self._since.get(server.place)
        return since is not None and now < since + SILENT_SECONDS
