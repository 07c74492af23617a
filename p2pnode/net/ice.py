"""ICE: which of this machine's addresses are offered, and what of a remote description is taken.

aioice never offers 127.0.0.1 and has no choice of interfaces. Three methods of each connection
object are replaced (`IcePolicy.attach`), nothing is patched globally.
May import: errors, limits; of net: consent, fast, gather, ice_servers, paths.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import functools
import inspect
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any

import aioice
import aioice.ice
import psutil
from aiortc import RTCConfiguration, RTCPeerConnection

from p2pnode.errors import P2PNodeError, PeerError
from p2pnode.limits import LIMITS, Limits
from p2pnode.net.consent import keep_consent
from p2pnode.net.fast.connection import peer_connection
from p2pnode.net.gather import gather
from p2pnode.net.ice_servers import IceServer, SilentServers
from p2pnode.net.paths import check_direct_first

BRIDGES = (
    *("docker*", "br-*", "veth*", "virbr*", "cni*", "flannel*", "cali*", "podman*", "lxc*"),
    *("lxdbr*", "vmnet*", "vboxnet*", "vnet*", "vEthernet*"),
)
"""Interfaces that lead to containers and virtual machines of this host only: tried last of all."""

TUNNELS = ("tun*", "tap*", "utun*", "wg*", "ppp*", "tailscale*", "zt*", "nordlynx*")
"""Interfaces of private networks: usable, but a direct path is better, so they come after it."""

MAX_ADDRESSES = 8
"""Each local address costs a socket and a check against every remote one."""


class IceMode(enum.Enum):
    """Where the peers can be."""

    LOOPBACK = "loopback"
    """All on this machine: only 127.0.0.1 and ::1, no servers (demo, tests)."""
    DEFAULT = "default"
    """Anywhere: every address but loopback; loopback if there is nothing else."""
    RELAY = "relay"
    """Anywhere, but through TURN servers only: other members do not learn our address."""


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
    """If given, only these interfaces: names, addresses or networks."""
    deny: Sequence[str] = ()
    limits: Limits = LIMITS
    silent: SilentServers = dataclasses.field(default_factory=SilentServers, compare=False)
    """Carried over to the next policy, so that a dead server is waited for once."""

    def addresses(self, interfaces: Iterable[Interface] | None = None) -> list[str]:
        """Addresses to offer, best first, at most MAX_ADDRESSES.

        interfaces: for tests; this machine's if None.
        """
        found = local_interfaces() if interfaces is None else list(interfaces)
        loopback = [i.address for i in found if i.address in ("127.0.0.1", "::1")]
        if self.mode is IceMode.LOOPBACK:
            return loopback or ["127.0.0.1"]
        if self.mode is IceMode.RELAY:
            return []
        usable = [i for i in found if _is_global_or_private(i.address) and self._permits(i)]
        usable.sort(key=lambda i: (_rank(i), ":" in i.address))  # stable
        chosen = list(dict.fromkeys(i.address for i in usable))[:MAX_ADDRESSES]
        return chosen or loopback or ["127.0.0.1"]

    def _permits(self, interface: Interface) -> bool:
        if _matches(interface, self.deny):
            return False
        return not self.allow or _matches(interface, self.allow)

    def connection(self) -> RTCPeerConnection:
        """A new peer connection; call `attach` once it has a data channel."""
        return peer_connection(RTCConfiguration(iceServers=[]))

    def attach(self, connection: RTCPeerConnection) -> Any:
        """Make this connection gather, check and keep up by this policy, before its descriptions
        are made. Returns the aioice.Connection inside."""
        ice = _ice_connection(connection)
        servers = () if self.mode is IceMode.LOOPBACK else self.servers
        gather_hosts = ice.get_component_candidates

        async def gather_chosen(*, component: int, addresses: object) -> list[aioice.Candidate]:
            hosts = functools.partial(gather_hosts, component, self.addresses(), 0)
            return await gather(ice, hosts, servers, self.silent, self.limits)

        ice.get_component_candidates = gather_chosen
        ice.query_consent = functools.partial(keep_consent, ice)
        check_direct_first(ice)
        return ice


def _rank(interface: Interface) -> int:
    if _matches(interface, BRIDGES):
        return 2
    return 1 if _matches(interface, TUNNELS) else 0


def _is_global_or_private(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)


_USED = {
    "get_component_candidates": ["component", "addresses", "timeout"],
    "query_consent": [],
    "check_start": ["pair"],
    "build_request": ["pair", "nominate"],
}
"""Methods of aioice.Connection that this package replaces or calls, with their parameters."""

_RELAY_PARAMETERS = {
    *("component", "hide_related_address", "protocol_factory", "turn_server", "turn_username"),
    *("turn_password", "turn_ssl", "turn_transport"),
}


def _ice_connection(connection: RTCPeerConnection) -> Any:
    """The aioice.Connection inside, checked to be what this package was written for."""
    sctp = connection.sctp
    assert sctp is not None, "made with the first data channel"
    ice: Any = getattr(sctp.transport.transport.iceGatherer, "_connection", None)
    sound = all(_parameters(getattr(ice, name, None)) == names for name, names in _USED.items())
    relay = _parameters(getattr(aioice.ice, "relayed_candidate", None))
    attributes = all(hasattr(ice, name) for name in ("_protocols", "_nominated", "_check_list"))
    if not (sound and attributes and relay is not None and set(relay) == _RELAY_PARAMETERS):
        raise P2PNodeError(
            "The installed aiortc or aioice is not one that this program can use; "
            "install aiortc 1.16 and aioice 0.13."
        )
    return ice


def _parameters(function: object) -> list[str] | None:
    return list(inspect.signature(function).parameters) if callable(function) else None


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
