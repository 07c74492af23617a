"""ICE: which of this machine's addresses are offered, how long gathering takes, what of a remote
description is taken.

aioice never offers 127.0.0.1, has no choice of interfaces and waits up to 5 s for servers. One
method of each connection object is replaced (`IcePolicy.attach`), nothing is patched globally.
May import: errors, limits.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import inspect
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import aioice
import psutil
from aiortc import RTCConfiguration, RTCIceServer, RTCPeerConnection
from aiortc.rtcicetransport import connection_kwargs

from p2pnode.errors import P2PNodeError, PeerError, UsageError
from p2pnode.limits import LIMITS, Limits

BRIDGES = (
    *("docker*", "br-*", "veth*", "virbr*", "cni*", "flannel*", "cali*", "podman*", "lxc*"),
    *("lxdbr*", "vmnet*", "vboxnet*", "vnet*", "vEthernet*"),
)
"""Interfaces that lead to containers and virtual machines of this host only."""

TUNNELS = ("tun*", "tap*", "utun*", "wg*", "ppp*", "tailscale*", "zt*", "nordlynx*")
"""Interfaces of private networks: usable, but a direct path is better, so they are tried last."""

MAX_ADDRESSES = 8
"""Each local address costs a socket and a check against every remote one."""


class IceMode(enum.Enum):
    """Where the peers can be."""

    LOOPBACK = "loopback"
    """All on this machine: only 127.0.0.1 and ::1, no servers (demo, tests)."""
    DEFAULT = "default"
    """Anywhere: every address but loopback; loopback if there is nothing else."""


@dataclasses.dataclass(frozen=True)
class IceServer:
    """A STUN (`stun:host:port`) or TURN (`turn:host:port?transport=udp`) server."""

    url: str
    username: str | None = None
    credential: str | None = None


@dataclasses.dataclass(frozen=True)
class Interface:
    """One address of this machine."""

    name: str
    address: str


def local_interfaces() -> list[Interface]:
    """Every IP address of an interface that is up."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return [
        Interface(name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        if name in up
        for entry in entries
        if _parse(entry.address) is not None
    ]


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def _matches(interface: Interface, rules: Iterable[str]) -> bool:
    """A rule is an interface name (with wildcards), an address, or a network such as 10.0.0.0/8."""
    address = ipaddress.ip_address(interface.address)
    for rule in rules:
        try:
            if address in ipaddress.ip_network(rule, strict=False):
                return True
        except ValueError:
            if fnmatch.fnmatchcase(interface.name, rule):
                return True
    return False


@dataclasses.dataclass(frozen=True)
class IcePolicy:
    """What this node offers and whom it asks. Built once, from the command line's options."""

    mode: IceMode = IceMode.DEFAULT
    servers: Sequence[IceServer] = ()
    allow: Sequence[str] = ()
    """If given, only these interfaces: names, addresses or networks; `docker0` allows a bridge."""
    deny: Sequence[str] = ()
    limits: Limits = LIMITS

    def __post_init__(self) -> None:
        """Raises UsageError for a server address that cannot be used."""
        for server in self.servers:
            try:
                known = connection_kwargs([_rtc_server(server)])
            except ValueError:
                known = {}
            if not known:
                raise UsageError(
                    f"{server.url!r} is not a usable ICE server; write stun:HOST:PORT or "
                    "turn:HOST:PORT?transport=udp with a user name and password"
                )

    def addresses(self, interfaces: Iterable[Interface] | None = None) -> list[str]:
        """Addresses to offer, best first, at most MAX_ADDRESSES.

        interfaces: for tests; this machine's if None.
        """
        found = local_interfaces() if interfaces is None else list(interfaces)
        loopback = [i.address for i in found if i.address in ("127.0.0.1", "::1")]
        if self.mode is IceMode.LOOPBACK:
            return loopback or ["127.0.0.1"]
        usable = [i for i in found if _is_global_or_private(i.address) and self._permits(i)]
        usable.sort(key=lambda i: (_matches(i, TUNNELS), ":" in i.address))  # stable
        chosen = list(dict.fromkeys(i.address for i in usable))[:MAX_ADDRESSES]
        return chosen or loopback or ["127.0.0.1"]

    def _permits(self, interface: Interface) -> bool:
        if _matches(interface, self.deny):
            return False
        if self.allow:
            return _matches(interface, self.allow)
        return not _matches(interface, BRIDGES)

    def connection(self) -> RTCPeerConnection:
        """A new peer connection under this policy; call `attach` once it has a data channel."""
        servers = [] if self.mode is IceMode.LOOPBACK else [_rtc_server(s) for s in self.servers]
        return RTCPeerConnection(RTCConfiguration(iceServers=servers))

    def attach(self, connection: RTCPeerConnection) -> None:
        """Make this connection gather by this policy. Before its descriptions are made."""
        ice = _ice_connection(connection)
        gather = ice.get_component_candidates
        seconds: Any = self.limits.gather  # annotated as int, taken as any number

        async def gather_chosen(*, component: int, addresses: object) -> list[aioice.Candidate]:
            return await gather(component, self.addresses(), seconds)

        ice.get_component_candidates = gather_chosen  # type: ignore[method-assign,assignment]


def _is_global_or_private(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)


def _rtc_server(server: IceServer) -> RTCIceServer:
    return RTCIceServer(server.url, server.username, server.credential)


def _ice_connection(connection: RTCPeerConnection) -> aioice.Connection:
    """The aioice object inside, checked to be what this file was written for."""
    sctp = connection.sctp
    assert sctp is not None, "made with the first data channel"
    ice: Any = getattr(sctp.transport.transport.iceGatherer, "_connection", None)
    gather: object = getattr(ice, "get_component_candidates", None)
    parameters: Mapping[str, object] = (
        inspect.signature(gather).parameters if callable(gather) else {}
    )
    if list(parameters) != ["component", "addresses", "timeout"]:
        raise P2PNodeError(
            "the installed aiortc or aioice cannot be told which addresses to offer; "
            "install aiortc 1.16 and aioice 0.13"
        )
    return cast(aioice.Connection, ice)


def check_library() -> None:
    """Raise P2PNodeError if `IcePolicy.attach` will not work with the installed libraries.

    Inside a running loop only: aiortc makes futures at once.
    """
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    connection.createDataChannel("check", negotiated=True, id=0)
    _ice_connection(connection)


def filter_description(sdp: str, limits: Limits = LIMITS) -> str:
    """A remote description with only the candidates we will try.

    `.local` names go: resolving one by multicast takes a second and rarely works. So does whatever
    is beyond `limits.sdp_candidates`. Raises PeerError unless the description has one section, of
    data channels: aiortc would set up audio and video for a stranger as well.
    """
    lines: list[str] = []
    media = candidates = 0
    for line in sdp.splitlines():
        if line.startswith("m="):
            media += 1
            if not line.startswith("m=application "):
                raise PeerError("offered more than data channels in its session description")
        if line.startswith("a=candidate:"):
            fields = line.split()
            if len(fields) < 8 or _parse(fields[4]) is None or candidates >= limits.sdp_candidates:
                continue
            candidates += 1
        lines.append(line)
    if media != 1:
        raise PeerError("sent a session description without data channels")
    return "\r\n".join(lines) + "\r\n"
