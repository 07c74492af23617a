"""Headless Chromium as a partner: a page holds the connection and passes frames on by a WebSocket.

The page (page.html) is served on loopback; what crosses the data channels is Chromium's own work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from aiohttp import WSMsgType, web

from p2pnode.protocol.frames import Channel
from tests.net.interop.partner import Partner

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_PAGE = Path(__file__).with_name("page.html")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_START_SECONDS = 60.0


class Chromium(Partner):
    """A page in a browser of its own."""

    def __init__(
        self, on_frame: Callable[[Channel, bytes], None], on_closed: Callable[[Exception], None]
    ) -> None:
        super().__init__(on_frame, on_closed)
        self._page: asyncio.Future[web.WebSocketResponse] = (
            asyncio.get_running_loop().create_future()
        )
        self._descriptions: asyncio.Queue[str] = asyncio.Queue()
        self._sending: asyncio.Queue[bytes] = asyncio.Queue()
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/", _page)
        app.router.add_get("/ws", self._serve)
        runner = web.AppRunner(app)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        profile = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        )
        assert PROGRAM is not None
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"http://127.0.0.1:{port}/",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._stack.push_async_callback(end, process)
        async with asyncio.timeout(_START_SECONDS):
            page = await self._page
        sender = asyncio.create_task(self._send_all(page))
        self._stack.callback(sender.cancel)

    async def offer(self) -> str:
        await (await self._page).send_json({"do": "offer"})
        return await self._described()

    async def answer(self, offer: str) -> str:
        self.read_max_message(offer)
        await (await self._page).send_json({"do": "answer", "sdp": offer})
        return await self._described()

    async def accept(self, answer: str) -> None:
        self.read_max_message(answer)
        await (await self._page).send_json({"do": "accept", "sdp": answer})

    async def _described(self) -> str:
        async with asyncio.timeout(20):
            return await self._descriptions.get()

    def send(self, channel: Channel, frame: bytes) -> None:
        self._sending.put_nowait(bytes([channel]) + frame)

    async def close(self) -> None:
        if self._page.done() and not self._page.cancelled():
            with contextlib.suppress(ConnectionError):
                await self._page.result().send_json({"do": "close"})
        await self._stack.aclose()

    async def _send_all(self, page: web.WebSocketResponse) -> None:
        while True:
            await page.send_bytes(await self._sending.get())

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        page = web.WebSocketResponse(max_msg_size=1024 * 1024)
        await page.prepare(request)
        self._page.set_result(page)
        async for message in page:
            if message.type is WSMsgType.BINARY:
                self.on_frame(Channel(message.data[0]), message.data[1:])
            elif message.type is WSMsgType.TEXT:
                self._told(json.loads(message.data))
        return page

    def _told(self, what: dict[str, str]) -> None:
        if "sdp" in what:
            self._descriptions.put_nowait(what["sdp"])
        elif what.get("state") == "open":
            self.is_open()
        elif what.get("state") == "closed":
            self.on_closed(ConnectionError("closed"))
        elif "error" in what and not self.opened.done():
            self.opened.set_exception(ConnectionError(what["error"]))


async def _page(_: web.Request) -> web.FileResponse:
    return web.FileResponse(_PAGE)


async def end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(5):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
