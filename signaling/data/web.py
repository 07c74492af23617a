"""A folder or a file of a web server as a source of text, read by ranges (RFC 9110, section 14).

What the operator named is all that is asked for. A redirect leads to hosts that the operator named
or nowhere, and nothing that a node says but a checked file name reaches the source: no header, no
cookie, no credential. May import: sources, limits.
"""

from __future__ import annotations

import asyncio
import random
import re
import urllib.parse
from collections.abc import Sequence

import aiohttp
from yarl import URL

from signaling.data.sources import (
    AwayError,
    BeyondError,
    MissingError,
    Piece,
    SourceError,
    parts_of,
)
from signaling.limits import LIMITS, Limits

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HOPS = 5
_CHUNK = 64 * 1024
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SIZE = re.compile(r"bytes \*/(\d{1,18})")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}

Place = tuple[str, int]
"""Host name in lower case, and port."""

_jitter = random.SystemRandom()


class _PassingError(Exception):
    """A fault that may pass."""


def web_url(text: str) -> URL:
    """The address of a file, or of a folder if it ends with a slash. Raises ValueError."""
    shown = repr(text[:100])
    try:
        url = URL(text)
        _ = url.port
    except (ValueError, IndexError):  # yarl raises both
        raise ValueError(f"{shown} is no web address") from None
    if url.scheme not in _PORTS or not url.raw_host:
        raise ValueError(f"{shown} is no web address")
    if url.raw_user is not None or url.raw_password is not None or url.raw_query_string:
        raise ValueError(
            "a web address with a user name, a password or a query is not served: its secret would "
            "be spent on strangers' requests; make a copy of the text and name its folder"
        )
    if url.raw_fragment or "*" in text:
        raise ValueError(f"{shown}: name a file, or a folder with a slash at the end")
    return url


def redirect_host(text: str) -> Place:
    """`HOST` or `HOST:PORT` (without: 443). Raises ValueError."""
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:100]!r} is no host name")
    port = int(found[2][1:]) if found[2] else 443
    if not 0 < port < 65_536:
        raise ValueError(f"{text[:100]!r}: there is no such port")
    return found[1].strip("[]").lower(), port


def place_of(url: URL) -> Place:
    """Host and port of an absolute URL."""
    return (url.raw_host or "").lower(), url.port or 0


class Web:
    """Everything below a folder of a web server, or one file."""

    def __init__(
        self, url: URL, redirects: Sequence[Place] = (), *, limits: Limits = LIMITS
    ) -> None:
        """`url` from `web_url`; `redirects`: where else its server may send us."""
        self._url = url
        self._limits = limits
        self._allowed = frozenset({place_of(url), *redirects})
        text = str(url.origin()) + url.raw_path
        self._is_folder = text.endswith("/")
        self._base = text[: text.rindex("/") + 1]
        self._only = urllib.parse.unquote(text[len(self._base) :])
        self._turns = asyncio.Semaphore(limits.data_reads)
        self._session: aiohttp.ClientSession | None = None

    def __str__(self) -> str:
        return str(self._url)

    async def close(self) -> None:
        """Close connections; a later `read` opens new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read(self, name: str, start: int, length: int) -> Piece:
        parts = parts_of(name)
        if not self._is_folder and name != self._only:
            raise MissingError
        path = "/".join(urllib.parse.quote(part, safe="") for part in parts)
        url = URL(self._base + path, encoded=True) if self._is_folder else self._url
        async with self._turns:
            failed = 0
            while True:
                try:
                    return await self._once(url, start, length)
                except (_PassingError, aiohttp.ClientError, TimeoutError, OSError) as fault:
                    failed += 1
                    if failed >= self._limits.data_tries:
                        raise AwayError(
                            f"The source of the text cannot be read by the server: {_said(fault)}."
                        ) from None
                    await asyncio.sleep(0.5 * 2 ** (failed - 1) * (0.5 + _jitter.random()))

    async def _once(self, url: URL, start: int, length: int) -> Piece:
        """One attempt, along its redirects."""
        if self._session is None:
            # No cookies, no proxies, no ~/.netrc, no decoding: bytes as they are, or an error.
            idle = self._limits.data_idle_seconds
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(
                    self._limits.data_read_seconds, sock_connect=idle, sock_read=idle
                ),
            )
        headers = {
            "Range": f"bytes={start}-{start + length - 1}",
            "Accept-Encoding": "identity",
            "User-Agent": "p2pnode-signaling",
        }
        for _ in range(_HOPS + 1):
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._piece(response, start, length)
                url = self._next(url, response.headers.get("Location", ""))
        raise SourceError("The source redirects again and again.")

    def _next(self, url: URL, location: str) -> URL:
        """Where a redirect leads, if it may. Raises SourceError."""
        try:
            target = url.join(URL(location, encoded=True))
            place = place_of(target)
        except (ValueError, IndexError):  # yarl raises both
            raise SourceError("The source redirects to nonsense.") from None
        if (
            target.scheme not in _PORTS
            or (url.scheme, target.scheme) == ("https", "http")
            or place not in self._allowed
            or target.raw_user is not None
            or target.raw_password is not None
        ):
            raise SourceError(
                "The source redirects to a place that the server's operator has not allowed."
            )
        return target

    async def _piece(self, response: aiohttp.ClientResponse, start: int, length: int) -> Piece:
        """The answer to a request for a range, checked."""
        status = response.status
        if status in _PASSING:
            raise _PassingError(f"it answers with status {status}")
        if status in (404, 410):
            raise MissingError
        content_range = response.headers.get("Content-Range", "").strip()
        if status == 416:
            told = _SIZE.fullmatch(content_range)
            raise BeyondError(int(told[1]) if told else -1)
        if status == 200:
            raise SourceError("The source serves whole files only, not ranges of them.")
        found = _RANGE.fullmatch(content_range)
        coding = response.headers.get("Content-Encoding", "identity").lower()
        if status != 206 or found is None or coding != "identity":
            raise SourceError(f"The source answers otherwise than with a range ({status}).")
        first, last, size = (int(text) for text in found.groups())
        if first != start or last != min(start + length, size) - 1:
            raise SourceError("The source sends another range than was asked for.")
        data = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            data += chunk
            if len(data) > last + 1 - first:
                break
        if len(data) != last + 1 - first:
            raise _PassingError("it breaks off, or sends more than it says")
        version = response.headers.get("ETag", "") or response.headers.get("Last-Modified", "")
        return Piece(bytes(data), size, version[:256])


def _said(fault: Exception) -> str:
    """What of a fault is told to nodes: nothing that a library quotes, such as addresses."""
    if isinstance(fault, _PassingError):
        return str(fault)
    return "it does not answer in time" if isinstance(fault, TimeoutError) else "no connection"
