"""Where members ask for text: who may, how much, and what is said to those who may not.

    GET /data/SOURCE/NAME
    Authorization: Bearer TOKEN
    Range: bytes=FIRST-LAST

May import: blocks, meter, sources, limits, messages.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Callable, Sequence

from aiohttp import web

from signaling.data.blocks import Blocks
from signaling.data.meter import Meter
from signaling.data.sources import BLOCK, AwayError, BeyondError, Piece, Source, SourceError
from signaling.limits import Limits
from signaling.messages import DataOffer, PeerId

PATH = r"/data/{source:\d{1,4}}/{name:.+}"

_RANGE = re.compile(r"bytes=(\d{1,16})-(\d{1,16})")
_TOKEN = re.compile(r"Bearer ([0-9a-f]{64})")
_AWAY_SECONDS = 5
"""After which a source that does not answer may be asked for again."""


class DataProxy:
    """The sources of one server. All methods are called on the event loop."""

    def __init__(
        self,
        sources: Sequence[Source],
        limits: Limits,
        member_at: Callable[[int], tuple[PeerId, str] | None],
        now: Callable[[], float],
    ) -> None:
        """`member_at`: id and address of the approved member at a connection."""
        self._sources = sources
        self._limits = limits
        self._member_at = member_at
        self._now = now
        self._blocks = Blocks(sources, limits)
        self._meter = Meter(limits, now())
        self._tokens: dict[str, int] = {}
        self._held: dict[int, str] = {}
        self._answers: Counter[int] = Counter()
        self._sent = 0

    def offer(self, number: int) -> DataOffer:
        """For the member at a connection; what it was offered before holds no more."""
        self.withdraw(number)
        token = secrets.token_bytes(32)
        self._tokens[token.hex()] = number
        self._held[number] = token.hex()
        return DataOffer(len(self._sources), token)

    def withdraw(self, number: int) -> None:
        """A connection has ended."""
        token = self._held.pop(number, None)
        if token is not None:
            del self._tokens[token]

    def counts(self) -> dict[str, object]:
        """Since the start, for who watches the server; about nobody in particular."""
        return {
            "answers": {str(status): n for status, n in sorted(self._answers.items())},
            "bytes_served": self._sent,
            "bytes_read": self._blocks.read,
            "blocks_from_cache": self._blocks.found,
            "reads_failed": self._blocks.failed,
            "cache_bytes": self._blocks.size,
            "requests_open": self._meter.open,
        }

    async def close(self) -> None:
        await self._blocks.close()
        for source in self._sources:
            await source.close()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        response = await self._answer(request)
        self._answers[response.status] += 1
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if "Origin" in request.headers:
            return _refusal(403, "This address is for nodes, not for browsers.")
        token = _TOKEN.fullmatch(request.headers.get("Authorization", ""))
        number = self._tokens.get(token[1]) if token else None
        if number is None:
            headers = {"WWW-Authenticate": "Bearer"}
            return _refusal(401, "Text is for members of a room, who are given a token.", headers)
        member = self._member_at(number)
        if member is None:
            return _refusal(403, "This node is no member of its room any more.")
        asked = [_RANGE.fullmatch(text) for text in request.headers.getall("Range", ())]
        if len(asked) != 1 or asked[0] is None:
            return _refusal(416, "Ask for one range: bytes=FIRST-LAST.")
        first, last = int(asked[0][1]), int(asked[0][2])
        if last < first:
            return _refusal(416, "The range ends before it begins.")
        if last - first >= self._limits.data_request_bytes:
            most = self._limits.data_request_bytes
            return _refusal(413, f"At most {most} bytes may be asked for at once.")
        blocks = range(first // BLOCK, last // BLOCK + 1)
        # Whole blocks, since that is what a source is asked for, and vain questions as well.
        refused = self._meter.ask(*member, len(blocks) * BLOCK, self._now())
        if refused is not None:
            status, seconds = refused
            who = "this node" if status == 429 else "everyone together"
            text = f"Too much text was asked for by {who}; try again later."
            return _refusal(status, text, {"Retry-After": str(seconds)})
        try:
            return await self._send(request, first, last, blocks)
        finally:
            self._meter.done(member[0])

    async def _send(
        self, request: web.Request, first: int, last: int, blocks: range
    ) -> web.StreamResponse:
        source, name = int(request.match_info["source"]), request.match_info["name"]
        if source >= len(self._sources):
            return _refusal(404, "The server has no such source.")
        try:
            piece = await self._blocks.get(source, name, blocks[0])
            if first >= piece.size:
                raise BeyondError(piece.size)
        except SourceError as error:
            return _explained(error)
        last = min(last, piece.size - 1)
        response = web.StreamResponse(
            status=206,
            headers={
                "Content-Range": f"bytes {first}-{last}/{piece.size}",
                "Content-Type": "application/octet-stream",
                "Cache-Control": "no-store",
            },
        )
        response.content_length = last + 1 - first
        try:
            await response.prepare(request)
            for index in blocks:
                start = index * BLOCK
                if start > last:
                    break
                if index != blocks[0]:
                    piece = self._same(piece, await self._blocks.get(source, name, index))
                part = piece.data[max(first - start, 0) : last + 1 - start]
                async with asyncio.timeout(self._limits.data_write_seconds):
                    await response.write(part)
                self._sent += len(part)
        except (SourceError, OSError):
            # The reader has gone or is too slow; or it is too late for a status, so it sees a body
            # that breaks off, and asks again.
            if request.transport is not None:
                request.transport.abort()
        return response

    def _same(self, before: Piece, piece: Piece) -> Piece:
        if (piece.size, piece.version) != (before.size, before.version):
            raise SourceError("The file has changed while it was read.")
        return piece


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=headers)


def _explained(error: SourceError) -> web.Response:
    headers = {}
    if isinstance(error, BeyondError) and error.size >= 0:
        headers["Content-Range"] = f"bytes */{error.size}"
    if isinstance(error, AwayError):
        headers["Retry-After"] = str(_AWAY_SECONDS)
    return _refusal(error.status, str(error), headers)
