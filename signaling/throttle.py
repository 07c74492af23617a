"""Token buckets, one or many. Sans-IO: the caller says what time it is.

May import: nothing of ours.
"""

from __future__ import annotations

from collections import OrderedDict


class Bucket:
    """Allows `burst` at once and `rate` per second on average."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, amount: float, now: float) -> bool:
        """Use up `amount` if there is that much; whether there was."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True


class Buckets:
    """A bucket for each of the `size` most recent keys; a forgotten key starts afresh."""

    def __init__(self, rate: float, burst: float, size: int) -> None:
        self._rate = rate
        self._burst = burst
        self._size = size
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, key: str, amount: float, now: float) -> bool:
        """Like `Bucket.take`, of the key's bucket."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(self._rate, self._burst, now)
            if len(self._buckets) > self._size:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return bucket.take(amount, now)

    def __len__(self) -> int:
        return len(self._buckets)
