"""A web server for files that misbehaves on demand: `http://…/MODE/NAME`, modes below.

In a thread of its own, on loopback, with the standard library alone: what is tested shall not meet
itself.
"""

from __future__ import annotations

import contextlib
import gzip
import http.server
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MODES = {
    "ok": "as it should be",
    "norange": "the whole file whatever is asked for",
    "trunc": "right headers, half of the body, then the connection ends",
    "short": "half of the range, with headers that say so only in Content-Length",
    "gzip": "compressed although nobody asked",
    "busy-N": "503 with Retry-After to the first N requests for a file",
    "many-N": "429 to the first N requests",
    "late-N": "408 to the first N requests",
    "deny-N": "401 to the first N requests",
    "hang": "headers and then nothing",
    "hang-N": "the same for the first N requests",
    "slow": "a few bytes at a time, without end of patience",
    "redirect": "302 to ok",
    "elsewhere": "302 to wherever the test says",
    "expire": "302 to a signed address that is good for one request",
    "nohead": "403 to HEAD",
    "nolength": "no Content-Length",
    "flip": "one byte of each long body is wrong",
    "wrong": "bytes from another place, said so in Content-Range",
    "liar": "bytes from another place, not said so",
    "html": "200 and an error page",
    "mixed": "every third request fails: 503, broken off, or stalled",
}


class RangeServer:
    """Serves the files of a folder. `requests`: (mode, name, first byte or None) of each GET."""

    def __init__(self, folder: Path, stall: float = 30.0) -> None:
        """`stall`: how long a connection that hangs stays open, seconds."""
        self.folder = folder
        self.stall = stall
        self.requests: list[tuple[str, str, int | None]] = []
        self.headers: list[dict[str, str]] = []
        """Those of each GET."""
        self.elsewhere = ""
        """Where the mode of this name leads."""
        self.sent = 0
        """Bytes of bodies."""
        self.away = False
        """Whether it answers nobody (503)."""
        self.quota: int | None = None
        """How many more requests are answered before it goes away."""
        self._counts: Counter[str] = Counter()
        self._signed: set[str] = set()
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            server_state = owner

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def url(self, mode: str, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{mode}/{name}"

    def __enter__(self) -> RangeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def count(self, key: str) -> int:
        """How often this was asked for, this time included."""
        with self._lock:
            self._counts[key] += 1
            return self._counts[key]

    def sign(self) -> str:
        with self._lock:
            name = f"s{len(self._signed)}.{self._counts.total()}"
            self._signed.add(name)
            return name

    def redeem(self, name: str) -> bool:
        with self._lock:
            known = name in self._signed
            self._signed.discard(name)
            return known


class _Handler(http.server.BaseHTTPRequestHandler):
    server_state: RangeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        if "/nohead/" in self.path:
            self._refuse(403)
        else:
            self.do_GET()

    def do_GET(self) -> None:
        state = self.server_state
        mode, _, rest = self.path.lstrip("/").partition("/")
        mode, _, number = mode.partition("-")
        name = rest.rsplit("?", 1)[0]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if self.command == "GET":
            state.requests.append((mode, name, int(asked[1]) if asked else None))
            state.headers.append(dict(self.headers))
        if state.quota is not None:
            state.quota -= 1
            state.away = state.quota < 0
        if state.away:
            return self._refuse(503)
        turn = state.count(f"{mode}/{name}")
        passing = {"busy": 503, "many": 429, "late": 408, "deny": 401}
        if mode in passing and turn <= int(number or 1):
            return self._refuse(passing[mode], {"Retry-After": "0"})
        if mode == "mixed" and turn % 3 == 0:
            mode = ("busy", "trunc", "hang")[turn // 3 % 3]
            if mode == "busy":
                return self._refuse(503)
        if mode == "elsewhere":
            return self._refuse(302, {"Location": state.elsewhere})
        if mode in ("redirect", "expire"):
            to = f"/ok/{name}" if mode == "redirect" else f"/signed/{name}?{state.sign()}"
            return self._refuse(302, {"Location": to})
        if mode == "signed" and not state.redeem(rest.rsplit("?", 1)[-1]):
            return self._refuse(403)
        try:
            path = state.folder / name
            raw = (path if path.is_file() else state.folder / path.name).read_bytes()
        except OSError:
            return self._refuse(404)
        if mode == "html":
            raw, asked = b"<html>Sorry</html>" * 30, None
        first, last = 0, len(raw) - 1
        if asked and mode != "norange":
            first = int(asked[1])
            last = min(int(asked[2] or last), last)
            if first > last:
                return self._refuse(416, {"Content-Range": f"bytes */{len(raw)}"})
        body = raw[first : last + 1]
        headers = {"Content-Range": f"bytes {first}-{last}/{len(raw)}"}
        if mode == "liar":
            body = raw[: len(body)]
        elif mode == "wrong":
            body = raw[: len(body)]
            headers["Content-Range"] = f"bytes 0-{len(body) - 1}/{len(raw)}"
        elif mode == "flip" and len(body) > 4_000:
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 255]) + body[middle + 1 :]
        elif mode == "short":
            body = body[: max(1, len(body) // 2)]
        elif mode == "gzip":
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        ranged = asked is not None and mode != "norange"
        self.send_response(206 if ranged else 200)
        if mode == "nolength":
            headers["Connection"] = "close"
        else:
            headers["Content-Length"] = str(len(body))
        for key, value in headers.items():
            if ranged or key != "Content-Range":
                self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self._body(mode, body, turn <= int(number) if number else True)

    def _body(self, mode: str, body: bytes, faulty: bool) -> None:
        state = self.server_state
        with contextlib.suppress(OSError):
            if mode == "hang" and faulty:
                state.stopped.wait(state.stall)
                self.close_connection = True
                return
            if mode == "trunc" and len(body) > 1:
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
                return
            if mode == "slow":
                for part in _parts(body, max(1, len(body) // 20)):
                    self.wfile.write(part)
                    time.sleep(0.02)
            else:
                self.wfile.write(body)
            state.sent += len(body)
            if mode == "nolength":
                self.close_connection = True

    def _refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _parts(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]
