"""The door of a room: this node's way in, and, where it decides, whom it lets in after it.

Carries out what the admission core decides, asks the owner, and remembers rosters and devices for
the next start. May import: devices, memberships, net.signaling_client, protocol, ui, node_config,
errors, and `signaling.messages`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Callable, Set
from typing import Protocol

from yarl import URL

from p2pnode.devices import Devices
from p2pnode.errors import IdentityError, PeerError, RefusedError
from p2pnode.memberships import Memberships
from p2pnode.net.signaling_client import SignalingClient
from p2pnode.node_config import NodeConfig
from p2pnode.protocol import admit_effects
from p2pnode.protocol.admit import Admission
from p2pnode.protocol.code import Invite as Invitation
from p2pnode.protocol.code import RoomKeys
from p2pnode.protocol.identity import Identity, PeerId, short_id
from p2pnode.protocol.roster import Roster, open_roster
from p2pnode.ui.console import Console
from p2pnode.ui.events import Compare, Info, Invite, Knock, Waiting, Warn
from signaling.messages import Relayed, View


@dataclasses.dataclass(frozen=True)
class Ticket:
    """What it takes to enter a room."""

    config: NodeConfig
    identity: Identity
    code: str
    keys: RoomKeys
    server: URL


class Entrant(Protocol):
    """Who comes in: told on the event loop how it stands in the room."""

    def on_host(self) -> None:
        """This node is the room's host, and the room is open."""

    def on_deposed(self) -> None:
        """The server had lost the room, and its true host is back: this node is not host."""

    def on_refused(self, error: Exception) -> None:
        """This node may not stay."""


class Door:
    """One node's admission. All methods are called on the event loop."""

    def __init__(
        self,
        ticket: Ticket,
        console: Console,
        client: SignalingClient,
        entrant: Entrant,
        *,
        on_roster: Callable[[Roster, tuple[PeerId, ...]], None],
        on_signal: Callable[[PeerId, bytes], None],
    ) -> None:
        """`on_roster` is told of each new roster and who is in it no longer, `on_signal` what a
        member says to the mesh through the server."""
        config = self._config = ticket.config
        self._me = ticket.identity.peer_id
        self._room = ticket.keys.room
        self._code = ticket.code
        self._console = console
        self._client = client
        self._entrant = entrant
        self._on_roster = on_roster
        self._on_signal = on_signal
        self._memberships = Memberships(config.home)
        self._devices = Devices(config.home)
        self._admission = Admission(
            ticket.identity,
            room=ticket.keys.room,
            secret=ticket.keys.secret,
            name=config.name,
            approve=config.approve,
            random=secrets.token_bytes,
            saved=self._saved_roster(),
            known=self._devices.known(),
            blocked=self._devices.blocked(),
            hosts=self._devices.hosts(),
            nearby=config.nearby,
        )
        self._invited = False
        self._waiting_shown = False
        self._let_in_shown = False
        self._host_absent = False
        self._timer: asyncio.TimerHandle | None = None
        self._asked: PeerId | None = None
        self._question: str | None = None

    @property
    def roster(self) -> Roster | None:
        """The newest roster; None until this node is a member."""
        return self._admission.roster

    @property
    def is_host(self) -> bool:
        return self._admission.is_host

    @property
    def decides(self) -> bool:
        """Whether this node's owner decides for the room, as host or in its place."""
        return self._admission.decides

    @property
    def asked(self) -> PeerId | None:
        """The peer that the prompt asks about: one that would come in, or a host to follow."""
        return self._asked

    @property
    def waiting(self) -> dict[PeerId, str]:
        """Peers that wait for this host's decision, with their names."""
        return self._admission.waiting

    @property
    def roster_file(self) -> str:
        """Where the room's roster is kept, for messages to the owner."""
        return str(self._memberships.path(self._room))

    # What happens

    def start(self) -> None:
        """Call once, before the first view."""
        self._carry_out(self._admission.start())

    def close(self) -> None:
        """No timer goes off after this."""
        if self._timer is not None:
            self._timer.cancel()

    def view(self, view: View) -> None:
        """The server shows the room."""
        absent = view.role == "waiting" and view.host is None
        if absent and not self._host_absent:
            self._console.show(Info(text="The host is not connected; waiting for it."))
        self._host_absent = absent
        self._carry_out(self._admission.on_view(view, self._now()))

    def relayed(self, relayed: Relayed) -> None:
        """The server relays an envelope."""
        now = self._now()
        self._carry_out(self._admission.on_relayed(relayed.sender, relayed.sealed, now))

    def links(self, links: Set[PeerId]) -> None:
        """Whom this node has a link to."""
        self._carry_out(self._admission.on_links(links, self._now()))

    def heard_roster(self, encoded: bytes) -> None:
        """A member's newest roster (`Roster.encode`)."""
        self._carry_out(self._admission.on_roster(encoded))

    def send_signal(self, peer: PeerId, body: bytes) -> None:
        """Say something of the mesh to a member, through the server."""
        self._carry_out(self._admission.signal(peer, "signal", body))

    # What the owner decides

    def decide(self, peer: PeerId, verdict: str) -> None:
        """`yes`, `no`, `later` or `block` for the peer that is asked about, or, at the host, for
        another one that waits. Raises UsageError."""
        unsure = self._admission.unsure_of
        if unsure is not None and peer == unsure[0]:
            if verdict == "yes":
                self._carry_out(self._admission.follow(peer, self._now()))
            elif verdict != "later":
                self._carry_out(self._admission.shun(peer, block=verdict == "block"))
            return
        actions = {
            "yes": self._admission.approve,
            "no": self._admission.refuse,
            "later": self._admission.later,
            "block": self._admission.block,
        }
        self._carry_out(actions[verdict](peer))

    def kick(self, peer: PeerId) -> None:
        """Host: remove a member. Raises UsageError."""
        self._carry_out(self._admission.kick(peer))

    # Effects

    def _carry_out(self, todo: list[admit_effects.Effect]) -> None:
        for effect in todo:
            match effect:
                case admit_effects.Send():
                    self._client.send_envelope(effect.to, effect.sealed)
                case admit_effects.Publish():
                    self._client.publish_roster(effect.signed)
                case admit_effects.DismissPeer():
                    self._client.dismiss(effect.peer)
                case admit_effects.Knocked():
                    self._console.show(
                        Knock(peer=short_id(effect.peer), name=effect.name, words=effect.words)
                    )
                case admit_effects.Paired():
                    self._console.show(Compare(host=short_id(effect.peer), words=effect.words))
                case admit_effects.Decided():
                    self._remember_device(effect)
                case admit_effects.RosterChanged():
                    self._client.set_roster(effect.roster.signed)
                    self._remember(effect.roster)
                    self._on_roster(effect.roster, effect.removed)
                case admit_effects.Standing():
                    self._on_standing(effect)
                case admit_effects.Signal():
                    self._on_signal(effect.peer, effect.body)
                case admit_effects.Refused():
                    if isinstance(effect.error, RefusedError):
                        self._memberships.forget(self._room)
                    self._entrant.on_refused(effect.error)
                case admit_effects.Note():
                    self._console.show(Info(text=effect.text))
        self._ask_next()
        self._arm_timer()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _arm_timer(self) -> None:
        self.close()
        at = self._admission.next_deadline()
        loop = asyncio.get_running_loop()
        self._timer = (
            None
            if at is None
            else loop.call_at(at, lambda: self._carry_out(self._admission.on_tick(loop.time())))
        )

    def _ask_next(self) -> None:
        """Put the oldest pending request into the prompt, but for those that were put off."""
        peer = self._asked = self._admission.to_ask
        question = None
        if peer is not None:
            question = f"Let {self._admission.waiting[peer]} ({short_id(peer)}) in?"
            if words := self._admission.words(peer):
                question = f"{question} Only if its terminal shows: {words}."
        elif unsure := self._admission.unsure_of:
            self._asked, words = unsure
            question = (
                f"Enter the room of {short_id(self._asked)}? Only if its terminal shows: {words}."
            )
        if question != self._question:
            self._question = question
            self._console.ask(question)

    def _on_standing(self, standing: admit_effects.Standing) -> None:
        if standing.role == "waiting" and self._invited:
            self._invited = False
            self._entrant.on_deposed()
        if standing.role == "waiting" and not self._waiting_shown:
            self._waiting_shown = True
            self._console.show(Waiting(host=short_id(standing.host) if standing.host else ""))
        if standing.role == "member" and self._waiting_shown and not self._let_in_shown:
            self._let_in_shown = True
            self._console.show(Info(text="The host has let this machine in; connecting."))
        if standing.role == "host" and self.is_host and not self._invited:
            self._invited = True
            url = self._config.signal
            self._console.show(
                Invite(
                    server=url,
                    code=self._code,
                    command=f"python -m p2pnode join --guest --room {Invitation(self._code, url)}",
                )
            )
            if self._config.nearby:
                self._console.show(
                    Info(
                        text="Machines behind this one's public address need no code. On them run:"
                        f"\n    python -m p2pnode join --nearby --guest --signal {url}\n"
                        "You will be shown six words for each; let it in only if it shows the same."
                    )
                )
            self._entrant.on_host()

    # What is remembered

    def _saved_roster(self) -> Roster | None:
        """What this node knew of the room when it last ran; None if nothing that counts."""
        raw = self._memberships.load(self._room)
        if raw is None:
            return None
        try:
            saved = open_roster(raw, self._room)
        except PeerError:  # damaged, as by a power cut: ask anew
            return None
        # A guest never becomes host, not even again.
        return None if self._config.guest and saved.host == self._me else saved

    def _remember(self, roster: Roster) -> None:
        """Keep the roster for the next start; one that holds nobody else is not worth it, unless
        it says that somebody was removed."""
        alone = len(roster.members) == 1 and self._memberships.load(self._room) is None
        if alone:
            return
        try:
            self._memberships.save(self._room, roster.encode())
        except OSError as error:
            path = self._memberships.path(self._room)
            self._console.show(
                Warn(
                    text=f"Cannot write {path} ({error.strerror}): after a restart this node "
                    "would have to be approved again."
                )
            )

    def _remember_device(self, decided: admit_effects.Decided) -> None:
        try:
            if decided.verdict == "forgotten":
                self._devices.forget(decided.peer)
            else:
                self._devices.decide(decided.peer, decided.name, decided.verdict)
        except (OSError, IdentityError) as error:
            self._console.show(
                Warn(text=f"What you decided holds until this node ends; not saved: {error}")
            )
