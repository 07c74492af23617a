"""A node's place in a room: signaling, admission, the roster, and a link to every member.

Everything that does not depend on a run. May import: devices, memberships, net,
protocol, sources, ui, node_config, errors, and `signaling.messages`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import Sequence
from typing import Protocol

from yarl import URL

from p2pnode.devices import Devices
from p2pnode.errors import IdentityError, OtherHostError, PeerError, RefusedError, UsageError
from p2pnode.memberships import Memberships
from p2pnode.net import events as wire
from p2pnode.net.ice import IceMode, IcePolicy
from p2pnode.net.ice_servers import IceServer, SilentServers, chosen
from p2pnode.net.mesh import Mesh
from p2pnode.net.signaling_client import Lent, Offline, Registered, SignalingClient
from p2pnode.net.signaling_url import data_url, is_loopback
from p2pnode.net.signals import Signal, decode_signal, encode_signal
from p2pnode.node_config import NodeConfig
from p2pnode.protocol import admit_effects
from p2pnode.protocol.admit import Admission
from p2pnode.protocol.attendance import Attendance, Sign
from p2pnode.protocol.code import Invite as Invitation
from p2pnode.protocol.code import RoomKeys
from p2pnode.protocol.identity import Identity, PeerId, short_id
from p2pnode.protocol.lobby import (
    Announce,
    LedgerLines,
    LedgerMessage,
    LobbyMessage,
    RosterNews,
    decode_lobby,
    encode_lobby,
)
from p2pnode.protocol.roster import Roster, open_roster
from p2pnode.sources.proxied import DataProxy, Offer
from p2pnode.ui.console import Console
from p2pnode.ui.events import Compare, Info, Invite, Joined, Knock, Left, Waiting, Warn
from signaling.messages import DataOffer, Relayed, View
from signaling.messages import IceServer as Recommended


@dataclasses.dataclass(frozen=True)
class Ticket:
    """What it takes to enter a room."""

    config: NodeConfig
    identity: Identity
    code: str
    keys: RoomKeys
    server: URL


class Occupant(Protocol):
    """Who lives in the room: told what happens there, on the event loop."""

    def on_host(self) -> None:
        """This node is the room's host, and the room is open."""

    def on_deposed(self) -> None:
        """The server had lost the room, and its true host is back: this node is not host."""

    def on_link_up(self, peer: PeerId) -> None: ...
    def on_link_down(self, peer: PeerId) -> None: ...
    def on_heard(self, heard: wire.Heard) -> None: ...
    def on_lobby(self, peer: PeerId, message: LobbyMessage) -> None: ...

    def on_message(self, message: wire.Received) -> None:
        """A message of the run."""

    def on_roster(self, roster: Roster, removed: tuple[PeerId, ...]) -> None: ...

    def on_refused(self, error: Exception) -> None:
        """This node may not stay."""


class Room:
    """One membership. Enter with `async with`, then keep `run` running."""

    def __init__(self, ticket: Ticket, console: Console, occupant: Occupant) -> None:
        config = ticket.config
        self.identity = ticket.identity
        self.id = ticket.keys.room
        self._config = config
        self._server = ticket.server
        self._code = ticket.code
        self._console = console
        self._occupant = occupant
        self._memberships = Memberships(config.home)
        self._devices = Devices(config.home)
        saved = self._saved_roster()
        self._admission = Admission(
            ticket.identity,
            room=ticket.keys.room,
            secret=ticket.keys.secret,
            name=config.name,
            approve=config.approve,
            random=secrets.token_bytes,
            saved=saved,
            known=self._devices.known(),
            blocked=self._devices.blocked(),
            hosts=self._devices.hosts(),
            nearby=config.nearby,
        )
        self._client = SignalingClient(
            ticket.server,
            ticket.identity,
            ticket.keys.room,
            guest=config.guest,
            nearby=config.nearby,
        )
        self._ice_mode = {
            "auto": IceMode.LOOPBACK if is_loopback(ticket.server) else IceMode.DEFAULT,
            "loopback": IceMode.LOOPBACK,
            "all": IceMode.DEFAULT,
            "relay": IceMode.RELAY,
        }[config.addresses]
        self._own_ice = tuple(IceServer.parse(text) for text in config.ice_servers)
        self._silent_servers = SilentServers()
        self._loop = asyncio.get_running_loop()
        self.proxy = DataProxy(self._say)
        """What the server serves of the run's text."""
        self._online = True
        self._invited = False
        self._waiting_shown = False
        self._host_absent = False
        self._shown: frozenset[PeerId] | None = None
        """Members that the server shows; None while it shows none of them to this node."""
        self._attendance = Attendance(ticket.identity.peer_id)
        self._timer: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._asked: PeerId | None = None
        self._question: str | None = None
        self.mesh: Mesh

    async def __aenter__(self) -> Room:
        """Register at the server. Raises P2PNodeError if that fails."""
        if self.roster is not None:
            self._client.set_roster(self.roster.signed)
        try:
            await self._client.__aenter__()
        except OtherHostError as error:
            raise OtherHostError(
                f"{error} If that is as it should be, remove {self._memberships.path(self.id)} "
                "and join again; else take another room code."
            ) from None
        self.mesh = Mesh(
            self.identity.peer_id,
            on_event=self._on_mesh,
            send_signal=self._send_signal,
            ice=self._ice_policy(()),
            relay_key=self.identity.relay_private_key,
        )
        try:
            self.mesh.start()
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        self._admit(self._admission.start())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.mesh.close()
        for timer in (self._timer, self._next_look):
            if timer is not None:
                timer.cancel()
        await self._client.__aexit__(None, None, None)

    async def run(self) -> None:
        """Follow the server for as long as the node lives; raises what turns this node away."""
        async for event in self._client:
            now = asyncio.get_running_loop().time()
            match event:
                case Registered():
                    self.mesh.set_ice(self._ice_policy(event.ice))
                    if not self._online:
                        self._online = True
                        self._console.show(Info(text="The signaling server is back."))
                case Lent():
                    self.mesh.set_ice(self._ice_policy(event.ice))
                    self.proxy.offer = self._offer(event.data)
                case Offline():
                    self.proxy.offer = None
                    self._shown = None
                    self._look_around()
                    if self._online:
                        self._online = False
                        self._console.show(
                            Warn(
                                text=f"{event.reason} Training goes on; "
                                "new machines can join when the server is back."
                            )
                        )
                case View():
                    self._note_host(event)
                    self._admit(self._admission.on_view(event, now))
                    self._note_presence(event)
                case Relayed():
                    self._admit(self._admission.on_relayed(event.sender, event.sealed, now))

    def _say(self, text: str) -> None:
        """In any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody reads it any more
            self._loop.call_soon_threadsafe(self._console.show, Info(text=text))

    def _offer(self, data: DataOffer | None) -> Offer | None:
        if data is None:
            return None
        return Offer(data_url(self._server), data.token.hex(), data.sources)

    def _saved_roster(self) -> Roster | None:
        """What this node knew of the room when it last ran; None if nothing that counts."""
        raw = self._memberships.load(self.id)
        if raw is None:
            return None
        try:
            saved = open_roster(raw, self.id)
        except PeerError:  # damaged, as by a power cut: ask anew
            return None
        # A guest never becomes host, not even again.
        return None if self._config.guest and saved.host == self.identity.peer_id else saved

    def _remember(self, roster: Roster) -> None:
        """Keep the roster for the next start; one that holds nobody else is not worth it, unless
        it says that somebody was removed."""
        alone = len(roster.members) == 1 and self._memberships.load(self.id) is None
        if alone:
            return
        try:
            self._memberships.save(self.id, roster.encode())
        except OSError as error:
            path = self._memberships.path(self.id)
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

    def _note_presence(self, view: View) -> None:
        """Members that have just come can be offered a link at once."""
        for peer in set(view.members) - (self._shown or frozenset()):
            self.mesh.reachable(peer)
        self._shown = None if view.role == "waiting" else frozenset(view.members)
        self._look_around()

    def _look_around(self) -> None:
        """Say which members are not where they should be."""
        loop = asyncio.get_running_loop()
        members = self.roster.ids if self.roster is not None else ()
        due = self._attendance.look(members, self._shown, self.mesh.links(), loop.time())
        for sign, peers in due.items():
            names = ", ".join(f"{self.name(peer)} ({short_id(peer)})" for peer in peers)
            if sign is Sign.HIDDEN:
                text = f"The server does not show {names}, though linked to this machine: either "
                text += "their connection to it is broken, or it keeps members apart."
                self._console.show(Warn(text=text))
            else:
                text = f"{len(peers)} of {len(members)} members are not here: {names}. They are "
                text += "switched off or cut off, or the server keeps you apart."
                self._console.show(Info(text=text))
        if self._next_look is not None:
            self._next_look.cancel()
        at = self._attendance.next_deadline()
        self._next_look = None if at is None else loop.call_at(at, self._look_around)

    def _note_host(self, view: View) -> None:
        """Tell a waiting owner when nobody is there who could answer."""
        absent = view.role == "waiting" and view.host is None
        if absent and not self._host_absent:
            self._console.show(Info(text="The host is not connected; waiting for it."))
        self._host_absent = absent

    # What the occupant uses

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

    def signers(self) -> tuple[Sequence[PeerId], Sequence[PeerId]]:
        """Who may sign a record, in join order, and who could before it was removed."""
        return (self.roster.ids, self.roster.removed) if self.roster is not None else ((), ())

    def name(self, peer: PeerId) -> str:
        """A member's name, cleaned for display."""
        member = self.roster.member(peer) if self.roster is not None else None
        return member.name if member is not None else short_id(peer)

    def members(self) -> list[tuple[PeerId, str, str]]:
        """Id, name and state of every member, in join order."""
        links = self.mesh.links()
        out = []
        for member in self.roster.members if self.roster is not None else ():
            if member.id == self.identity.peer_id:
                state = "this machine"
            elif member.id in links:
                stats = self.mesh.stats(member.id)
                rtt = f", {stats.rtt * 1000:.0f} ms" if stats and stats.rtt is not None else ""
                turn = ", via TURN" if self.mesh.via_turn(member.id) else ""
                state = f"connected{rtt}{turn}"
            else:
                state = "not connected"
            out.append((member.id, member.name, state))
        return out

    def tell(self, peer: PeerId, message: LobbyMessage) -> None:
        """Send a lobby message to a linked member."""
        bulky = isinstance(message, Announce | LedgerLines)
        # Of those of a ledger only the newest counts: a member that asks for ever and reads nothing
        # must not fill the queue.
        only = isinstance(message, LedgerMessage)
        self.mesh.send(
            peer,
            [encode_lobby(message)],
            wire.Priority.STATE if bulky else wire.Priority.CONTROL,
            key=type(message).__name__ if only else None,
            run=wire.NO_RUN,
        )

    def tell_all(self, message: LobbyMessage) -> None:
        """Send a lobby message to every linked member."""
        for peer in self.mesh.links():
            self.tell(peer, message)

    def decide(self, peer: PeerId, verdict: str) -> None:
        """`yes`, `no`, `later` or `block` for the peer that is asked about, or, at the host, for
        another one that waits. Raises UsageError."""
        unsure = self._admission.unsure_of
        if unsure is not None and peer == unsure[0]:
            if verdict == "yes":
                now = asyncio.get_running_loop().time()
                self._admit(self._admission.follow(peer, now))
            elif verdict != "later":
                self._admit(self._admission.shun(peer, block=verdict == "block"))
            return
        actions = {
            "yes": self._admission.approve,
            "no": self._admission.refuse,
            "later": self._admission.later,
            "block": self._admission.block,
        }
        self._admit(actions[verdict](peer))

    def kick(self, peer: PeerId) -> None:
        """Host: remove a member. Raises UsageError."""
        self._admit(self._admission.kick(peer))

    # Admission

    def _admit(self, todo: list[admit_effects.Effect]) -> None:
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
                case admit_effects.KnockGone():
                    pass  # the prompt is brought up to date below
                case admit_effects.Decided():
                    self._remember_device(effect)
                case admit_effects.RosterChanged():
                    self._on_roster(effect.roster, effect.removed)
                case admit_effects.Standing():
                    self._on_standing(effect)
                case admit_effects.Signal():
                    self._on_signal(effect)
                case admit_effects.Refused():
                    if isinstance(effect.error, RefusedError):
                        self._memberships.forget(self.id)
                    self._occupant.on_refused(effect.error)
                case admit_effects.Note():
                    self._console.show(Info(text=effect.text))
        self._ask_next()
        self._arm_timer()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._admission.next_deadline()
        loop = asyncio.get_running_loop()
        self._timer = (
            None
            if at is None
            else loop.call_at(at, lambda: self._admit(self._admission.on_tick(loop.time())))
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
            self._occupant.on_deposed()
        if standing.role == "waiting" and not self._waiting_shown:
            self._waiting_shown = True
            self._console.show(Waiting(host=short_id(standing.host) if standing.host else ""))
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
            self._occupant.on_host()

    def _on_roster(self, roster: Roster, removed: tuple[PeerId, ...]) -> None:
        self._client.set_roster(roster.signed)
        self._remember(roster)
        self.mesh.set_members({member.id: member.relay_key for member in roster.members})
        self.tell_all(RosterNews(roster.encode()))
        self._look_around()
        self._occupant.on_roster(roster, removed)

    # The mesh

    def _on_signal(self, effect: admit_effects.Signal) -> None:
        try:
            self.mesh.signal(effect.peer, decode_signal(effect.body))
        except PeerError as error:
            self._console.show(Info(text=f"{self.name(effect.peer)} {error}"))

    def _send_signal(self, peer: PeerId, signal: Signal) -> None:
        self._admit(self._admission.signal(peer, "signal", encode_signal(signal)))

    def _ice_policy(self, recommended: tuple[Recommended, ...]) -> IcePolicy:
        """The owner's servers, and the ones the signaling server recommends where there are none
        of that kind."""
        theirs: list[IceServer] = []
        for server in recommended:
            for url in server.urls:
                try:
                    theirs.append(IceServer.parse(url, server.username, server.credential))
                except UsageError as error:
                    self._console.show(
                        Warn(text=f"The server recommends an ICE server of no use: {error}")
                    )
        return IcePolicy(
            mode=self._ice_mode,
            servers=chosen(self._own_ice, theirs),
            silent=self._silent_servers,
        )

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        self._admit(self._admission.on_links(self.mesh.links(), now))

    def _on_mesh(self, event: wire.MeshEvent) -> None:
        match event:
            case wire.Heard():
                self._occupant.on_heard(event)
            case wire.Received(run=wire.NO_RUN):
                self._on_lobby(event)
            case wire.Received():
                self._occupant.on_message(event)
            case wire.LinkUp(peer=peer):
                self._look()
                connected = len(self.mesh.links()) + 1
                self._console.show(
                    Joined(
                        peer=short_id(peer),
                        name=self.name(peer),
                        connected=connected,
                        turn=self.mesh.via_turn(peer),
                    )
                )
                if self.roster is not None:
                    self.tell(peer, RosterNews(self.roster.encode()))
                self._occupant.on_link_up(peer)
                self._look_around()
            case wire.Unlinked(peer=peer):
                self._console.show(
                    Warn(
                        text=f"No direct connection to {self.name(peer)} ({short_id(peer)}): "
                        f"{event.reason}. It is tried again, and meanwhile what you say to each "
                        "other goes through another machine, if there is one. Between strict "
                        "networks a TURN server helps (--turn)."
                    )
                )
            case wire.LinkDown(peer=peer):
                self._look()
                connected = len(self.mesh.links()) + 1
                self._console.show(
                    Left(
                        peer=short_id(peer),
                        name=self.name(peer),
                        reason=event.reason,
                        connected=connected,
                    )
                )
                self._occupant.on_link_down(peer)
                self._look_around()

    def _on_lobby(self, event: wire.Received) -> None:
        try:
            message = decode_lobby(event.message)
        except PeerError as error:
            self.mesh.drop(event.peer, str(error))
            return
        if isinstance(message, RosterNews):
            self._look()
            self._admit(self._admission.on_roster(message.roster))
        else:
            self._occupant.on_lobby(event.peer, message)
