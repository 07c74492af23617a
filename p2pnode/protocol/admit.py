"""Admission: who may take part in a room. Sans-IO; one `Admission` per node.

May import: errors, admit_effects, admit_messages, envelope, identity, post, room_secret, roster,
roster_rules, succession, text, waiting_list, and `signaling.messages`.

The node feeds it what the signaling server says (`on_view`, `on_relayed`), what its user decides
(`approve`, `refuse`, `later`, `kick`) and the time (`on_tick`), and carries out the effects that
each call returns. Everything that peers say to each other through the server passes here, so that
only roster members reach the mesh.

The server is believed in one thing only, and only by a newcomer: which peer to ask for admission.
Afterwards the host's key is fixed, and rosters count by its signature and their epoch; while it is
lost, by those of the member that stands in for it (see `roster_rules`, `succession`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

import msgspec

from p2pnode.errors import (
    P2PNodeError,
    PeerError,
    RefusedError,
    RoomCodeError,
    UsageError,
    VersionMismatchError,
    told,
)
from p2pnode.protocol.admit_effects import (
    Decided,
    DismissPeer,
    Effect,
    Knocked,
    Note,
    Paired,
    Publish,
    Refused,
    RosterChanged,
    Signal,
    Standing,
)
from p2pnode.protocol.admit_messages import (
    ASK,
    DECISION,
    KNOCK,
    NODE_PROTOCOL,
    ROSTER,
    Decision,
    Knock,
    decode_decision,
    decode_knock,
    encode,
)
from p2pnode.protocol.envelope import Opened, Random
from p2pnode.protocol.identity import Identity, PeerId, short_id
from p2pnode.protocol.post import Post
from p2pnode.protocol.room_secret import RoomSecret
from p2pnode.protocol.roster import Member, Roster, open_roster
from p2pnode.protocol.roster_rules import BELIEVED_EPOCH, Verdict, judge
from p2pnode.protocol.succession import TAKEOVER, Succession
from p2pnode.protocol.text import clean
from p2pnode.protocol.waiting_list import WaitingList
from signaling.messages import MAX_MEMBERS, View

RETRY = 10.0
"""Seconds between repetitions of an unanswered knock or question."""
RECOVER = 5.0
"""Seconds a restarted host waits for a member to give its roster back."""
PATIENCE = 2.0
"""Seconds a member waits for a roster it has heard of before it asks."""
QUIET = 5.0
"""Seconds between two notes about bad envelopes: whoever sends them shall not fill the log."""
_OWN_GROUP = (
    "The group here was opened by this very node, which has been started anew without its room "
    "code. Start it with --room and the code that it printed then."
)
_SHUNNED = "You did not want to enter this host's room."
_BLOCKED = "The host here is a machine that you have blocked; `p2pnode devices forget` undoes that."
_ACTING = (
    f"The host has been away for {TAKEOVER:.0f} s. Until it is back this machine, the next in the "
    "order in which the members joined, decides: you are asked about newcomers, and can remove a "
    "machine, change the settings or stop the run."
)
_REMOVED = "The host removed this node from the room."


class Admission:
    """One node's part in admission. `now` is monotonic time in seconds."""

    def __init__(
        self,
        identity: Identity,
        room: bytes,
        secret: bytes | None,
        *,
        name: str,
        approve: Literal["ask", "known", "all"],
        random: Random,
        saved: Roster | None = None,
        known: Set[PeerId] = frozenset(),
        blocked: Set[PeerId] = frozenset(),
        hosts: Set[PeerId] = frozenset(),
        nearby: bool = False,
    ) -> None:
        """`room` and `secret` (32 bytes each) come from the code; `random` from `secrets`.
        `saved`: the newest roster that this node held before it was restarted. `known`: who needs
        no question under `known`; `blocked`: who is turned away whatever `approve` says.
        `hosts`: whose rooms this node's owner has entered without a code before.
        `nearby`: as host, let those without the code knock too. `secret` None: knock like that."""
        self._me = identity
        self._room = room
        self._post = Post(identity, room, secret, random)
        self._secret = RoomSecret(identity, room, random)
        self._name = clean(name)
        self._approve = approve
        self._known_devices = set(known)
        self._blocked = set(blocked)
        self._hosts = set(hosts)
        self._nearby = nearby
        self._view: View | None = None
        self._standing: Standing | None = None
        self._list = WaitingList()
        self._there = Succession(identity.peer_id)
        self._links: Set[PeerId] = frozenset()
        self._told_acting = False
        self._retry_at: float | None = None
        self._recover_at: float | None = None
        self._quiet_until = float("-inf")
        self.roster = saved if saved is not None and identity.peer_id in saved.ids else None
        """The newest accepted roster; None while this node is not a member."""
        self.refused = False
        """The host has turned this node away: nothing more is asked of anyone."""

    @property
    def is_host(self) -> bool:
        return self.roster is not None and self.roster.host == self._me.peer_id

    @property
    def decides(self) -> bool:
        """Whether this node's owner lets others in, as host or in its place."""
        return self.is_host or self._there.stands_in(self.roster)

    @property
    def waiting(self) -> dict[PeerId, str]:
        """Peers that wait for this host's decision, with their names, in order of arrival."""
        return self._list.names()

    @property
    def to_ask(self) -> PeerId | None:
        """The waiting peer that the owner is to be asked about now."""
        return self._list.to_ask()

    def words(self, peer: PeerId) -> str:
        """Words that a waiting peer's terminal must show; empty for one that has the code."""
        return self._list.words(peer)

    @property
    def unsure_of(self) -> tuple[PeerId, str] | None:
        """A host that this node, without a code, meets for the first time, and the words that its
        terminal must show: the owner says whether to follow it (`follow`, `shun`)."""
        host = self._view.host if self._view is not None and not self.refused else None
        words = self._post.words(host) if host is not None else ""
        return (host, words) if host is not None and words and self._is_unsure_of(host) else None

    # Events

    def start(self) -> list[Effect]:
        """Call once, before the first view: what follows from the saved roster."""
        if self.roster is None:
            return []
        rest = tuple(member for member in self.roster.members if member.id not in self._blocked)
        if self.is_host and len(rest) < len(self.roster.members):
            return self._new_epoch(rest, self.roster.epoch + 1)
        return [*self._move_inside(self.roster), RosterChanged(self.roster, ())]

    def on_view(self, view: View, now: float) -> list[Effect]:
        """The server shows the room: after each registration and whenever it changes."""
        self._view = view
        self._look(now)
        if self._post.secret is None and (view.role == "host" or self.is_host):
            return self._leave(RoomCodeError(_OWN_GROUP))
        self._list.keep_only(view.waiting)
        effects: list[Effect] = []
        if view.role == "host":
            effects += self._as_host(view, now)
        elif self.is_host and self.roster is not None and len(self.roster.members) == 1:
            # Alone, called host by a server that had lost the room, whose true host is back.
            self.roster = None
            effects += self._ask_to_enter(now)
        elif self.roster is not None and view.host not in (None, self.roster.host):
            effects += self._complain(
                f"The server shows {short_id(view.host or b'')} as host of this room; this node "
                f"goes by the host that it knows, {short_id(self.roster.host)}.",
                now,
            )
        elif view.role == "waiting":
            effects += self._ask_to_enter(now)
        elif self._is_behind(view):
            soon = now + PATIENCE  # mostly it is on its way
            self._retry_at = soon if self._retry_at is None else min(self._retry_at, soon)
        if self.is_host and view.role not in ("host", "waiting") and self.roster is not None:
            effects.append(Publish(self.roster.signed))  # the server knows another, older one
        return effects + self._note_standing()

    def on_links(self, links: Set[PeerId], now: float) -> list[Effect]:
        """Whom this node has a link to, whenever that has changed."""
        self._links = links
        self._look(now)
        return self._note_standing()

    def _look(self, now: float) -> None:
        shown = self._view.members if self._view is not None else ()
        self._there.look(self.roster, self._links, shown, now)

    def on_relayed(self, sender: PeerId, sealed: bytes, now: float) -> list[Effect]:
        """The server relays an envelope that it says is from `sender`."""
        if self.refused:
            return []
        self._there.now(now)
        if not self._known(sender):
            return self._complain(f"An envelope of a stranger ({short_id(sender)}) came.", now)
        try:
            may_pair = self._nearby and self.is_host
            known = self._post.words(sender)
            opened, effects = self._post.receive(sender, sealed, pairs_as_host=may_pair)
            if self._post.secret is None and (words := self._post.words(sender)) != known:
                effects += [Paired(sender, words), *self._ask_to_enter(now)]
            if opened is not None:
                effects += self._on_opened(opened)
        except PeerError as error:
            return self._complain(str(error), now)
        return effects + self._note_standing()

    def on_roster(self, encoded: bytes) -> list[Effect]:
        """A roster (`Roster.encode`) that came over the mesh; its signature tells its worth."""
        try:
            new = open_roster(encoded, self._room)
            return self._take_roster(new, sender=None) + self._note_standing()
        except PeerError as error:
            return [Note(str(error))]

    def on_tick(self, now: float) -> list[Effect]:
        """Call when `next_deadline` has passed; earlier calls do nothing."""
        effects: list[Effect] = []
        self._there.now(now)
        if self._recover_at is not None and now >= self._recover_at:
            self._recover_at = None
            view, roster = self._view, self.roster
            if view is not None and view.role == "host" and self._has_lost_epochs(view):
                members = roster.members if roster is not None else (self._self_member(),)
                effects += self._new_epoch(members, view.epoch + 1)
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            effects += self._ask_to_enter(now, again=True)
        return effects + self._note_standing()

    def next_deadline(self) -> float | None:
        """When `on_tick` is to be called, in seconds on the clock of `now`; None: not needed."""
        turn = self._there.next_turn(self.roster)
        deadlines = [at for at in (self._retry_at, self._recover_at, turn) if at is not None]
        return min(deadlines, default=None)

    # The user's decisions (newcomer without a code)

    def follow(self, host: PeerId, now: float) -> list[Effect]:
        """The words agreed: enter this host's room. Raises UsageError if that is no question."""
        self._check_unsure_of(host)
        self._hosts.add(host)
        return [Decided(host, "", "host"), *self._ask_to_enter(now)]

    def shun(self, host: PeerId, *, block: bool) -> list[Effect]:
        """Leave; `block`: and never enter a room of this host. Raises UsageError."""
        self._check_unsure_of(host)
        blocked: list[Effect] = [Decided(host, "", "blocked")] if block else []
        return [*blocked, *self._leave(RefusedError(_SHUNNED))]

    # The user's decisions (host)

    def approve(self, peer: PeerId) -> list[Effect]:
        """Let a waiting peer in. Raises UsageError if it does not wait."""
        member = self._list.get(peer)
        if self.roster is None or len(self.roster.members) >= MAX_MEMBERS:
            self._list.put_off(peer)
            full = f"The room is full: {member.name} ({short_id(peer)}) waits."
            return [Note(full), self._decide(peer, Decision("later", "full"))]
        self._list.remove(peer)
        return [self._know(member), *self._let_in(member, self.roster)]

    def refuse(self, peer: PeerId) -> list[Effect]:
        """Turn a waiting peer away, for as long as this process runs. Raises UsageError."""
        self._list.remove(peer)
        return self._dismiss(peer, "")

    def block(self, peer: PeerId) -> list[Effect]:
        """Turn a waiting peer away, now and whenever it asks again. Raises UsageError."""
        member = self._list.get(peer)
        self._blocked.add(peer)
        self._known_devices.discard(peer)
        return [Decided(peer, member.name, "blocked"), *self.refuse(peer)]

    def later(self, peer: PeerId) -> list[Effect]:
        """Tell a waiting peer that it has been seen and must be patient, and ask about the next
        one. Raises UsageError."""
        name = self._list.put_off(peer).name
        put_off = f"{name} ({short_id(peer)}) waits; `yes {short_id(peer)}` lets it in."
        return [Note(put_off), self._decide(peer, Decision("later"))]

    def kick(self, peer: PeerId) -> list[Effect]:
        """Remove a member by a new epoch. Raises UsageError if it is none, or the host itself."""
        if not self.decides or self.roster is None:
            raise UsageError("Only the host can remove a peer, or who stands in for it.")
        if peer == self._me.peer_id or self.roster.member(peer) is None:
            raise UsageError(f"{short_id(peer)} is not a member that could be removed.")
        rest = tuple(member for member in self.roster.members if member.id != peer)
        decision, dismissal = self._dismiss(peer, "removed")
        self._known_devices.discard(peer)
        # The server dismisses no member: first the roster without it.
        epoch = self._new_epoch(rest, self.roster.epoch + 1)
        return [decision, *epoch, dismissal, Decided(peer, "", "forgotten")]

    def signal(self, peer: PeerId, kind: str, body: bytes) -> list[Effect]:
        """Seal a message of the mesh (`offer`, `answer`) for a roster member; else drop it."""
        if self.roster is None or self.roster.member(peer) is None:
            return []
        return self._post.send(peer, kind, body)

    # Inside

    def _as_host(self, view: View, now: float) -> list[Effect]:
        roster = self.roster
        if roster is not None and not self.is_host:
            return self._complain("The server takes this node for the host, which it is not.", now)
        if self._has_lost_epochs(view):
            # This host has restarted; its members hold a roster that it signed before.
            if self._recover_at is not None:
                return []
            self._recover_at = now + RECOVER
            others = [peer for peer in view.members if peer != self._me.peer_id]
            return [effect for peer in others for effect in self._post.send(peer, ASK, b"")]
        if roster is None:
            return self._new_epoch((self._self_member(),), 1)
        return [Publish(roster.signed)] if view.epoch < roster.epoch else []

    def _ask_to_enter(self, now: float, *, again: bool = False) -> list[Effect]:
        """Knock at the host, or, as a member without the newest roster, ask any other.
        `again`: the last time was not answered."""
        view = self._view
        if view is None or self.is_host or self.refused:
            return []
        if view.role != "waiting" and not self._is_behind(view):
            return []
        self._retry_at = now + RETRY
        if view.host is not None and (self.roster is None or view.host == self.roster.host):
            if self._is_unsure_of(view.host) and view.host in self._blocked:
                return self._leave(RefusedError(_BLOCKED))
            if self._post.secret is None and (
                not self._post.words(view.host) or (again and not self._post.is_paired(view.host))
            ):
                return self._post.pair(view.host)
            knock = Knock(NODE_PROTOCOL, self._name, self._me.relay_key)
            return self._post.send(view.host, KNOCK, encode(knock))
        others = [peer for peer in view.members if peer != self._me.peer_id]
        return self._post.send(others[0], ASK, b"") if others else []

    def _has_lost_epochs(self, view: View) -> bool:
        """Whether this host signed newer rosters than the one it has."""
        return (self.roster.epoch if self.roster is not None else 0) < view.epoch <= BELIEVED_EPOCH

    def _is_unsure_of(self, host: PeerId) -> bool:
        """Whether this node has neither a code nor its owner's word for this host."""
        trusted = self._approve == "all" or host in self._hosts
        return self.roster is None and self._post.secret is None and not trusted

    def _check_unsure_of(self, host: PeerId) -> None:
        asked = self.unsure_of
        if asked is None or asked[0] != host:
            raise UsageError(f"{short_id(host)} is not a host that you were asked about.")

    def _is_behind(self, view: View) -> bool:
        """Whether a member lacks the newest roster or the room's secret."""
        roster = self.roster
        return roster is None or view.epoch > roster.epoch or self._post.secret is None

    def _on_opened(self, opened: Opened) -> list[Effect]:
        sender, roster = opened.sender, self.roster
        member = roster.member(sender) if roster is not None else None
        try:
            if opened.kind == KNOCK:
                return self._on_knock(opened, decode_knock(opened.body))
            if opened.kind == DECISION:
                return self._on_decision(sender, decode_decision(opened.body))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise PeerError(
                f"From {short_id(sender)}: malformed {opened.kind} ({told(error)})."
            ) from None
        if opened.kind == ROSTER:
            if self._is_unsure_of(sender):
                return []
            return self._take_roster(self._secret.unseal_roster(opened.body), sender)
        if member is None or roster is None:
            raise PeerError(
                f"{short_id(sender)} is no member; its {clean(opened.kind)} was ignored."
            )
        if opened.kind == ASK:
            return self._give_roster(member, roster)
        return [Signal(sender, opened.kind, opened.body)]

    def _on_knock(self, opened: Opened, knock: Knock) -> list[Effect]:
        peer, roster = opened.sender, self.roster
        if not self.decides or roster is None:
            return []
        if knock.protocol != NODE_PROTOCOL:
            return [self._decide(peer, Decision("no", "version"))]
        if self._list.is_dismissed(peer) or peer in self._blocked:
            return self._dismiss(peer, "")
        member = Member(opened.key, knock.relay_key, clean(knock.name))
        self._secret.seal_roster(member, roster)  # PeerError: its relay key is none
        known = roster.member(peer)
        if known is not None and known.relay_key == member.relay_key:
            return [
                self._decide(peer, Decision("yes", roster=self._secret.seal_roster(known, roster)))
            ]
        if self._list.is_full_for(peer):
            return [self._decide(peer, Decision("later", "full"))]
        has_place = known is not None or len(roster.members) < MAX_MEMBERS
        if has_place and (known is not None or self._approve == "all"):
            return self._let_in(member, roster)
        if has_place and self._approve == "known" and peer in self._known_devices:
            return [self._know(member), *self._let_in(member, roster)]
        words = self._post.words(peer) if self._post.is_paired(peer) else ""
        return [Knocked(peer, member.name, words)] if self._list.add(member, words) else []

    def _on_decision(self, sender: PeerId, decision: Decision) -> list[Effect]:
        host = self.roster.host if self.roster else self._view.host if self._view else None
        if sender != host and (decision.verdict != "yes" or self.roster is None):
            raise PeerError(f"{short_id(sender)} decides but is not the host; it was ignored.")
        if decision.verdict == "yes":  # of one who is a member already the roster tells its worth
            if self._is_unsure_of(sender):
                return []  # asked for again once the owner has compared the words
            if self._post.secret is None and sender == host and len(decision.secret) == 32:
                self._post.secret = decision.secret
            return self._take_roster(self._secret.unseal_roster(decision.roster), sender)
        if decision.verdict == "later":
            why = "The room is full" if decision.reason == "full" else "The host has seen you"
            return [Note(f"{why}; waiting for the host's decision.")]
        if decision.reason == "version":
            return self._leave(
                VersionMismatchError(
                    "The host runs another version of this program. Install the same version on "
                    "both machines."
                )
            )
        removed = decision.reason == "removed"
        return self._leave(RefusedError(_REMOVED if removed else "The host said no."))

    def _take_roster(self, new: Roster, sender: PeerId | None) -> list[Effect]:
        """Act on a verified roster. Raises PeerError if it is of a host not followed here."""
        old = self.roster
        verdict = judge(new, old, self._me.peer_id, sender, self._view, self._there)
        if verdict is Verdict.IGNORE:
            return []
        self._retry_at = None
        if verdict is Verdict.REMOVED:
            return self._leave(RefusedError(_REMOVED))
        if verdict is Verdict.RECOVER:
            return self._recover(new)
        if verdict is Verdict.MERGE:
            return self._merge(new)
        self.roster = new
        removed = tuple(peer for peer in (old.ids if old else ()) if peer not in new.ids)
        return [*self._move_inside(new), RosterChanged(new, removed)]

    def _recover(self, earlier: Roster) -> list[Effect]:
        """A restarted host got its roster back: all of it and whom it has let in since."""
        self._recover_at = None
        view, since = self._view, self.roster.members if self.roster is not None else ()
        shown = view.epoch if view is not None and self._has_lost_epochs(view) else 0
        members = (*earlier.members, *since)
        return self._go_on_with(members, max(earlier.epoch, shown) + 1, earlier.removed)

    def _merge(self, other: Roster) -> list[Effect]:
        """Somebody stood in for this node: go on with whom it let in, without whom either put
        out."""
        mine = self.roster
        assert mine is not None  # or there is nothing to merge with
        out = (*mine.removed, *other.removed)
        members = tuple(m for m in (*mine.members, *other.members) if m.id not in out)
        return self._go_on_with(members, max(mine.epoch, other.epoch) + 1, out)

    def _go_on_with(
        self, members: tuple[Member, ...], epoch: int, out: tuple[PeerId, ...]
    ) -> list[Effect]:
        """A roster after two of one room: each member once, and none that was turned away."""
        kept = {
            member.id: member
            for member in reversed(members)
            if not self._list.is_dismissed(member.id)
            and member.id not in self._blocked
            and self._secret.can_have(member)
        }
        self._secret.forget()  # there were two; who was put out of either knows one
        order = (peer for peer in dict.fromkeys(m.id for m in members) if peer in kept)
        return self._new_epoch(tuple(kept[peer] for peer in order)[:MAX_MEMBERS], epoch, out)

    def _leave(self, error: P2PNodeError) -> list[Effect]:
        self.refused = True
        self._retry_at = None
        return [Refused(error)]

    def _self_member(self) -> Member:
        return Member(self._me.key, self._me.relay_key, self._name)

    def _new_epoch(
        self, members: tuple[Member, ...], epoch: int, out: tuple[PeerId, ...] = ()
    ) -> list[Effect]:
        """Sign a roster and hand it out. When somebody is put out the room gets a new secret,
        which that one is not told."""
        old = self.roster
        before = old.ids if old else ()
        new = self.roster = self._secret.sign(old, members, epoch, out)
        self._enter_inside()
        gone = tuple(peer for peer in before if peer not in new.ids)
        effects: list[Effect] = [
            RosterChanged(new, gone),
            Publish(new.signed),
        ]
        for member in new.members:
            if member.id == self._me.peer_id:
                continue
            if member.id not in before:
                decision = Decision("yes", roster=self._secret.seal_roster(member, new))
                effects.append(self._decide(member.id, decision))
            elif self._view is not None and member.id in self._view.members:
                effects += self._give_roster(member, new)
        return effects

    def _give_roster(self, member: Member, roster: Roster) -> list[Effect]:
        return self._post.send(member.id, ROSTER, self._secret.seal_roster(member, roster))

    def _move_inside(self, roster: Roster) -> list[Effect]:
        """Take up the room's present secret. A host that sealed nonsense is told of."""
        try:
            self._secret.take(roster)
        except PeerError as error:
            return [Note(str(error))]
        self._enter_inside()
        return []

    def _enter_inside(self) -> None:
        if self._secret.current is not None:
            self._post.move_inside(self._secret.current)

    def _let_in(self, member: Member, roster: Roster) -> list[Effect]:
        others = tuple(other for other in roster.members if other.id != member.id)
        return self._new_epoch((*others, member), roster.epoch + 1)

    def _know(self, member: Member) -> Effect:
        self._known_devices.add(member.id)
        return Decided(member.id, member.name, "known")

    def _dismiss(self, peer: PeerId, reason: str) -> list[Effect]:
        self._list.dismiss(peer)
        return [self._decide(peer, Decision("no", reason)), DismissPeer(peer)]

    def _known(self, peer: PeerId) -> bool:
        view, roster = self._view, self.roster
        return (
            (roster is not None and roster.member(peer) is not None)
            or (view is not None and (peer == view.host or peer in view.members))
            or (view is not None and peer in view.waiting)
        )

    def _decide(self, peer: PeerId, decision: Decision) -> Effect:
        secret = self._post.secret
        if decision.verdict == "yes" and secret is not None and self._post.is_paired(peer):
            decision = msgspec.structs.replace(decision, secret=secret)
        return self._post.send(peer, DECISION, encode(decision))[0]

    def _complain(self, text: str, now: float) -> list[Effect]:
        if now < self._quiet_until:
            return []
        self._quiet_until = now + QUIET
        return [Note(text)]

    def _note_standing(self) -> list[Effect]:
        """A `Standing` if it differs from the last one, and a note when this node's turn came."""
        acting = self.decides and not self.is_host
        if acting != self._told_acting:
            self._told_acting = acting
            if acting:
                return [Note(_ACTING), *self._note_standing()]
        view, roster = self._view, self.roster
        if roster is not None:
            standing = Standing("host" if self.is_host else "member", roster.host)
        elif view is not None:
            standing = Standing("waiting", view.host)
        else:
            return []
        if standing == self._standing:
            return []
        self._standing = standing
        return [standing]
