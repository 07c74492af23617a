"""How many bytes may be on their way: a loss- and delay-guarded congestion window.

Reno halves on every loss, so that at one loss in a hundred packets and 50 ms no stack gets past
0.3 MB/s, though the loss is the radio's and not a full queue's. Here the round trip decides what a
loss means. While it shows no queue (below the shortest ever seen plus a guard), the window grows by
a part of itself each round and a loss takes little; with a queue, it grows by one packet a round
and a loss takes 30 %, as other traffic does (CUBIC, RFC 9438). A path that loses much counts
as congested whatever its delay (a short queue shows none). The shortest round trip is kept for the
life of the connection: after a change to a longer path the window falls back to the cautious form.
Slow start counts bytes and ends when a queue shows (HyStart, RFC 9406).

Sans-IO: rounds are told by packet numbers, time comes in. May import: nothing of ours.
"""

from __future__ import annotations

import math

INITIAL_PACKETS = 10
"""RFC 6928."""

LEAST_PACKETS = 4
"""Fewer could not tell of a loss by later packets."""

GUARD_SECONDS = 0.01
GUARD_PART = 1 / 4
"""A round trip longer than the shortest by this, or this part of it, shows a queue; less is noise
of schedulers and radios."""

NEAR_SECONDS = 0.002
NEAR_BYTES = 512 * 1024
"""A path whose shortest round trip is below this (the machine itself, a cable) needs no larger
window; more would only wait in buffers, and control messages behind it."""

ENOUGH_SAMPLES = 4
"""Round trips of one round from which slow start takes its word."""

GROWTH = 1 / 32
"""Part of the window added a round while there is no queue."""

BACK_OFF = 0.7
"""Of the window is kept when a loss comes with a queue."""

GENTLE_BACK_OFF = 0.985
"""Of the window is kept when a loss comes without one. With GROWTH the window still grows when
every round has a loss."""

MUCH_LOSS = 0.04
MUCH_PACKETS = 3
"""Lost part of the packets, and number of lost packets, from which the path counts as congested."""

MEMORY = 3 / 4
"""Weight of the past in the lost part, a round."""


class Congestion:
    """The window of one association, in bytes of user data."""

    def __init__(self, packet_bytes: int, max_bytes: int) -> None:
        self.packet_bytes = packet_bytes
        self._max_bytes = max_bytes
        self.window = float(INITIAL_PACKETS * packet_bytes)
        self._threshold = math.inf
        """Below it, slow start."""
        self.shortest: float | None = None
        """Shortest round trip seen, seconds."""
        self._round_ends = 0
        self._round_shortest: float | None = None
        self._samples = 0
        self._last_round: float | None = None
        self._acked = 0.0
        self._lost = 0.0
        self._reduced_at = -1
        self._grows_from = -1

    @property
    def queue(self) -> bool:
        """The shortest round trip of this round and the last shows a queue on the path."""
        seen = [r for r in (self._last_round, self._round_shortest) if r is not None]
        return bool(seen) and self._shows_queue(min(seen))

    def _shows_queue(self, rtt: float) -> bool:
        assert self.shortest is not None, "rtt was a sample"
        return rtt > self.shortest + max(GUARD_SECONDS, self.shortest * GUARD_PART)

    def acked(
        self, nbytes: int, rtt: float | None, number: int, next_number: int, *, full: bool
    ) -> None:
        """The peer has nbytes more.

        number: highest packet number acknowledged; next_number: of the next packet. rtt: a sample,
        seconds, if there is an honest one. full: the window alone held the sender back.
        """
        if rtt is not None:
            self.shortest = rtt if self.shortest is None else min(self.shortest, rtt)
            seen = self._round_shortest
            self._round_shortest = rtt if seen is None else min(seen, rtt)
            self._samples += 1
            if self._samples >= ENOUGH_SAMPLES and self._shows_queue(self._round_shortest):
                self._threshold = min(self._threshold, self.window)
        self._acked += nbytes
        if number >= self._round_ends:
            self._next_round(next_number)
        if not full or number < self._grows_from:
            return
        if self.window < self._threshold:
            self.window += nbytes
        elif self.queue:
            self.window += self.packet_bytes * nbytes / self.window
        else:
            self.window += max(GROWTH, self.packet_bytes / self.window) * nbytes
        near = self.shortest is not None and self.shortest < NEAR_SECONDS
        self.window = min(self.window, float(NEAR_BYTES if near else self._max_bytes))

    def lost(self, nbytes: int, number: int, next_number: int) -> None:
        """Packets up to this number were lost, nbytes of them newly seen."""
        self._lost += nbytes
        if number < self._reduced_at:
            return  # sent before the last reduction: the same event
        self._reduced_at = next_number
        if self.queue or self._loses_much():
            self._acked = self._lost = 0.0  # this reduction answers all of it
            self._grows_from = next_number
            self._reduce(BACK_OFF)
            self._threshold = self.window
        else:
            self._reduce(GENTLE_BACK_OFF)

    def timed_out(self, next_number: int) -> None:
        """Nothing was heard for so long that all that was on its way counts as lost."""
        self._reduced_at = next_number
        self._threshold = self.window * BACK_OFF
        self.window = float(LEAST_PACKETS * self.packet_bytes)

    def _loses_much(self) -> bool:
        if self._lost < MUCH_PACKETS * self.packet_bytes:
            return False
        return self._lost > MUCH_LOSS * (self._acked + self._lost)

    def _reduce(self, kept: float) -> None:
        self.window = max(self.window * kept, float(LEAST_PACKETS * self.packet_bytes))

    def _next_round(self, next_number: int) -> None:
        self._round_ends = next_number
        self._last_round, self._round_shortest = self._round_shortest, None
        self._samples = 0
        self._acked *= MEMORY
        self._lost *= MEMORY
