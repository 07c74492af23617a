"""Figures of every step as this machine saw it: one JSON object a line in `metrics.jsonl`.

What a step gave stands in the ledger and is the same everywhere; who was there, how fast and for
how long is chance, and stands here. May import: limits, ui.events.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import msgspec

from p2pnode.limits import LIMITS
from p2pnode.ui.events import Event, Warn

FILE = "metrics.jsonl"


class NodeShare(msgspec.Struct, frozen=True):
    """What one node did of a step."""

    node: str
    """Its short id."""
    slots: int
    tokens_per_s: float


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """One committed step. Seconds are those since the commit before, at this machine."""

    run: str
    """First 8 hex digits of the id of the run's first settings, as in the ledger's name."""
    step: int
    loss: float
    """Nats per token over all slots of all nodes, weighted by tokens."""
    heldout: float | None
    """Held-out loss in nats per token, where it was measured."""
    tokens: int
    grad_norm: float
    lr: float
    seconds: float
    tokens_per_s: float
    nodes: tuple[NodeShare, ...]
    """The roster, in join order."""
    bytes_in: int
    bytes_out: int
    """Of all links of this node."""
    compute_s: float
    """The computing thread was at work,"""
    wire_s: float
    """it was not, and bulk data came in,"""
    wait_s: float
    """or neither. The three add up to `seconds`."""


class TimeSplit:
    """Divides time between computing, transfers and waiting."""

    GAP = 0.25
    """Seconds without bulk data after which a transfer no longer counts as under way."""

    def __init__(self, busy: Callable[[], float]) -> None:
        """`busy`: seconds that the computing thread has worked so far."""
        self._busy = busy
        self._begun: tuple[float, float] | None = None
        self._bulk: tuple[float, float] | None = None
        self._wire = 0.0

    def bulk(self, now: float) -> None:
        """Bulk data has come in."""
        busy = self._busy()
        if self._bulk is not None and now - self._bulk[0] < self.GAP:
            self._wire += max(0.0, now - self._bulk[0] - (busy - self._bulk[1]))
        self._bulk = now, busy

    def lap(self, now: float) -> tuple[float, float, float, float]:
        """Seconds since the last lap (0 at the first), and of these: compute, wire, wait."""
        busy, wire = self._busy(), self._wire
        began, self._begun, self._wire = self._begun, (now, busy), 0.0
        if began is None:
            return 0.0, 0.0, 0.0, 0.0
        seconds = now - began[0]
        compute = min(seconds, busy - began[1])
        wire = min(wire, seconds - compute)
        return seconds, compute, wire, seconds - compute - wire


class MetricsLog:
    """Appends to the file; beyond LIMITS.metrics_bytes it becomes `metrics.jsonl.1`. A full disk
    ends the log, not the node."""

    def __init__(self, folder: Path, show: Callable[[Event], None]) -> None:
        self._path = folder / FILE
        self._show = show
        self._file: TextIO | None = None
        self._size = 0
        try:
            self._open()
        except OSError as error:
            self._end(error)

    def write(self, metrics: Metrics) -> None:
        """One step. Called on the event loop; a line goes to the system's cache."""
        if self._file is None:
            return
        line = msgspec.json.encode(metrics).decode() + "\n"
        try:
            if self._size + len(line) > LIMITS.metrics_bytes:
                self._file.close()
                os.replace(self._path, self._path.with_name(FILE + ".1"))
                self._open()
            self._file.write(line)
            self._size += len(line)
        except OSError as error:
            self._end(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._size = os.fstat(self._file.fileno()).st_size

    def _end(self, error: OSError) -> None:
        self._file = None
        self._show(Warn(text=f"No metrics from here on: {self._path}: {error.strerror}."))


def read_metrics(folder: Path, run: str) -> Iterator[Metrics]:
    """The lines of a run in a folder, older file first; lines that cannot be read are left out."""
    for path in (folder / f"{FILE}.1", folder / FILE):
        try:
            with open(path, "rb") as file:
                while line := file.readline(LIMITS.metrics_line_bytes):
                    try:
                        metrics = msgspec.json.decode(line, type=Metrics)
                    except (msgspec.MsgspecError, RecursionError):
                        continue
                    if metrics.run == run:
                        yield metrics
        except OSError:
            continue
