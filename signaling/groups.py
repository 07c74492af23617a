"""Which room the nodes behind one public address meet in. Sans-IO.

May import: nothing of ours.

A group is a room that a node without a code may be told of. Whoever asks first proposes one; it
holds while members of it are connected, and for a short while before and after.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

IsUsed = Callable[[bytes], bool]
"""Whether a room (by id) has members connected."""


@dataclasses.dataclass
class _Group:
    room: bytes
    until: float


class Groups:
    """At most one room for each origin (see `grouping.Origin.group`)."""

    def __init__(self, most: int, seconds: float) -> None:
        """`most`: groups at once; `seconds`: how long one holds without a member connected."""
        self._most = most
        self._seconds = seconds
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def room_of(
        self, origin: str, proposed: bytes | None, is_used: IsUsed, now: float
    ) -> bytes | None:
        """The room of this origin, `proposed` if it had none; None if nothing was proposed or
        there are too many."""
        group = self._groups.get(origin)
        if group is None or not self._holds(group, is_used, now):
            if proposed is None or (group is None and len(self._groups) >= self._most):
                return None
            group = self._groups[origin] = _Group(proposed, now + self._seconds)
        return group.room

    def forget_unused(self, is_used: IsUsed, now: float) -> None:
        """Call about once a second."""
        for origin, group in list(self._groups.items()):
            if not self._holds(group, is_used, now):
                del self._groups[origin]

    def _holds(self, group: _Group, is_used: IsUsed, now: float) -> bool:
        if is_used(group.room):
            group.until = now + self._seconds
        return now < group.until
