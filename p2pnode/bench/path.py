"""An emulated one-way path: a bottleneck with a queue, delay, loss, reordering, duplicates.

Sans-IO: it says when a packet arrives. May import: nothing of ours.
"""

from __future__ import annotations

import dataclasses
import math
import random


@dataclasses.dataclass
class Path:
    """One direction of a link. Packets are served in order at `rate`; one that would wait for
    longer than `queue` is dropped."""

    rate: float = math.inf
    """Bytes per second."""
    delay: float = 0.0
    """Seconds."""
    queue: float = 0.1
    """Seconds of data that the bottleneck holds."""
    loss: float = 0.0
    """Part of the packets that are lost."""
    reorder: float = 0.0
    """Part of the packets that take up to `reorder_by` seconds longer."""
    reorder_by: float = 0.002
    duplicate: float = 0.0
    """Part of the packets that arrive twice."""
    free_at: float = 0.0
    dropped: int = 0
    """Packets that found the queue full."""

    def arrivals(self, nbytes: int, now: float, chance: random.Random) -> list[float]:
        """When a packet sent now arrives: not at all if it is lost, or twice."""
        start = max(now, self.free_at)
        if start - now > self.queue:
            self.dropped += 1
            return []
        self.free_at = start + nbytes / self.rate
        if self.loss and chance.random() < self.loss:
            return []
        at = self.free_at + self.delay
        if self.reorder and chance.random() < self.reorder:
            at += chance.random() * self.reorder_by
        return [at, at + 1e-4] if self.duplicate and chance.random() < self.duplicate else [at]
