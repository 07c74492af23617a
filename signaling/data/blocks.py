"""Blocks of files, each read once however many ask, a bounded number of bytes kept in memory.

May import: sources, limits.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from signaling.data.sources import BLOCK, AwayError, Piece, Source
from signaling.limits import Limits

_OVERHEAD = 1024
"""Bytes a kept block costs beside its data, so that many tiny files are bounded too."""

_File = tuple[int, str]
"""Number of a source and a name in it."""
_Key = tuple[int, str, int]
"""The same, and the number of a block."""


class Blocks:
    """The blocks of all sources. All methods are called on the event loop."""

    def __init__(self, sources: Sequence[Source], limits: Limits) -> None:
        self._sources = sources
        self._limits = limits
        self._kept: OrderedDict[_Key, Piece] = OrderedDict()
        self._reads: dict[_Key, asyncio.Task[Piece]] = {}
        self._versions: OrderedDict[_File, tuple[int, str]] = OrderedDict()
        self.size = 0
        """Bytes kept."""
        self.found = 0
        """Blocks that were here when they were asked for."""
        self.read = 0
        """Bytes that came from sources."""
        self.failed = 0
        """Reads of sources that brought nothing."""

    async def get(self, source: int, name: str, index: int) -> Piece:
        """Block `index` of a file. Raises SourceError.

        A read goes on when who asked for it first has gone: others may wait for it, and who gave
        up asks again.
        """
        key = source, name, index
        if (piece := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            self.found += 1
            return piece
        task = self._reads.get(key)
        if task is None:
            if len(self._reads) >= self._limits.data_pending:
                raise AwayError("Too much is being read from the sources; try again later.")
            task = self._reads[key] = asyncio.create_task(self._read(key))
            task.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End reads that are under way."""
        tasks = list(self._reads.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, key: _Key) -> Piece:
        source, name, index = key
        return await self._sources[source].read(name, index * BLOCK, BLOCK)

    def _done(self, key: _Key, task: asyncio.Task[Piece]) -> None:
        del self._reads[key]
        if task.cancelled():
            return
        if task.exception() is not None:
            self.failed += 1
            return
        piece = task.result()
        self.read += len(piece.data)
        self._note_version(key[:2], piece)
        self._kept[key] = piece
        self.size += len(piece.data) + _OVERHEAD
        while self.size > self._limits.data_cache_bytes:
            self._drop(next(iter(self._kept)))

    def _note_version(self, file: _File, piece: Piece) -> None:
        """Blocks of a file that has changed since are of no use beside the new one."""
        version = piece.size, piece.version
        if self._versions.get(file, version) != version:
            for key in [key for key in self._kept if key[:2] == file]:
                self._drop(key)
        self._versions[file] = version
        self._versions.move_to_end(file)
        if len(self._versions) > self._limits.data_files:
            forgotten, _ = self._versions.popitem(last=False)
            for key in [key for key in self._kept if key[:2] == forgotten]:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        self.size -= len(self._kept.pop(key).data) + _OVERHEAD
