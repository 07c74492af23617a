"""Where a connection comes from: the address to limit, and the group to offer. Pure functions.

May import: nothing of ours.

Headers of proxies count only when the socket's other end is a proxy that the operator has named.
They are read from the right, where the nearest proxy writes, up to the first address that is no
named proxy; whatever stands left of it, the client may have written itself. Anything unclear
falls back to the socket's address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Literal, Protocol

Address = IPv4Address | IPv6Address
Network = ipaddress.IPv4Network | IPv6Network
NoGroup = Literal["", "private", "proxy"]

PRIVATE_GROUP = "private"
"""The one group of all addresses that are not public, where the operator has asked for it."""

_SHARED: tuple[IPv6Network, ...] = (
    IPv6Network("64:ff9b::/96"),  # NAT64: all of IPv4 in one /64
    IPv6Network("2002::/16"),  # 6to4: a private IPv4 address may stand inside
)
"""Public by the registry, but their first 64 bits do not tell one household from another."""

_FORWARDED_PAIR = r"""[!#$%&'*+.^_`|~0-9A-Za-z-]+=(?:[^\s"\\,;=]+|"[^"\\,]*")"""
_FORWARDED = re.compile(rf"{_FORWARDED_PAIR}(?:\s*;\s*{_FORWARDED_PAIR})*")
_FOR = re.compile(r"""(?:^|;)\s*for=(?:"([^"]*)"|([^;]*))""", re.IGNORECASE)


class Headers(Protocol):
    """What is needed of a request's headers (a multidict)."""

    def getall(self, name: str, default: Sequence[str]) -> Iterable[str]: ...


@dataclass(frozen=True)
class Origin:
    """What the server's decisions need to know of an address; it leaves this machine never."""

    key: str
    """For limits: the IPv4 address, or the /64 of an IPv6 address, which one household has."""
    group: str | None
    """Nodes with the same one may meet without a code; None: not from here."""
    no_group: NoGroup = ""
    """Why there is none: not a public address, or that of a proxy."""


def parse_network(text: str) -> Network:
    """A proxy's address or CIDR range. Raises ValueError with a sentence."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no address range; write it like 10.0.0.0/8, 192.0.2.7 or fd00::/8"
        ) from None


def origin_of(
    socket_address: str, headers: Headers, proxies: Sequence[Network], *, group_private: bool
) -> Origin:
    """Origin of a connection whose other end is `socket_address`.

    `proxies`: networks of the operator's own proxies. `group_private`: let addresses that are not
    public form one group, for a network in which everybody may meet everybody.
    """
    own = _parse(socket_address)
    if own is None:
        return Origin(limit_key(socket_address), None, "private")
    claims = [
        [address for line in headers.getall(name, ()) for address in _split(line)]
        for name in ("X-Forwarded-For", "Forwarded")
    ]
    if not _is_in(own, proxies):
        if any(claims):
            # A proxy that nobody has named: everyone behind it would share its group.
            return Origin(_key(own), None, "proxy")
        return _grouped(own, group_private)
    clients = {
        _rightmost(claim, proxies, parse)
        for claim, parse in zip(claims, (_parse, _parse_forwarded), strict=True)
        if claim
    }
    # Two kinds of header that differ: the proxy has passed one on as its client wrote it.
    client = clients.pop() if len(clients) == 1 else None
    return Origin(_key(own), None, "proxy") if client is None else _grouped(client, group_private)


def limit_key(socket_address: str) -> str:
    """What `Origin.key` is for the other end of a socket."""
    address = _parse(socket_address)
    return socket_address[:64] if address is None else _key(address)


def _grouped(address: Address, group_private: bool) -> Origin:
    key = _key(address)
    if _is_public(address):
        return Origin(key, key)
    return Origin(key, PRIVATE_GROUP) if group_private else Origin(key, None, "private")


def _is_public(address: Address) -> bool:
    """Whether the address tells one household (or carrier) from all others."""
    return address.is_global and not address.is_multicast and not _is_in(address, _SHARED)


def _key(address: Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((int(address) >> 64 << 64, 64)))


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _split(line: str) -> list[str]:
    return [part for part in (part.strip() for part in line.split(",")) if part]


def _rightmost(
    claim: list[str], proxies: Sequence[Network], parse: Callable[[str], Address | None]
) -> Address | None:
    """The nearest address that is no proxy of ours; None if what is met first is unreadable."""
    for text in reversed(claim):
        address = parse(text)
        if address is None or not _is_in(address, proxies):
            return address
    return None


def _parse_forwarded(element: str) -> Address | None:
    """Address in one element of a `Forwarded` header (RFC 7239); None for anything unusual.

    Elements were split at commas without regard to quotes, so one with half a quoted text in it
    is refused here: a client could have hidden an element in such a text.
    """
    if not _FORWARDED.fullmatch(element):
        return None
    found = _FOR.findall(element)
    return _parse(found[0][0] or found[0][1]) if len(found) == 1 else None


def _parse(text: str) -> Address | None:
    """An address with or without port, brackets and zone; None for anything else."""
    text = text.strip()
    if len(text) > 64:
        return None
    if text.startswith("["):
        text, closed, port = text[1:].partition("]")
        if not closed or (port and not _is_port(port)):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(f":{port}"):
            return None
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _is_port(text: str) -> bool:
    return re.fullmatch(r":[0-9]{1,5}", text) is not None
