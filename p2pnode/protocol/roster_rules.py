"""Which rosters count: what a node does with one whose signature is already verified.

May import: errors, identity, roster, succession, and `signaling.messages`. A pure function.
"""

from __future__ import annotations

import enum

from p2pnode.errors import PeerError
from p2pnode.protocol.identity import PeerId, short_id
from p2pnode.protocol.roster import Roster
from p2pnode.protocol.succession import BELIEVE, Succession
from signaling.messages import View


class Verdict(enum.Enum):
    """What to do with a roster."""

    IGNORE = "nothing new in it"
    ADOPT = "it is the room's roster now"
    REMOVED = "it is, and this node is not in it"
    RECOVER = "this node signed it before it lost its state"
    MERGE = "somebody stood in for this node, which is host: take over whom it let in or put out"


BELIEVED_EPOCH = 2**40
"""Newest epoch that is believed of a server, or of who stands in for a host: a million years of
changes, one a second. More would leave the host no epoch to sign."""


def judge(
    new: Roster,
    old: Roster | None,
    me: PeerId,
    sender: PeerId | None,
    view: View | None,
    there: Succession,
) -> Verdict:
    """`old`: the roster held so far; `sender`: whose fresh envelope brought `new`, None for a
    roster passed on by others; `view`: what the server shows; `there`: who has been away. Raises
    PeerError for a roster of a host that this node does not follow."""
    if old is None:
        if me not in new.ids:
            raise PeerError("A roster without this node was ignored.")
        if view is None or not _is_credible(new, me, view):
            raise PeerError(f"A roster of {short_id(new.host)}, not the host here, was ignored.")
    else:
        if new.host != old.host:
            return _of_another_host(new, old, me, there)
        if not _is_newer(new, old, me, sender):
            return Verdict.IGNORE
        if me not in new.ids:
            return Verdict.REMOVED
    return Verdict.RECOVER if new.host == me else Verdict.ADOPT


def _of_another_host(new: Roster, old: Roster, me: PeerId, there: Succession) -> Verdict:
    """A member has stood in for the host, or the host is back. Of two that sign rosters the
    earlier in join order goes on, with whom the other let in; the later one follows it."""
    order = old.ids
    if new.host not in order or new.epoch > BELIEVED_EPOCH:
        raise PeerError(f"A roster of another host ({short_id(new.host)}) was ignored.")
    before = order.index(me) < order.index(new.host)
    if before and (old.host == me or there.stands_in(old)):
        others = set(new.ids) - {*order, *old.removed}
        gone = set(new.removed) & set(order)
        news = others or gone or new.epoch >= old.epoch
        return Verdict.MERGE if news and me in new.ids else Verdict.IGNORE
    returned = order.index(new.host) < order.index(old.host)
    if new.epoch <= old.epoch or not (returned or there.clear(old, new.host, BELIEVE)):
        return Verdict.IGNORE
    return Verdict.ADOPT if me in new.ids else Verdict.REMOVED


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
