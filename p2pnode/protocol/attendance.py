"""Who of a room is not where it should be: noticed, because a server could keep members apart.

May import: identity (for ids). Sans-IO.

A server that shows one half of a room to each half cannot make them compute anything else (see
docs/PROTOCOL), but owners should know. A node sees two signs of it: a peer it is linked to, which
the server does not show; and members that are neither shown nor linked. Both have innocent causes,
so they are told after a while, once, and it is left to the owner what to make of them.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from p2pnode.protocol.identity import PeerId

PATIENCE = 60.0
"""Seconds that a sign must last: a server that has restarted shows everybody again within 15 s."""


class Sign(enum.Enum):
    """What is odd about a member."""

    HIDDEN = "linked, but not shown by the server"
    MISSING = "neither linked nor shown by the server"


@dataclass
class _Odd:
    sign: Sign
    since: float
    told: bool = False


class Attendance:
    """What one node has seen of the members. `now` is monotonic time in seconds."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._odd: dict[PeerId, _Odd] = {}

    def look(
        self,
        members: Collection[PeerId],
        shown: Collection[PeerId] | None,
        linked: Collection[PeerId],
        now: float,
    ) -> dict[Sign, list[PeerId]]:
        """What is to be told now. `members`: of the roster, in join order; `shown`: whom the
        server shows, None while it is not connected."""
        signs = {
            peer: Sign.HIDDEN if peer in linked else Sign.MISSING
            for peer in members
            if shown is not None and peer not in shown and peer != self._me
        }
        before, self._odd = self._odd, {}
        for peer, sign in signs.items():
            odd = before.get(peer)
            self._odd[peer] = odd if odd and odd.sign is sign else _Odd(sign, now)
        due: dict[Sign, list[PeerId]] = {}
        for peer, odd in self._odd.items():
            if not odd.told and now >= odd.since + PATIENCE:
                odd.told = True
                due.setdefault(odd.sign, []).append(peer)
        return due

    def next_deadline(self) -> float | None:
        """When to look again, if nothing changes before."""
        return min((o.since + PATIENCE for o in self._odd.values() if not o.told), default=None)
