"""Which rosters count: what a node does with one whose signature is already verified.

May import: errors, identity, roster, and `signaling.messages`. A pure function.
"""

from __future__ import annotations

import enum

from p2pnode.errors import PeerError
from p2pnode.protocol.identity import PeerId, short_id
from p2pnode.protocol.roster import Roster
from signaling.messages import View


class Verdict(enum.Enum):
    """What to do with a roster."""

    IGNORE = "nothing new in it"
    ADOPT = "it is the room's roster now"
    REMOVED = "it is, and this node is not in it"
    RECOVER = "this node signed it before it lost its state"


def judge(
    new: Roster, old: Roster | None, me: PeerId, sender: PeerId | None, view: View | None
) -> Verdict:
    """`old`: the roster held so far; `sender`: whose fresh envelope brought `new`, None for a
    roster passed on by others; `view`: what the server shows. Raises PeerError for a roster of a
    host that this node does not follow."""
    if old is None:
        if me not in new.ids:
            raise PeerError("A roster without this node was ignored.")
        if view is None or not _is_credible(new, me, view):
            raise PeerError(f"A roster of {short_id(new.host)}, not the host here, was ignored.")
    else:
        if new.host != old.host:
            raise PeerError(f"A roster of another host ({short_id(new.host)}) was ignored.")
        if not _is_newer(new, old, me, sender):
            return Verdict.IGNORE
        if me not in new.ids:
            return Verdict.REMOVED
    return Verdict.RECOVER if new.host == me else Verdict.ADOPT


def _is_credible(new: Roster, me: PeerId, view: View) -> bool:
    """Whether a node without a roster takes this one: its own if it is host, else the host's that
    it was shown, or, while that is away, one that the server's epoch speaks for."""
    if view.role == "host":
        return new.host == me
    if view.host is not None:
        return new.host == view.host
    return view.role == "member" and new.epoch == view.epoch


def _is_newer(new: Roster, old: Roster, me: PeerId, sender: PeerId | None) -> bool:
    """Whether a roster of the same host counts more. What the host itself sends does, even if it
    has lost count: an envelope from it cannot be an old one. And a host that meets another roster
    of its own under the present number has counted anew after a restart."""
    if sender == new.host or (new.host == me and new.epoch == old.epoch):
        return new.signed != old.signed
    return new.epoch > old.epoch
