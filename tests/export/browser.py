"""Headless Chromium on one page, asked through its DevTools protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.net.fakes import until
from tests.net.interop.chromium import FLAGS, PROGRAM, end

_START_SECONDS = 60.0


class Page:
    """A page. `requests` are the addresses that it asked for since it was opened, its own too."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._loaded = False
        self.requests: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """One command of the protocol and its answer; events that come meanwhile are noted."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self._next()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, which may be a promise."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def open(self, address: str) -> None:
        """Go to an address and wait until it is loaded."""
        for domain in ("Network", "Page"):
            await self.call(f"{domain}.enable")
        self.requests.clear()
        self._loaded = False
        await self.call("Page.navigate", url=address)
        while not self._loaded:
            await self._next()

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self._socket.receive_str(timeout=60))
        self._loaded |= message.get("method") == "Page.loadEventFired"
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A browser of its own with one page."""
    assert PROGRAM is not None
    async with contextlib.AsyncExitStack() as stack:
        profile = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        )
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *FLAGS,
            *(f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        stack.push_async_callback(end, process)
        port_file = Path(profile) / "DevToolsActivePort"
        await until(lambda: port_file.exists() and "\n" in port_file.read_text(), _START_SECONDS)
        port = port_file.read_text().split("\n")[0]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.get(f"http://127.0.0.1:{port}/json") as answer:
            targets = await answer.json(content_type=None)
        (target,) = (t for t in targets if t["type"] == "page")
        socket = await stack.enter_async_context(
            session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=64 * 2**20)
        )
        yield Page(socket)
