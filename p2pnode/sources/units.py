"""Encoded row groups at hand: in memory, on disk, or fetched ahead by threads of their own.

A unit is known by the SHA-256 of its bytes, whatever it came from. May import: limits, errors.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from p2pnode.errors import DataError, SourceAwayError
from p2pnode.limits import LIMITS, Limits

THREADS = 2
"""Units fetched at the same time: one on the wire while another is encoded."""
AGAIN_SECONDS = 5.0
"""Pause after a unit could not be had, on top of the patience of its source."""


class UnitFolder:
    """Units on disk, the least recently used ones removed beyond a bound. Files of others stay."""

    def __init__(self, folder: Path, most: int = LIMITS.token_cache_bytes) -> None:
        self._folder = folder
        self._most = most

    def load(self, digest: str) -> bytes | None:
        """The unit of this hash; None if it is not here. A damaged file is removed."""
        path = self._path(digest)
        try:
            raw = path.read_bytes()
            if hashlib.sha256(raw).hexdigest() == digest:
                os.utime(path)
                return raw
            path.unlink()
        except OSError:
            pass
        return None

    def save(self, digest: str, raw: bytes) -> None:
        """Keep a unit; where that does not work (a full disk) it is fetched again."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(".tmp", "unit-", self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(raw)
                os.replace(name, self._path(digest))
            except OSError:
                os.unlink(name)
                raise
            self._trim()

    def _trim(self) -> None:
        found = [(path, path.stat()) for path in self._folder.glob("unit-*.bin")]
        size = sum(status.st_size for _, status in found)
        for path, status in sorted(found, key=lambda item: item[1].st_mtime):
            if size <= self._most:
                break
            path.unlink(missing_ok=True)
            size -= status.st_size

    def _path(self, digest: str) -> Path:
        return self._folder / f"unit-{digest[:32]}.bin"


class Units:
    """The units of one text by number. Thread-safe."""

    def __init__(
        self,
        digests: Sequence[str],
        fetch: Callable[[int], bytes],
        folder: UnitFolder | None,
        limits: Limits = LIMITS,
    ) -> None:
        """`fetch` gets a unit from its source, in any thread; raises DataError."""
        self._digests = digests
        self._fetch = fetch
        self._folder = folder
        self._limits = limits
        self._changed = threading.Condition()
        self._held: OrderedDict[int, bytes] = OrderedDict()
        self._wanted: tuple[int, ...] = ()
        self._kept: frozenset[int] = frozenset()
        self._busy: set[int] = set()
        self._later: dict[int, float] = {}
        self._threads: list[threading.Thread] = []
        self._in_run = False
        self.problem = ""
        """Why a wanted unit is not here; empty if nothing is wrong."""
        self._notify: Callable[[], object] = lambda: None

    def has(self, unit: int) -> bool:
        """Whether `get` answers at once."""
        with self._changed:
            return unit in self._held

    def intact(self) -> bool:
        """Whether the units in memory are still what their hashes say."""
        with self._changed:
            held = list(self._held.items())
        return all(hashlib.sha256(raw).hexdigest() == self._digests[unit] for unit, raw in held)

    def get(self, unit: int) -> bytes:
        """A unit's bytes, fetched now if need be, except while a run goes on. Raises DataError,
        SourceAwayError."""
        with self._changed:
            if unit in self._held:
                self._held.move_to_end(unit)
                return self._held[unit]
        raw = self._on_disk(unit) if self._in_run else self._obtain(unit)
        if raw is None:
            raise SourceAwayError(f"Row group {unit} of the run's text is not here.")
        self._hold(unit, raw)
        return raw

    def in_run(self, notify: Callable[[], object] | None) -> None:
        """A run begins; `notify` is called, in any thread, when a wanted unit has come or could not
        be had. None: it is over, the threads end (a read under way is not waited for)."""
        with self._changed:
            self._in_run = notify is not None
            self._notify = notify or (lambda: None)
            if notify is None:
                self._wanted = ()
                self._threads.clear()
            self._changed.notify_all()

    def keep(self, units: Iterable[int]) -> None:
        """These stay in memory from now on, as soon as they are there."""
        self._kept |= frozenset(units)

    def want(self, units: Sequence[int]) -> None:
        """Fetch these in the background, the first ones first; instead of those wanted before."""
        with self._changed:
            if tuple(units) == self._wanted or not self._in_run:
                return
            self._wanted = tuple(units)
            self._later = {unit: at for unit, at in self._later.items() if unit in self._wanted}
            self._changed.notify_all()
            missing = [unit for unit in self._wanted if unit not in self._held]
            while len(self._threads) < min(THREADS, len(missing)):
                thread = threading.Thread(target=self._run, name="fetch", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run(self) -> None:
        while (unit := self._next()) is not None:
            try:
                raw = self._obtain(unit)
            except DataError as error:
                with self._changed:
                    self._later[unit] = time.monotonic() + AGAIN_SECONDS
                    self.problem = str(error)
            else:
                self._hold(unit, raw)
                self.problem = ""
            with self._changed:
                self._busy.discard(unit)
            self._notify()

    def _next(self) -> int | None:
        """The next unit to fetch; waits for one. None: the run is over."""
        with self._changed:
            while threading.current_thread() in self._threads:
                now = time.monotonic()
                open_ = [u for u in self._wanted if u not in self._held and u not in self._busy]
                for unit in open_:
                    if self._later.get(unit, now) <= now:
                        self._busy.add(unit)
                        return unit
                waits = [self._later[unit] - now for unit in open_]
                self._changed.wait(min(waits) if waits else None)
            return None

    def _hold(self, unit: int, raw: bytes) -> None:
        with self._changed:
            self._held[unit] = raw
            self._held.move_to_end(unit)
            size = sum(map(len, self._held.values()))
            needed = {unit, *self._wanted, *self._kept}
            for old in [old for old in self._held if old not in needed]:
                if size <= self._limits.token_memory_bytes:
                    break
                size -= len(self._held.pop(old))

    def _obtain(self, unit: int) -> bytes:
        raw = self._on_disk(unit)
        if raw is not None:
            return raw
        digest = self._digests[unit]
        raw = self._fetch(unit)
        if hashlib.sha256(raw).hexdigest() != digest:
            raise DataError(f"Row group {unit} of the run's text is not what its hash says.")
        if self._folder is not None:
            self._folder.save(digest, raw)
        return raw

    def _on_disk(self, unit: int) -> bytes | None:
        return self._folder.load(self._digests[unit]) if self._folder is not None else None
