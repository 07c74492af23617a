"""The address of a signaling server, as people type it.

May import: errors.
"""

from __future__ import annotations

import ipaddress

from yarl import URL

from p2pnode.errors import UsageError

DEFAULT_PORT = 8765
MAX_CHARS = 512
"""Longest address looked at: no host name is longer, and no sentence about one should be."""
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


def server_url(text: str) -> URL:
    """WebSocket address for `host`, `host:port`, or an http, https, ws or wss URL.

    A text without a scheme means plain ws and port 8765; a path before `/ws` is kept, for servers
    behind a proxy. Raises UsageError for anything else.
    """
    bare = "://" not in f"{text}//"  # `http://` may have lost its slashes on the way
    try:
        if len(text) > MAX_CHARS:
            raise ValueError
        url = URL(f"ws://{text}" if bare else text)
        if not url.host or url.scheme not in _SCHEMES:
            raise ValueError
        if url.user or url.query_string or url.fragment:
            raise ValueError
        port = url.explicit_port
        path = url.path.rstrip("/")
        return URL.build(
            scheme=_SCHEMES[url.scheme],
            host=url.host,
            port=DEFAULT_PORT if port is None and bare else port,
            path=path if path.endswith("/ws") else f"{path}/ws",
        )
    except (ValueError, IndexError):  # yarl raises both, for some parts only when asked for them
        raise UsageError(
            f"{text[:100]!r} is not the address of a signaling server; it looks like "
            "http://example.org:8765 or just example.org."
        ) from None


def is_loopback(url: URL) -> bool:
    """Whether the server is on this very machine, so that its peers are too."""
    host = url.host or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def data_url(url: URL) -> str:
    """Where the server serves text, if it does: with a slash at the end."""
    scheme = "https" if url.scheme == "wss" else "http"
    return str(url.with_scheme(scheme).with_path(f"{url.path.removesuffix('/ws')}/data/"))


def stun_url(url: URL, port: int) -> str:
    """ICE address of the STUN responder that runs beside the signaling server."""
    host = url.host or ""
    return f"stun:[{host}]:{port}" if ":" in host else f"stun:{host}:{port}"
