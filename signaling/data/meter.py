"""What a member, those behind its address, and everyone may read. Sans-IO: the caller has the time.

May import: limits, throttle, messages.
"""

from __future__ import annotations

import math

from signaling.limits import Limits
from signaling.messages import PeerId
from signaling.throttle import Bucket, Buckets


class Meter:
    """`ask`, and if that is allowed `done` at the end of the answer."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        many = limits.addresses
        self._questions = Buckets(limits.data_questions_rate, limits.data_questions_burst, many)
        self._members = Buckets(limits.data_member_rate, limits.data_member_burst, many)
        self._addresses = Buckets(limits.data_address_rate, limits.data_address_burst, many)
        # What is saved up and what comes in an hour are the hour's bytes together.
        half = limits.data_hour_bytes / 2
        self._hour = Bucket(half / 3600, half, now)
        self._open: dict[PeerId, int] = {}

    @property
    def open(self) -> int:
        """Requests that are being answered."""
        return sum(self._open.values())

    def ask(self, peer: PeerId, address: str, size: int, now: float) -> tuple[int, int] | None:
        """None: the request may be answered. Else the status of HTTP that refuses it, and the
        seconds after which it may be repeated."""
        limits, key = self._limits, peer.hex()
        if not self._questions.take(key, 1, now):
            return 429, 1
        if self._open.get(peer, 0) >= limits.data_member_requests:
            return 429, 1
        if self.open >= limits.data_requests:
            return 503, 1
        if not self._members.take(key, size, now):
            return 429, math.ceil(size / limits.data_member_rate)
        if not self._addresses.take(address, size, now):
            return 429, math.ceil(size / limits.data_address_rate)
        if not self._hour.take(size, now):
            return 503, math.ceil(size / (limits.data_hour_bytes / 2 / 3600))
        self._open[peer] = self._open.get(peer, 0) + 1
        return None

    def done(self, peer: PeerId) -> None:
        """An answer has ended, well or not."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]
