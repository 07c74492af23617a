"""Standard output that never blocks who prints: a thread writes, a bounded queue lies between.

A pipe whose reader has stopped (`| less`) takes nothing more once it is full, and whoever writes to
it stands still: on the event loop that would cost this node its place in the run.

May import: nothing of ours.
"""

from __future__ import annotations

import io
import queue
import select
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

WAITING = 10_000
"""Prints that wait for a reader; more are left out, and their number is printed in their place."""

PATIENCE = 2.0
"""Seconds without any progress after which a reader is waited for no longer at the end."""


class Printer(io.TextIOBase):
    """A text stream for `print(..., file=printer, flush=True)`; one print is written whole or not
    at all. Use as a context manager: leaving it waits for a reader that still reads."""

    def __init__(
        self,
        write: Callable[[str], object],
        lost: Callable[[int], str],
        waiting: int = WAITING,
        patience: float = PATIENCE,
    ) -> None:
        """`write` is called in a thread of its own, which may hang in it for ever; a
        BrokenPipeError ends the output. `lost`: the text for a number of prints left out."""
        super().__init__()
        self._write = write
        self._lost_text = lost
        self._patience = patience
        self._text = ""
        self._lost = 0
        self._queue: queue.Queue[str] = queue.Queue(waiting)
        self._queued = self._written = 0
        self._moved = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._text += text
        return len(text)

    def flush(self) -> None:
        """Queue what was written since the last flush."""
        text, self._text = self._text, ""
        if not text or self._over:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name="printer", daemon=True)
            self._thread.start()
        try:
            if self._lost:
                self._put(self._lost_text(self._lost))
                self._lost = 0
            self._put(text)
        except queue.Full:
            self._lost += 1

    def _put(self, text: str) -> None:
        self._queue.put_nowait(text)
        self._queued += 1

    def __enter__(self) -> Printer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait until all is written, or nothing moves any more."""
        with self._moved:
            while self._written < self._queued and not self._over:
                written = self._written
                self._moved.wait(self._patience)
                if self._written == written:
                    break
            self._over = True

    def _main(self) -> None:
        while not self._over:
            text = self._queue.get()
            try:
                self._write(text)
            except OSError:  # the reader went away, or the disk is full; training goes on
                self._over = True
            with self._moved:
                self._written += 1
                self._moved.notify()


def writer(out: TextIO) -> Callable[[str], None]:
    """A `write` for Printer past the buffer of `out`: a thread that hangs holding the buffer's lock
    would abort the interpreter when it flushes the buffer at its end."""
    out.flush()
    raw = getattr(out.buffer, "raw", out.buffer)  # with PYTHONUNBUFFERED there is no buffer

    def write(text: str) -> None:
        data = memoryview(text.encode(out.encoding, "backslashreplace"))
        while data:
            count = raw.write(data)
            if count is None:  # somebody has made it non-blocking
                select.select([], [raw], [])
            data = data[count or 0 :]

    return write
