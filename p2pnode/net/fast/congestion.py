"""How many bytes may be on their way: a loss- and delay-guarded congestion window.

Reno halves on every loss, so that at one loss in a hundred packets and 50 ms no stack gets past
0.3 MB/s, though the loss is the radio's and not a full queue's. Here the round trip decides what a
loss means. While it shows no queue (below the shortest ever seen plus a guard), the window grows by
a part of itself each round and a loss takes little; with a queue, it grows by one packet a round
and a loss takes 30 %, as other traffic does (CUBIC, RFC 9438).

A short queue shows no delay, so much loss counts as a queue whatever the round trip says, until a
trial says otherwise: the window is cut by 30 % and held, and if as large a part of the packets is
lost as before, the loss is not of our making. The window is given back and so much loss tolerated
from then on. The shortest round trip is kept for the life of the connection: after a change to a
longer path the window falls back to the cautious form. Slow start counts bytes and ends when a
queue shows (HyStart, RFC 9406). A window that was not filled learns nothing from a loss.

Sans-IO: rounds are told by packet numbers, time comes in. May import: nothing of ours.
"""

from __future__ import annotations

import dataclasses
import math

INITIAL_PACKETS = 10
"""RFC 6928. Without a queue no loss takes the window below it."""

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
MUCH_PACKETS = 2
"""Lost part of the packets from which the path counts as congested, and packets that chance may
add to it."""

MOST_LOSS = 1 / 8
"""A larger lost part always counts. Slow start, whose steps are large, takes so much."""

SAMPLE_PACKETS = 128
"""Packets from which the lost part is told, at least."""

MEMORY = 3 / 4
"""Weight of the past in the lost part, a round."""

TRIAL_PACKETS = 256
TRIAL_ROUNDS = 2
"""Length of a trial, at least."""

TRIAL_PART = 1 / 2
"""If at least this part of the loss stays though the window was cut, it is not of our making."""

TOLERATED = 2.0
"""So many times the loss that stayed is tolerated: what chance adds to few packets."""


@dataclasses.dataclass
class _Trial:
    """Whether the loss falls with the window."""

    loss: float
    """Lost part before."""
    window: float
    """Window before."""
    begins: int
    """First packet number after the cut."""
    rounds: int = 0


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
        self._tolerated = MUCH_LOSS
        self._trial: _Trial | None = None

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
            self._next_round(number, next_number)
        if full and number >= self._grows_from and self._trial is None:
            self._grow(nbytes)

    def _grow(self, nbytes: int) -> None:
        if self.window < self._threshold:
            self.window += nbytes
        elif self.queue:
            self.window += self.packet_bytes * nbytes / self.window
        else:
            self.window += max(GROWTH, self.packet_bytes / self.window) * nbytes
        near = self.shortest is not None and self.shortest < NEAR_SECONDS
        self.window = min(self.window, float(NEAR_BYTES if near else self._max_bytes))

    def lost(self, nbytes: int, number: int, next_number: int, *, on_their_way: float) -> None:
        """Packets up to this number were lost, nbytes of them newly seen.

        on_their_way: bytes that were before this was seen.
        """
        self._lost += nbytes
        if number < self._reduced_at or 2 * on_their_way < self.window:
            return  # the same event as the last reduction's, or not the window's doing
        if self.queue:
            self._trial = None
            self._cut(next_number, LEAST_PACKETS)
        elif self._loses_much():
            # A cut during a trial changes nothing that it asks.
            if self._trial is None and self.window >= self._threshold:
                self._trial = _Trial(self._lost_part(), self.window, next_number)
            self._cut(next_number, INITIAL_PACKETS)
        else:
            self._reduced_at = next_number
            self._reduce(GENTLE_BACK_OFF, INITIAL_PACKETS)

    def timed_out(self, next_number: int, *, on_their_way: float) -> None:
        """Nothing was heard for so long that all that was on its way counts as lost."""
        self._trial = None
        self._reduced_at = next_number
        if on_their_way > LEAST_PACKETS * self.packet_bytes:
            self._threshold = self.window * BACK_OFF
            self.window = float(LEAST_PACKETS * self.packet_bytes)
        else:  # a few packets, which chance can take, say nothing of what the path carries
            self._threshold = max(self.window, self._threshold)
            self.window = min(self.window, float(INITIAL_PACKETS * self.packet_bytes))

    def _lost_part(self) -> float:
        return self._lost / max(1.0, self._acked + self._lost)

    def _loses_much(self) -> bool:
        most = MOST_LOSS if self.window < self._threshold else self._tolerated
        excess = self._lost - most * (self._acked + self._lost)
        return excess > MUCH_PACKETS * self.packet_bytes

    def _cut(self, next_number: int, least: int) -> None:
        self._reduced_at = self._grows_from = next_number
        self._acked = self._lost = 0.0  # this reduction answers all of it
        self._reduce(BACK_OFF, least)
        self._threshold = self.window

    def _reduce(self, kept: float, least: int) -> None:
        least_bytes = min(self.window, float(least * self.packet_bytes))
        self.window = max(self.window * kept, least_bytes)

    def _next_round(self, number: int, next_number: int) -> None:
        self._round_ends = next_number
        self._last_round, self._round_shortest = self._round_shortest, None
        self._samples = 0
        if self._trial is not None:
            self._judge(self._trial, number)
            return
        if self._acked + self._lost > SAMPLE_PACKETS * self.packet_bytes:
            self._tolerated = max(MUCH_LOSS, min(self._tolerated, TOLERATED * self._lost_part()))
            self._acked *= MEMORY
            self._lost *= MEMORY

    def _judge(self, trial: _Trial, number: int) -> None:
        """A round of a trial is over."""
        if number < trial.begins:
            self._acked = self._lost = 0.0  # of packets that had left before the cut
            return
        trial.rounds += 1
        enough = self._acked + self._lost >= TRIAL_PACKETS * self.packet_bytes
        if trial.rounds < TRIAL_ROUNDS or not enough:
            return
        self._trial = None
        if self._lost_part() >= TRIAL_PART * trial.loss:
            self._tolerated = min(MOST_LOSS, TOLERATED * self._lost_part())
            self.window = max(self.window, trial.window)
