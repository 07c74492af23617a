"""A node's place in a room: the signaling server, its door, and a link to every member.

Everything that does not depend on a run. May import: door, net, protocol, sources, ui, errors, and
`signaling.messages`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from p2pnode.door import Door, Entrant, Ticket
from p2pnode.errors import OtherHostError, PeerError, UsageError
from p2pnode.net import events as wire
from p2pnode.net.ice import IceMode, IcePolicy
from p2pnode.net.ice_servers import IceServer, SilentServers, chosen
from p2pnode.net.mesh import Mesh
from p2pnode.net.signaling_client import Lent, Offline, Registered, SignalingClient
from p2pnode.net.signaling_url import data_url, is_loopback
from p2pnode.net.signals import Signal, decode_signal, encode_signal
from p2pnode.protocol.attendance import Attendance, Sign
from p2pnode.protocol.identity import PeerId, short_id
from p2pnode.protocol.lobby import (
    Announce,
    LedgerLines,
    LedgerMessage,
    LobbyMessage,
    RosterNews,
    decode_lobby,
    encode_lobby,
)
from p2pnode.protocol.roster import Roster
from p2pnode.sources.proxied import DataProxy, Offer
from p2pnode.ui.console import Console
from p2pnode.ui.events import Info, Joined, Left, Warn
from signaling.messages import DataOffer, Relayed, View
from signaling.messages import IceServer as Recommended


class Occupant(Entrant, Protocol):
    """Who lives in the room: told what happens there, on the event loop."""

    def on_link_up(self, peer: PeerId) -> None: ...
    def on_link_down(self, peer: PeerId) -> None: ...
    def on_heard(self, heard: wire.Heard) -> None: ...
    def on_lobby(self, peer: PeerId, message: LobbyMessage) -> None: ...

    def on_message(self, message: wire.Received) -> None:
        """A message of the run."""

    def on_roster(self, roster: Roster, removed: tuple[PeerId, ...]) -> None: ...


class Room:
    """One membership. Enter with `async with`, then keep `run` running."""

    def __init__(self, ticket: Ticket, console: Console, occupant: Occupant) -> None:
        config = ticket.config
        self.identity = ticket.identity
        self.id = ticket.keys.room
        self._server = ticket.server
        self._console = console
        self._occupant = occupant
        self._client = SignalingClient(
            ticket.server,
            ticket.identity,
            ticket.keys.room,
            guest=config.guest,
            nearby=config.nearby,
        )
        self.door = Door(
            ticket,
            console,
            self._client,
            occupant,
            on_roster=self._on_roster,
            on_signal=self._on_signal,
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
        self._names: dict[PeerId, str] = {}
        self._shown: frozenset[PeerId] | None = None
        """Members that the server shows; None while it shows none of them to this node."""
        self._attendance = Attendance(ticket.identity.peer_id)
        self._next_look: asyncio.TimerHandle | None = None
        self.mesh: Mesh

    async def __aenter__(self) -> Room:
        """Register at the server. Raises P2PNodeError if that fails."""
        if self.roster is not None:
            self._client.set_roster(self.roster.signed)
        try:
            await self._client.__aenter__()
        except OtherHostError as error:
            raise OtherHostError(
                f"{error} If that is as it should be, remove {self.door.roster_file} "
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
        self.door.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.mesh.close()
        self.door.close()
        if self._next_look is not None:
            self._next_look.cancel()
        await self._client.__aexit__(None, None, None)

    async def run(self) -> None:
        """Follow the server for as long as the node lives; raises what turns this node away."""
        async for event in self._client:
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
                    self.door.view(event)
                    self._note_presence(event)
                case Relayed():
                    self.door.relayed(event)

    def _say(self, text: str) -> None:
        """In any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody reads it any more
            self._loop.call_soon_threadsafe(self._console.show, Info(text=text))

    def _offer(self, data: DataOffer | None) -> Offer | None:
        if data is None:
            return None
        return Offer(data_url(self._server), data.token.hex(), data.sources)

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

    # What the occupant uses; who may come in, and may not, is the door's

    @property
    def roster(self) -> Roster | None:
        """The newest roster; None until this node is a member."""
        return self.door.roster

    def signers(self) -> tuple[Sequence[PeerId], Sequence[PeerId]]:
        """Who may sign a record, in join order, and who could before it was removed."""
        return (self.roster.ids, self.roster.removed) if self.roster is not None else ((), ())

    def name(self, peer: PeerId) -> str:
        """A member's name, cleaned for display; also that of one who was removed just now."""
        member = self.roster.member(peer) if self.roster is not None else None
        return member.name if member is not None else self._names.get(peer, short_id(peer))

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

    def _on_roster(self, roster: Roster, removed: tuple[PeerId, ...]) -> None:
        gone = {peer: self._names[peer] for peer in removed if peer in self._names}
        self._names = {member.id: member.name for member in roster.members} | gone
        self.mesh.set_members({member.id: member.relay_key for member in roster.members})
        self.tell_all(RosterNews(roster.encode()))
        self._look_around()
        self._occupant.on_roster(roster, removed)

    # The mesh

    def _on_signal(self, peer: PeerId, body: bytes) -> None:
        try:
            self.mesh.signal(peer, decode_signal(body))
        except PeerError as error:
            self._console.show(Info(text=f"{self.name(peer)} {error}"))

    def _send_signal(self, peer: PeerId, signal: Signal) -> None:
        self.door.send_signal(peer, encode_signal(signal))

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
        self.door.links(self.mesh.links())

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
            self.door.heard_roster(message.roster)
        else:
            self._occupant.on_lobby(event.peer, message)
