"""The bounded queue of messages to one WebSocket, and the task that empties it.

May import: limits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from aiohttp import ClientError, WSCloseCode, web

from signaling.limits import Limits


class Outgoing:
    """Messages to one node. `put` never waits; `run` is the sending task."""

    def __init__(
        self, socket: web.WebSocketResponse, transport: asyncio.Transport, limits: Limits
    ) -> None:
        self._socket = socket
        self._transport = transport
        self._limits = limits
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._close_code: int | None = None

    def put(self, raw: bytes, *, may_drop: bool) -> None:
        """Queue a frame. When the queue is half full, frames that may be dropped are; when it is
        full, the node is cut off."""
        size, count = self._bytes + len(raw), len(self._queue) + 1
        share = 2 if may_drop else 1
        if size * share > self._limits.outgoing_bytes or (
            count * share > self._limits.outgoing_messages
        ):
            if not may_drop:
                self._transport.abort()
            return
        self._queue.append(raw)
        self._bytes = size
        self._wake.set()

    def close(self, code: int = WSCloseCode.POLICY_VIOLATION) -> None:
        """Close the WebSocket once everything queued so far is sent."""
        self._close_code = code
        self._wake.set()

    async def run(self) -> None:
        """Send until closed or until the connection breaks, which its reader notices too."""
        with contextlib.suppress(OSError, ClientError):
            while True:
                while self._queue:
                    raw = self._queue.popleft()
                    await self._socket.send_bytes(raw)
                    self._bytes -= len(raw)
                if self._close_code is not None:
                    await self._socket.close(code=self._close_code)
                    return
                self._wake.clear()
                await self._wake.wait()
