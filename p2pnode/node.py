"""The composition root: one node in one room, from its key to the final checkpoint.

Puts the parts together, has the run prepared and begun, and passes on what happens in the room and
what the owner types. May import: everything but cli, demo and join.
"""

from __future__ import annotations

import asyncio

from p2pnode.chain_file import ChainFile
from p2pnode.config import RunOptions
from p2pnode.door import Ticket
from p2pnode.errors import ConfigError, P2PNodeError, PeerError, RefusedError, RunMismatchError
from p2pnode.net import events as wire
from p2pnode.net.watchdog import Watchdog
from p2pnode.node_config import TextChoice
from p2pnode.orders import Orders
from p2pnode.prepare import Preparation, max_message
from p2pnode.protocol import events
from p2pnode.protocol.chain import Chain
from p2pnode.protocol.identity import PeerId
from p2pnode.protocol.lobby import (
    Announce,
    Declined,
    Idle,
    LedgerLines,
    LedgerSigned,
    LedgerWant,
    LobbyMessage,
    Ready,
    RecordNews,
    check_manifest,
)
from p2pnode.protocol.messages import decode
from p2pnode.protocol.roster import Roster
from p2pnode.room import Room
from p2pnode.run import DRAIN_SECONDS, Run
from p2pnode.session import Outcome
from p2pnode.share import DataShare
from p2pnode.tasks import Tasks
from p2pnode.texts import make_run_config
from p2pnode.train.manifest import parse_manifest
from p2pnode.ui.commands import Commands
from p2pnode.ui.console import Console
from p2pnode.ui.events import Info, Warn
from p2pnode.worker import Worker

READY_SECONDS = 60.0
"""How long a starting host waits for connected nodes to prepare; later ones join while it runs."""
_NOBODY_TYPES = (
    "nobody can type `start` here: run this host in a terminal, or give it --start-when N, and "
    "--approve all or known."
)


class Node:
    """One node in one room. `run` returns when the run has ended or the owner leaves."""

    def __init__(
        self,
        ticket: Ticket,
        options: RunOptions,
        text: TextChoice,
        resume: str | None,
        *,
        worker: Worker,
        console: Console,
    ) -> None:
        """`options`, `text` and `resume` (a checkpoint, or `auto`) make the run if this node is
        the host; `text` is also where a member has the run's text. On the event loop."""
        config = self._config = ticket.config
        self._options = options
        self._resume = resume
        self._console = console
        self._tasks: Tasks[Outcome | None] = Tasks()
        self._watchdog = Watchdog()
        self._commands = Commands(self, console.show)
        self._room = Room(ticket, console, self)
        self._orders = Orders(
            ticket.identity, self._room.id, ChainFile(config.out), self._room.signers, console.show
        )
        self._preparation = Preparation(config, text, worker, console.show, self._room.proxy)
        self._run = Run(
            self._room,
            self._orders,
            self._preparation,
            config,
            worker=worker,
            show=console.show,
            watchdog=self._watchdog,
            tasks=self._tasks,
        )
        self._manifest: bytes | None = None
        self._share: DataShare | None = None
        self._first: DataShare | None = None
        """Of the weights that the run begins with, if it was given some."""
        self._starting = False
        self._answered: set[PeerId] = set()
        """Peers that are ready for the run, or have declined it."""
        self._idle: set[PeerId] = set()
        self._sources: set[PeerId] = set()
        self._answers = asyncio.Event()

    async def run(self) -> Outcome | None:
        """Join, train, leave. None: the owner left before the end. Raises P2PNodeError."""
        self._tasks.watch_callbacks()
        try:
            async with self._room:
                self._tasks.spawn(self._room.run())
                self._tasks.spawn(self._console.run(self._commands.line))
                try:
                    return await self._tasks.end()
                finally:
                    self._run.stop()
                    await self._tasks.cancel()
        finally:
            await self._run.close()
            await self._watchdog.close()

    # What happens in the room

    def on_host(self) -> None:
        if not self._console.can_type and self._config.start_when is None:
            self._console.show(Warn(text=_NOBODY_TYPES))
        self._maybe_start()

    def on_refused(self, error: Exception) -> None:
        self._tasks.fail(error)

    def on_deposed(self) -> None:
        if self._starting:
            self._tasks.fail(RefusedError("The host of this room is back; join it with --guest."))

    def on_roster(self, roster: Roster, removed: tuple[PeerId, ...]) -> None:
        self._run.handle(events.RosterChanged(roster.ids, removed))

    def on_link_up(self, peer: PeerId) -> None:
        self._room.tell(peer, self._greeting())
        if self._run.has_session and self._orders.chain is not None:
            self._run.handle(events.LinkUp(peer))
            self._room.tell(peer, Ready(self._orders.chain.ids[0]))

    def on_link_down(self, peer: PeerId) -> None:
        self._idle.discard(peer)
        self._answers.set()
        for share in self._shares():
            share.link_down(peer)
        self._run.handle(events.LinkDown(peer))

    def on_heard(self, heard: wire.Heard) -> None:
        if self._run.has_session:
            self._run.handle(events.Heard(heard.peer, heard.nbytes))
        elif heard.nbytes:
            for share in self._shares():
                share.heard(heard.peer, asyncio.get_running_loop().time())

    def on_message(self, message: wire.Received) -> None:
        try:
            decoded, payload = decode(message.message)
            if any(share.takes(message.peer, decoded, payload) for share in self._shares()):
                return
        except PeerError as error:
            self._room.mesh.drop(message.peer, str(error))
            return
        self._run.handle(events.MessageReceived(message.peer, decoded, payload))

    def on_lobby(self, peer: PeerId, message: LobbyMessage) -> None:
        match message:
            case Announce():
                self._sources.add(peer)
                self._on_announce(peer, message)
            case Idle():
                self._idle.add(peer)
                self._maybe_start()
            case RecordNews():
                self._run.on_records(peer, message.records)
            case LedgerSigned() | LedgerWant() | LedgerLines():
                self._run.on_ledger(peer, message)
            case Ready() | Declined() if self._orders.chain is not None:
                if message.run != self._orders.chain.ids[0]:
                    return
                self._answered.add(peer)
                self._sources.add(peer)
                self._answers.set()
                if isinstance(message, Declined):
                    name = self._room.name(peer)
                    self._console.show(Warn(text=f"{name} cannot take part: {message.reason}"))

    # Starting a run

    def _maybe_start(self) -> None:
        """Start by itself when the number of nodes asked for is there and none knows of a run: a
        host that was restarted is told of its own by whom it links to."""
        wanted = self._config.start_when
        present = len(self._room.mesh.links() & self._idle) + 1
        if wanted is None or present < wanted or self._starting:
            return
        if self._room.door.is_host:
            self.start()

    async def _start_as_host(self) -> None:
        prepare = self._preparation
        state = await prepare.found_state(self._resume)
        dataset = await prepare.own_text(self._options, state, self._resume)
        self._console.show(Info(text=f"Training on {dataset.description}."))
        if state is None:
            config = await prepare.compute(make_run_config, self._options, dataset)
        else:
            config = state.config
        config, first = await prepare.given_weights(config, resumed=state is not None)
        await prepare.check_memory(config, dataset.manifest)
        workshop = await prepare.workshop(config, dataset, first)
        blob = await prepare.blob(dataset)
        text = blob.root if blob is not None else b""
        chain = self._orders.begin(config, text, state.step if state is not None else None)
        self._open_run(chain, dataset.manifest.canonical())
        if blob is not None and self._share is not None:
            self._share.serve(blob)
        if first is not None and self._first is not None:
            self._first.serve(first.blob)
        self._room.tell_all(self._greeting())
        await prepare.compute(workshop.trainer.restart, chain.config, state)
        session = await self._run.open(workshop, chain)
        await self._wait_until_ready()
        self._run.begin(session, lead=True)

    async def _wait_until_ready(self) -> None:
        """Until every connected node is ready or has declined, at most READY_SECONDS."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_SECONDS
        while self._room.mesh.links() - self._answered:
            self._answers.clear()
            try:
                await asyncio.wait_for(self._answers.wait(), deadline - loop.time())
            except TimeoutError:
                self._console.show(Info(text="Starting; who is not ready yet joins later."))
                return

    def _on_announce(self, peer: PeerId, message: Announce) -> None:
        if self._starting:
            self._run.on_records(peer, message.records)
            own = self._orders.chain
            if own is not None and own.signed != message.records:
                self._room.tell(peer, RecordNews(own.signed))  # it may have begun without us
            return
        older = self._orders.saved()
        try:
            chain = self._orders.hear(message.records)
            assert chain is not None  # there was none to compare it with
            check_manifest(chain, message.manifest)
        except PeerError as error:
            self._orders.chain = None
            self._room.mesh.drop(peer, str(error))
            return
        except ConfigError as error:
            self._tasks.fail(RunMismatchError(f"The host's run cannot be computed here: {error}"))
            return
        self._starting = True
        self._tasks.spawn(self._start_as_member(chain, message.manifest, older))

    async def _start_as_member(self, chain: Chain, raw: bytes, older: Chain | None) -> None:
        prepare = self._preparation
        try:
            manifest = await prepare.compute(parse_manifest, raw)
            await prepare.check_memory(chain.config, manifest)
            self._open_run(chain, raw)
            dataset = await prepare.find_text(manifest, chain.config, self._share, self._donors)
            first = None
            if self._first is not None:
                first = await prepare.find_weights(chain.config, self._first, self._donors)
            workshop = await prepare.workshop(chain.config, dataset, first)
            session = await self._run.open(workshop, older)
        except P2PNodeError as error:
            self._room.tell_all(Declined(chain.ids[0], str(error)[:512]))
            await self._room.mesh.drain(DRAIN_SECONDS)
            raise
        self._run.begin(session, lead=False)

    def _open_run(self, chain: Chain, manifest: bytes) -> None:
        """Take messages of this run from now on."""
        self._manifest = manifest
        self._room.mesh.set_run(chain.ids[0][:8], max_message(chain.config))
        if chain.text:
            self._share = DataShare(self._room.mesh, chain.ids[0][:16], chain.text)
        if chain.config.init:
            name = bytes.fromhex(chain.config.init)
            self._first = DataShare(self._room.mesh, chain.ids[0][:16], name)

    def _shares(self) -> list[DataShare]:
        """What members give each other before they train."""
        return [share for share in (self._share, self._first) if share is not None]

    def _greeting(self) -> LobbyMessage:
        """First word on a new link."""
        if self._orders.chain is None or self._manifest is None:
            return Idle()
        return Announce(self._orders.chain.signed, self._manifest)

    def _donors(self) -> set[PeerId]:
        """Linked peers that announced the run or are ready for it: they may have its text."""
        return self._sources & self._room.mesh.links()

    # The owner's commands (see ui.commands)

    @property
    def asked(self) -> PeerId | None:
        return self._room.door.asked

    def waiting(self) -> dict[PeerId, str]:
        return self._room.door.waiting

    def members(self) -> list[tuple[PeerId, str, str]]:
        return self._room.members()

    def decide(self, peer: PeerId, verdict: str) -> None:
        self._room.door.decide(peer, verdict)

    def kick(self, peer: PeerId) -> None:
        self._room.door.kick(peer)

    def start(self) -> None:
        """Host: begin the run with whoever is connected; later ones join while it runs."""
        roster = self._room.roster
        if not self._room.door.is_host or roster is None:
            self._console.show(Warn(text="Only the host can start a run."))
        elif self._starting:
            self._console.show(Info(text="The run has been started."))
        else:
            self._starting = True
            self._tasks.spawn(self._start_as_host())

    def stop(self) -> None:
        """Host: end the run after the step that is being computed; everybody saves it."""
        self._run.order("stop", self._orders.stop)

    def change(self, steps: int | None, lr: float | None, warmup: int | None) -> None:
        """Host: go on with other settings after the step that is being computed."""
        self._run.order("change", lambda after: self._orders.change(after, steps, lr, warmup))

    def leave(self) -> None:
        """Say goodbye, save, end. A second time: end at once."""
        self._run.leave()
