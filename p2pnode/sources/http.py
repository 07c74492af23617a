"""A file on a web server, read by ranges: RFC 9110, section 14, and what servers make of it.

May import: retry, limits, errors.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import IO, Any

from p2pnode.errors import DataError, told
from p2pnode.limits import KIB, LIMITS
from p2pnode.sources.retry import PATIENCE, Patience, Transient, retried

_CHUNK = 64 * KIB
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_BROKEN = (OSError, http.client.HTTPException)
"""What a connection that breaks, stalls or speaks no HTTP raises."""


def opener(*, follows: bool) -> urllib.request.OpenerDirector:
    """As urllib's own, but a redirect leads to no file and to no FTP server; without `follows` it
    leads nowhere, and no proxy of the environment is used."""
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ]
    if follows:
        handlers += [urllib.request.ProxyHandler(), urllib.request.HTTPRedirectHandler()]
    made = urllib.request.OpenerDirector()
    for handler in handlers:
        made.add_handler(handler)
    return made


_following = opener(follows=True)


class _NoRanges(Exception):
    """The server sends the whole file whatever is asked for."""


class HttpFile:
    """One file by URL. Redirects are followed anew for every request, so that a signed address that
    they lead to may expire. Not thread-safe."""

    def __init__(self, url: str, patience: Patience = PATIENCE) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise DataError(f"{url!a} is not a web address.")
        self.name = url
        self._opener = _following
        self._patience = patience
        self._size: int | None = None
        self._whole: IO[bytes] | None = None
        self._rate = 0.0
        """Bytes per second of the last transfers; 0 while unknown."""

    @property
    def size(self) -> int:
        """Bytes. Raises DataError, SourceAwayError."""
        if self._size is None:
            self.read(0, 1)
        assert self._size is not None  # a range that arrived tells it
        return self._size

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer only where the file ends.

        Raises SourceAwayError if the server stays away or keeps breaking off, DataError if it does
        what no patience cures.
        """
        if self._whole is None:
            got = bytearray()
            try:
                retried(lambda: self._more(start, length, got), self.name, self._patience)
            except _NoRanges:
                self._whole = self._download()
            else:
                return bytes(got)
        self._whole.seek(start)
        return self._whole.read(length)

    def _more(self, start: int, length: int, got: bytearray) -> None:
        """Ask for what is still missing and add what comes. Raises Transient, _NoRanges."""
        stop = start + length if self._size is None else min(start + length, self._size)
        begin = start + len(got)
        if begin >= stop and self._size is not None:
            return
        headers = {"Range": f"bytes={begin}-{stop - 1}"}
        with self._open(headers) as response:
            if response.status == 200:
                raise _NoRanges
            found = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
            if response.status != 206 or found is None:
                raise DataError(f"{self.name} answers a request for a range with nonsense.")
            first, last = int(found[1]), int(found[2])
            self._learn_size(found[3])
            if first != begin or last >= stop:
                raise Transient(f"it sent bytes {first} to {last}, asked for {begin} to {stop - 1}")
            wanted = last + 1 - begin
            moved = self._pump(response, wanted, got.extend)
        if moved < wanted or begin + moved < min(stop, self._size or stop):
            raise Transient(f"it broke off after {moved} of {wanted} bytes", moved=moved > 0)

    def _learn_size(self, text: str) -> None:
        if text == "*":
            raise DataError(f"{self.name}: the server does not say how large the file is.")
        if self._size not in (None, int(text)):
            raise DataError(
                f"{self.name} has changed while it was read: {self._size} bytes, then {text}."
            )
        self._size = int(text)

    def _download(self) -> IO[bytes]:
        """The whole file, for servers without ranges, into a file without a name."""
        return retried(self._whole_file, self.name, self._patience)

    def _whole_file(self) -> IO[bytes]:
        whole = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the object)
        with self._open({}) as response:
            length = response.headers.get("Content-Length", "")
            wanted = int(length) if length.isdecimal() else None
            if (wanted or 0) > LIMITS.whole_file_bytes:
                raise self._too_large()
            moved = self._pump(response, LIMITS.whole_file_bytes + 1, whole.write)
        if moved > LIMITS.whole_file_bytes:
            raise self._too_large()
        if wanted is not None and moved != wanted:
            raise Transient(f"it broke off after {moved} of {wanted} bytes")
        if self._size is None:
            self._size = moved
        elif self._size != moved:
            raise DataError(f"{self.name} has {moved} bytes, and had {self._size} before.")
        return whole

    def _too_large(self) -> DataError:
        return DataError(
            f"{self.name}: the server sends whole files only, and this one is larger than "
            f"{LIMITS.whole_file_bytes} bytes. Download it and give the path of the copy."
        )

    @contextlib.contextmanager
    def _open(self, headers: dict[str, str]) -> Iterator[Any]:
        """A response with status 200 or 206 whose body is the file's bytes as they are."""
        url, more = self._asked()
        request = urllib.request.Request(
            url,
            headers={"Accept-Encoding": "identity", "User-Agent": "p2pnode", **headers, **more},
        )
        try:
            response = self._opener.open(request, timeout=self._timeout())
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, redirected=error.url != url) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise DataError(f"{self.name}: {told(error.reason)}") from None
            raise Transient(f"no answer ({told(error)})") from None
        except _BROKEN as error:
            raise Transient(f"no answer ({told(error) or type(error).__name__})") from None
        with response:
            coding = response.headers.get("Content-Encoding", "identity").lower()
            if coding != "identity":
                raise DataError(
                    f"{self.name}: the server compresses what it sends ({coding!a}) although it "
                    "was asked not to, so that no range of the file can be had. Download it."
                )
            yield response

    def _asked(self) -> tuple[str, dict[str, str]]:
        """Address and further headers of a request. Raises Transient."""
        return self.name, {}

    def _refusal(self, error: urllib.error.HTTPError, redirected: bool) -> Exception:
        """What a status that is no success means."""
        if error.code in _PASSING or (error.code in (401, 403) and redirected):
            after = error.headers.get("Retry-After", "")  # dates are not worth a clock
            return Transient(f"status {error.code}", float(after) if after.isdecimal() else 0.0)
        if error.code == 416:
            return DataError(f"{self.name} is empty, or shorter than it was.")
        if error.code in (404, 410):
            return DataError(f"There is no {self.name} (status {error.code}); check --data.")
        return DataError(f"{self.name}: the server refuses (status {error.code}).")

    def _pump(self, response: Any, most: int, take: Any) -> int:
        """Hand over what comes, at most `most` bytes; returns how many came before the end, a
        break or a stall."""
        moved = 0
        began = time.monotonic()
        with contextlib.suppress(*_BROKEN):
            while moved < most and (part := response.read1(min(_CHUNK, most - moved))):
                take(part)
                moved += len(part)
        if moved >= _CHUNK:
            rate = moved / max(time.monotonic() - began, 1e-3)
            self._rate = rate if not self._rate else (self._rate + rate) / 2
        return moved

    def _timeout(self) -> float:
        """Seconds without a byte after which a transfer counts as stalled: a fast source is given
        up sooner."""
        patience = self._patience
        usual = 20 * _CHUNK / self._rate if self._rate else patience.stall
        return min(patience.stall, max(patience.least_stall, usual))
