"""The composition root: one node in one room, from its key to the final checkpoint.

Owns the tasks; every decision is made by a core (admission, step core) or by the owner's commands.
May import: everything but cli, demo and join.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import psutil

from p2pnode.audits import Cost
from p2pnode.chain_file import ChainFile
from p2pnode.config import RunOptions
from p2pnode.errors import (
    ConfigError,
    NonFiniteError,
    P2PNodeError,
    PeerError,
    RefusedError,
    RunMismatchError,
    UsageError,
)
from p2pnode.jobs import Jobs
from p2pnode.keeper import CommitResult, Keeper
from p2pnode.ledger_share import LedgerShare
from p2pnode.net import events as wire
from p2pnode.net.watchdog import Watchdog
from p2pnode.node_config import NodeConfig, TextChoice
from p2pnode.orders import Orders, sentence
from p2pnode.prepare import Preparation, Workshop, max_message
from p2pnode.protocol import effects, events
from p2pnode.protocol.chain import Chain, Records
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
    pledge_is_signed,
    sign_pledge,
)
from p2pnode.protocol.messages import decode
from p2pnode.protocol.roster import Roster
from p2pnode.protocol.setup import Setup
from p2pnode.room import Room, Ticket
from p2pnode.sampling import Samples
from p2pnode.session import Outcome, Session
from p2pnode.share import DataShare
from p2pnode.texts import make_run_config
from p2pnode.train.manifest import parse_manifest
from p2pnode.ui.commands import Commands
from p2pnode.ui.console import Console
from p2pnode.ui.events import Event, Finished, Info, RunStarted, Warn
from p2pnode.ui.metrics import Metrics, MetricsLog
from p2pnode.ui.trackers import Tracker
from p2pnode.worker import Worker

_chance = secrets.SystemRandom()
"""Draws what is audited: nobody can know it before."""
_NOBODY_TYPES = (
    "nobody can type `start` here: run this host in a terminal, or give it --start-when N, and "
    "--approve all or known."
)

READY_SECONDS = 60.0
"""How long a starting host waits for connected nodes to prepare; later ones join while it runs."""
LEDGER_SECONDS = 3.0
"""How long a node whose run is over waits for others to fetch lines of the ledger they lack."""
DRAIN_SECONDS = 2.0
"""How long goodbyes and last shards may take to leave this machine."""


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
        self._config = ticket.config
        self._options = options
        self._resume = resume
        self._worker = worker
        self._console = console
        self._room = Room(ticket, console, self)
        self._commands = Commands(self, console.show)
        self._session: Session | None = None
        self._orders = Orders(
            ticket.identity,
            ticket.keys.room,
            ChainFile(ticket.config.out),
            self._signers,
            console.show,
        )
        self._preparation = Preparation(ticket.config, text, worker, console.show, self._room.proxy)
        self._workshop: Workshop | None = None
        self._manifest: bytes | None = None
        self._share: DataShare | None = None
        self._first: DataShare | None = None
        """Of the weights that the run begins with, if it was given some."""
        self._ledgers: LedgerShare | None = None
        self._metrics = MetricsLog(ticket.config.out, console.show)
        self._tracker = self._make_tracker(ticket.config)
        self._samples = Samples(
            ticket.config.out, ticket.config.sample_prompt, worker=worker, show=console.show
        )
        self._audit_cost = Cost()
        """Of this session and those before it that a rewind ended, as the number of sets missed."""
        self._audits_missed = 0
        self._starting = False
        self._leaving = False
        self._answered: set[PeerId] = set()
        """Peers that are ready for the run, or have declined it."""
        self._idle: set[PeerId] = set()
        self._sources: set[PeerId] = set()
        self._answers = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._watchdog = Watchdog()

    async def run(self) -> Outcome | None:
        """Join, train, leave. None: the owner left before the end. Raises P2PNodeError."""
        # A callback that fails is a fault of ours: end with it rather than go on half broken.
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        try:
            async with self._room:
                self._spawn(self._room.run())
                self._spawn(self._console.run(self._commands.line))
                try:
                    return await self._end
                finally:
                    if self._session is not None:
                        self._session.close()
                    for task in self._tasks:
                        task.cancel()
                    await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            self._metrics.close()
            if self._tracker is not None:
                await asyncio.to_thread(self._tracker.close)
            await self._watchdog.close()

    def _finish(self, outcome: Outcome | None) -> None:
        if not self._end.done():
            self._end.set_result(outcome)

    def _fail(self, error: BaseException) -> None:
        if not self._end.done():
            self._end.set_exception(error)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, OSError) or "future" in context or "task" in context:
            # Of a socket that broke or of a task inside aiortc: their owners notice.
            loop.default_exception_handler(context)
        else:
            self._fail(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _signers(self) -> tuple[Sequence[PeerId], Sequence[PeerId]]:
        roster = self._room.roster
        return (roster.ids, roster.removed) if roster is not None else ((), ())

    # What happens in the room

    def on_host(self) -> None:
        if not self._console.can_type and self._config.start_when is None:
            self._console.show(Warn(text=_NOBODY_TYPES))
        self._maybe_start()

    def on_refused(self, error: Exception) -> None:
        self._fail(error)

    def on_deposed(self) -> None:
        if self._starting:
            self._fail(RefusedError("The host of this room is back; join it with --guest."))

    def on_roster(self, roster: Roster, removed: tuple[PeerId, ...]) -> None:
        if self._session is not None:
            self._session.handle(events.RosterChanged(roster.ids, removed))

    def on_link_up(self, peer: PeerId) -> None:
        self._room.tell(peer, self._greeting())
        if self._session is not None and self._orders.chain is not None:
            self._session.handle(events.LinkUp(peer))
            self._room.tell(peer, Ready(self._orders.chain.ids[0]))

    def on_link_down(self, peer: PeerId) -> None:
        self._idle.discard(peer)
        self._answers.set()
        for share in self._shares():
            share.link_down(peer)
        if self._session is not None:
            self._session.handle(events.LinkDown(peer))

    def on_heard(self, heard: wire.Heard) -> None:
        if self._session is not None:
            self._session.handle(events.Heard(heard.peer, heard.nbytes))
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
        if self._session is not None:
            self._session.handle(events.MessageReceived(message.peer, decoded, payload))

    def on_lobby(self, peer: PeerId, message: LobbyMessage) -> None:
        match message:
            case Announce():
                self._sources.add(peer)
                self._on_announce(peer, message)
            case Idle():
                self._idle.add(peer)
                self._maybe_start()
            case RecordNews():
                self._on_records(peer, message.records)
            case LedgerSigned() | LedgerWant() | LedgerLines():
                if self._ledgers is not None:
                    self._ledgers.take(peer, message)
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
        if wanted is not None and self._room.is_host and present >= wanted and not self._starting:
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
        self._workshop = workshop
        if self._orders.chain is not chain:  # others knew of a later one
            await self._take_up(workshop, chain)
        session = self._open_session(workshop)
        self._meet(session)
        await self._wait_until_ready()
        self._begin(session, lead=True)

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
            self._on_records(peer, message.records)
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
            self._fail(RunMismatchError(f"The host's run cannot be computed here: {error}"))
            return
        self._starting = True
        self._spawn(self._start_as_member(chain, message.manifest, older))

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
            self._workshop = workshop = await prepare.workshop(chain.config, dataset, first)
            await self._take_up(workshop, older)
            session = self._open_session(workshop)
        except P2PNodeError as error:
            self._room.tell_all(Declined(chain.ids[0], str(error)[:512]))
            await self._room.mesh.drain(DRAIN_SECONDS)
            raise
        self._meet(session)
        self._begin(session, lead=False)

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

    async def _take_up(self, workshop: Workshop, older: Chain | None) -> None:
        """Go to the newest state that is here and counts under the chain, which may change
        meanwhile. `older`: the chain that the states here were made under."""
        while (chain := self._orders.chain) is not None and chain is not older:
            await self._preparation.compute(workshop.take_up, chain, older)
            older = chain

    def _open_session(self, workshop: Workshop) -> Session:
        """A step core that goes on from the trainer's state."""
        chain = self._orders.chain
        assert chain is not None  # there is a run
        trainer, config = workshop.trainer, chain.config
        setup = Setup(
            me=self._room.identity.peer_id,
            run=chain.tag,
            parameters=trainer.parameters,
            tensors=len(trainer.tensors),
            slots=config.slots,
            steps=chain.last_step,
            state_hash=trainer.state_hash,
            boot=secrets.randbits(63),
            probe=trainer.expected_probe,
            members=self._room.roster.ids if self._room.roster is not None else (),
            sign=lambda digest: sign_pledge(self._room.identity, digest),
            signed=self._signed,
            secret=secrets.token_bytes(32),
            applied=trainer.step,
            stopped=chain.stopped,
            excluded=chain.excluded,
            audit=lambda: _chance.random() < self._config.audit,
        )
        self._console.show(
            RunStarted(
                run=config.run_id().hex()[:8],
                parameters=trainer.parameters,
                steps=chain.last_step,
                slots=config.slots,
                tokens_per_step=config.slots * config.tokens_per_slot,
                first_step=trainer.step,
                backend=trainer.kernels.backend,
                audit=self._config.audit,
            )
        )
        keeper = Keeper(
            trainer,
            workshop.folder,
            workshop.ledger,
            every=self._config.checkpoint_every,
            keep_best=self._config.keep_best,
            sample_every=self._config.sample_every,
        )
        jobs = Jobs(trainer, workshop.folder, keeper)
        self._ledgers = LedgerShare(
            workshop.ledger,
            workshop.signatures,
            config.at(0).run_id(),
            self._room.identity,
            worker=self._worker,
            tell=self._room.tell,
            links=self._room.mesh.links,
            key_of=self._key_of,
            name_of=self._room.name,
            show=self._console.show,
            spawn=self._spawn,
        )
        return Session(
            setup,
            config,
            jobs,
            worker=self._worker,
            mesh=self._room.mesh,
            show=self._console.show,
            rewind=self._rewind,
            kept=self._on_kept,
            measured=self._on_measured,
            audit_cost=self._audit_cost,
        )

    def _signed(self, peer: PeerId, digest: bytes, signature: bytes) -> bool:
        key = self._key_of(peer)
        return key is not None and pledge_is_signed(key, digest, signature)

    def _key_of(self, peer: PeerId) -> bytes | None:
        member = self._room.roster.member(peer) if self._room.roster is not None else None
        return member.key if member is not None else None

    def _on_kept(self, result: CommitResult) -> None:
        """A commit was written down here."""
        if self._ledgers is not None:
            if result.signs is not None:
                self._ledgers.signed_here(*result.signs)
            self._ledgers.lacks(result.missing)
        if result.sample is not None and self._workshop is not None:
            self._spawn(self._samples.take(result.sample, self._workshop.trainer.kernels))
        chain, after = self._orders.chain, result.stop_after
        if after is None or chain is None or not self._room.decides or self._leaving:
            return
        if after < chain.last_step:  # every node finds the same; who may sign orders it
            self._follow(self._orders.stop(after), chain, here=True)

    def _make_tracker(self, config: NodeConfig) -> Tracker | None:
        if config.track is None:
            return None
        loop = asyncio.get_running_loop()

        def show(event: Event) -> None:  # from the tracker's thread
            loop.call_soon_threadsafe(self._console.show, event)

        return Tracker(config.track, config.out, show)

    def _on_measured(self, metrics: Metrics) -> None:
        self._metrics.write(metrics)
        if self._tracker is not None:
            self._tracker.write(metrics)

    # Records

    def _on_records(self, peer: PeerId, records: Records) -> None:
        """A member tells the chain that it goes by."""
        older = self._orders.chain
        if older is None:
            return  # whoever knows of the run announces it first
        try:
            chain = self._orders.hear(records)
        except PeerError as error:
            self._room.mesh.drop(peer, str(error))
        except ConfigError as error:
            self._console.show(Warn(text=str(error)))
        else:
            if chain is not None:
                self._follow(chain, older, here=False)

    def _rewind(self, effect: effects.Rewind) -> None:
        """Wrong work was found, and it is on this node to take it back."""
        older = self._orders.chain
        assert older is not None  # a session runs
        try:
            chain = self._orders.rewind(effect.step, effect.state_hash, effect.culprits)
        except UsageError as error:
            self._fail(error)
            return
        if chain is not None:
            self._follow(chain, older, here=True)

    def _follow(self, chain: Chain, older: Chain, *, here: bool) -> None:
        """Another chain holds: tell the others, and go on or begin again."""
        for record in chain.records[chain.shared(older) :]:
            self._console.show(sentence(record, chain, self._room.name(record.signer)))
        self._room.tell_all(RecordNews(chain.signed))
        session = self._session
        if session is None or self._leaving:
            return  # `_open_session` goes by the newest chain
        if not session.over and chain.goes_on(older, session.core.reached):
            event = events.Redirected(
                chain.tag, chain.last_step, chain.stopped, chain.branch(older), here
            )
            session.redirect(chain.config, event)
            return
        self._session = None
        self._audits_missed += session.core.audits_missed
        session.close()
        self._spawn(self._begin_again(older, lead=here))

    async def _begin_again(self, older: Chain, *, lead: bool) -> None:
        assert self._workshop is not None  # there was a session
        await self._take_up(self._workshop, older)
        if self._leaving:
            return
        session = self._open_session(self._workshop)
        self._meet(session)
        self._begin(session, lead=lead)

    def _meet(self, session: Session) -> None:
        """Let the core hear of the others; a host's first plan then knows who is there."""
        self._session = session
        if self._room.roster is not None:
            session.handle(events.RosterChanged(self._room.roster.ids))
        for peer in self._room.mesh.links():
            session.handle(events.LinkUp(peer))

    def _begin(self, session: Session, *, lead: bool) -> None:
        session.handle(events.Start(lead=lead))
        if self._orders.chain is not None:
            self._room.tell_all(Ready(self._orders.chain.ids[0]))
        self._spawn(self._see_it_through(session))

    # Ending

    async def _see_it_through(self, session: Session) -> None:
        outcome = await session.finished()
        report = self._watchdog.report()
        self._console.show(
            Finished(
                step=outcome.step,
                hash=outcome.state_hash.hex(),
                loss=outcome.loss,
                checkpoint=str(outcome.checkpoint),
                worst_loop_stall_ms=report.worst * 1000,
                loop_stalls=report.stalls,
                peak_rss_mb=peak_rss() / 2**20,
                audited_slots=self._audit_cost.slots,
                audit_share=round(self._audit_cost.share, 4),
                audits_missed=self._audits_missed + session.core.audits_missed,
            )
        )
        await session.released()
        if self._ledgers is not None:
            await self._ledgers.complete(outcome.step, LEDGER_SECONDS)
        await self._room.mesh.drain(DRAIN_SECONDS)
        if outcome.ending is effects.Ending.NON_FINITE:
            raise NonFiniteError(
                f"{outcome.detail} The run ended at step {outcome.step}, its last good state, "
                "which is saved. Start a new run with a lower learning rate."
            )
        self._finish(outcome)

    async def _leave(self, session: Session) -> None:
        session.handle(events.LeaveRequested())
        if session.core.committed > 0:
            path = await session.save()
            text = f"Left at step {session.core.committed}; saved {path}."
            self._console.show(Info(text=text))
        await self._room.mesh.drain(DRAIN_SECONDS)
        self._finish(None)

    # The owner's commands (see ui.commands)

    @property
    def asked(self) -> PeerId | None:
        return self._room.asked

    def waiting(self) -> dict[PeerId, str]:
        return self._room.waiting

    def members(self) -> list[tuple[PeerId, str, str]]:
        return self._room.members()

    def decide(self, peer: PeerId, verdict: str) -> None:
        self._room.decide(peer, verdict)

    def kick(self, peer: PeerId) -> None:
        self._room.kick(peer)

    def start(self) -> None:
        """Host: begin the run with whoever is connected; later ones join while it runs."""
        roster = self._room.roster
        if not self._room.is_host or roster is None:
            self._console.show(Warn(text="Only the host can start a run."))
        elif self._starting:
            self._console.show(Info(text="The run has been started."))
        else:
            self._starting = True
            self._spawn(self._start_as_host())

    def stop(self) -> None:
        """Host: end the run after the step that is being computed; everybody saves it."""
        self._order("stop", self._orders.stop)

    def change(self, steps: int | None, lr: float | None, warmup: int | None) -> None:
        """Host: go on with other settings after the step that is being computed."""
        self._order("change", lambda after: self._orders.change(after, steps, lr, warmup))

    def _order(self, what: str, make: Callable[[int], Chain]) -> None:
        """Sign a record that begins after the step under way, and follow it. Raises UsageError."""
        session, older = self._session, self._orders.chain
        if not self._room.decides or session is None or older is None:
            raise UsageError(
                f"Only the host can {what} a run, or who stands in for it, and only while one goes "
                "on."
            )
        after = session.core.horizon()
        if after is None:
            raise UsageError("This machine does not know yet how far the run is; try again soon.")
        self._follow(make(after), older, here=True)

    def leave(self) -> None:
        """Say goodbye, save, end. A second time: end at once."""
        if self._session is None or self._leaving:
            self._finish(None)
            return
        self._leaving = True
        self._spawn(self._leave(self._session))


def peak_rss() -> int:
    """Largest resident memory of this process so far, bytes."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
