"""The composition root: one node in one room, from its key to the final checkpoint.

Owns the tasks; every decision is made by a core (admission, step core) or by the owner's commands.
May import: everything but cli, demo and join.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import psutil

from p2pnode.config import RunConfig, RunOptions
from p2pnode.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MemoryNeedError,
    NonFiniteError,
    P2PNodeError,
    PeerError,
    RefusedError,
    RunMismatchError,
)
from p2pnode.jobs import Jobs
from p2pnode.limits import LIMITS
from p2pnode.net import events as wire
from p2pnode.net.watchdog import Watchdog
from p2pnode.protocol import effects, events
from p2pnode.protocol.fetch import Blob
from p2pnode.protocol.identity import PeerId
from p2pnode.protocol.lobby import (
    Announce,
    Declined,
    Idle,
    LobbyMessage,
    Ready,
    announce,
    check_announce,
    pledge_is_signed,
    sign_pledge,
    sign_stop,
    stop_is_signed,
)
from p2pnode.protocol.messages import HEADER_BYTES, PART_BYTES, StopOrder, decode
from p2pnode.protocol.roster import Roster
from p2pnode.protocol.setup import Setup
from p2pnode.room import Room, Ticket
from p2pnode.session import Outcome, Session
from p2pnode.share import DataShare, share
from p2pnode.train import codec
from p2pnode.train.arithmetic import kernels
from p2pnode.train.checkpoint import CheckpointFolder, load
from p2pnode.train.data import Dataset, open_dataset
from p2pnode.train.footprint import footprint, megabytes
from p2pnode.train.layout import layout_of
from p2pnode.train.manifest import Manifest, parse_manifest
from p2pnode.train.state import State
from p2pnode.train.trainer import Trainer
from p2pnode.ui.commands import Commands
from p2pnode.ui.console import Console
from p2pnode.ui.events import Finished, Info, RunStarted, Warn
from p2pnode.worker import Urgency, Worker

T = TypeVar("T")

READY_SECONDS = 60.0
"""How long a starting host waits for connected nodes to prepare; later ones join while it runs."""
PATIENCE_SECONDS = 5.0
"""How often something that takes long says so."""
DRAIN_SECONDS = 2.0
"""How long goodbyes and last shards may take to leave this machine."""


class Node:
    """One node in one room. `run` returns when the run has ended or the owner leaves."""

    def __init__(
        self,
        ticket: Ticket,
        options: RunOptions,
        data: str | None,
        resume: str | None,
        *,
        worker: Worker,
        console: Console,
    ) -> None:
        """`options`, `data` and `resume` (a checkpoint, or `auto`) make the run if this node is
        the host; `data` is also where a member has the run's text. On the event loop."""
        self._config = ticket.config
        self._options = options
        self._data = data
        self._resume = resume
        self._worker = worker
        self._console = console
        self._room = Room(ticket, console, self)
        self._commands = Commands(self, console.show)
        self._session: Session | None = None
        self._announce: Announce | None = None
        self._run: RunConfig | None = None
        self._share: DataShare | None = None
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

    async def _compute(self, job: Callable[..., T], *args: object, **kwargs: object) -> T:
        """Anything that takes long, in the computing thread."""
        return await self._worker.submit(Urgency.BACKGROUND, job, *args, **kwargs)

    async def _patiently(self, work: Coroutine[Any, Any, T], text: str) -> T:
        """Await `work` and say every few seconds that it goes on."""
        task = asyncio.ensure_future(work)
        try:
            seconds = 0.0
            while not (await asyncio.wait({task}, timeout=PATIENCE_SECONDS))[0]:
                seconds += PATIENCE_SECONDS
                self._console.show(Info(text=f"{text}: {seconds:.0f} s …"))
            return task.result()
        finally:
            task.cancel()

    # What happens in the room

    def on_host(self) -> None:
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
        self._room.tell(peer, self._announce or Idle())
        if self._session is not None:
            self._session.handle(events.LinkUp(peer))
            self._room.tell(peer, Ready(self._session.run_id))

    def on_link_down(self, peer: PeerId) -> None:
        self._idle.discard(peer)
        self._answers.set()
        if self._share is not None:
            self._share.link_down(peer)
        if self._session is not None:
            self._session.handle(events.LinkDown(peer))

    def on_heard(self, heard: wire.Heard) -> None:
        if self._session is not None:
            self._session.handle(events.Heard(heard.peer, heard.nbytes))
        elif self._share is not None and heard.nbytes:
            self._share.heard(heard.peer, asyncio.get_running_loop().time())

    def on_message(self, message: wire.Received) -> None:
        try:
            decoded, payload = decode(message.message)
            if self._share is not None and self._share.takes(message.peer, decoded, payload):
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
            case Ready() | Declined() if self._run is not None:
                if message.run != self._run.run_id():
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

    async def _start_as_host(self, roster: Roster) -> None:
        state = await self._compute(self._find_resume)
        dataset = await self._compute(open_dataset, self._data)
        self._console.show(Info(text=f"Training on {dataset.description}."))
        if state is None:
            config = await self._compute(make_run_config, self._options, dataset)
        else:
            config = state.config
        if config.data != dataset.manifest.hash():
            raise DataError(
                "The checkpoint was trained on other text; give the same --data as then."
            )
        self._run = config
        self._check_memory(config, dataset.manifest)
        session = await self._prepare(config, dataset, state, roster)
        blob = await self._compute(text_blob, dataset)
        text = blob.root if blob is not None else b""
        self._open_run(config, dataset.manifest, text)
        if blob is not None and self._share is not None:
            self._share.serve(blob)
        self._announce = announce(
            self._room.identity, self._room.id, config, dataset.manifest.canonical(), text
        )
        self._meet(session)
        self._room.tell_all(self._announce)
        await self._wait_until_ready()
        self._begin(session, lead=True)

    def _find_resume(self) -> State | None:
        """In the computing thread: the checkpoint the owner wants to go on from."""
        if self._resume is None:
            return None
        if self._resume != "auto":
            return load(self._resume)
        found = CheckpointFolder(self._config.out, self._config.keep).newest()
        if found is None:
            raise CheckpointError(f"--resume auto: {self._config.out} holds no checkpoint.")
        return found[1]

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
        roster = self._room.roster
        if roster is None or self._starting:
            return
        host = roster.member(roster.host)
        assert host is not None  # a verified roster holds its host
        try:
            self._run = check_announce(message, host.key, self._room.id)
        except PeerError as error:
            self._room.mesh.drop(peer, str(error))
            return
        except ConfigError as error:
            self._fail(RunMismatchError(f"The host's run cannot be computed here: {error}"))
            return
        self._announce = message
        self._starting = True
        self._spawn(self._start_as_member(message, self._run, roster))

    async def _start_as_member(self, message: Announce, config: RunConfig, roster: Roster) -> None:
        run = config.run_id()
        try:
            manifest = await self._compute(parse_manifest, message.manifest)
            self._check_memory(config, manifest)
            self._open_run(config, manifest, message.text)
            dataset = await self._find_text(manifest)
            folder = await self._compute(CheckpointFolder, self._config.out, self._config.keep)
            found = await self._compute(folder.newest, run)
            state = found[1] if found is not None else None
            session = await self._prepare(config, dataset, state, roster)
        except P2PNodeError as error:
            self._room.tell_all(Declined(run, str(error)[:512]))
            await self._room.mesh.drain(DRAIN_SECONDS)
            raise
        self._meet(session)
        self._begin(session, lead=False)

    def _check_memory(self, config: RunConfig, manifest: Manifest) -> None:
        """Say what the run takes here. Raises MemoryNeedError if there is not as much."""
        need = footprint(config, manifest.size)
        here = psutil.Process().memory_info().rss
        free = int(psutil.virtual_memory().available)
        if need.total - here > free:
            raise MemoryNeedError(
                f"This run takes up to {megabytes(need.total)} of memory ({need}), and only "
                f"{megabytes(free + here)} can be had here. Close other programs, or take a "
                "smaller model or shorter sequences."
            )
        self._console.show(
            Info(
                text=f"Takes up to {megabytes(need.total)} of memory here ({need}); "
                f"{megabytes(free + here)} can be had."
            )
        )

    def _open_run(self, config: RunConfig, manifest: Manifest, text: bytes) -> None:
        """Take messages of this run from now on."""
        run = config.run_id()
        self._room.mesh.set_run(run[:8], max_message(config))
        if text:
            self._share = DataShare(self._room.mesh, run[:16], text)

    async def _find_text(self, manifest: Manifest) -> Dataset:
        """The run's text: from --data, built in, or from the other members. Then serve it too."""
        share = self._share
        if self._data is not None or manifest.kind == "builtin" or share is None:
            dataset = await self._compute(open_dataset, self._data, manifest)
        else:
            size = min(manifest.size, LIMITS.shared_data_bytes)
            text = f"Fetching the run's text ({size / 2**20:.1f} MiB) from the other machines …"
            self._console.show(Info(text=text))
            raw = await share.fetch(size, self._donors, self._show_progress)
            dataset = await self._compute(Dataset.from_blob, manifest, raw)
        blob = await self._compute(text_blob, dataset)
        if share is not None and blob is not None:
            share.serve(blob)
        return dataset

    def _donors(self) -> set[PeerId]:
        """Linked peers that announced the run or are ready for it: they may have its text."""
        return self._sources & self._room.mesh.links()

    def _show_progress(self, here: int, total: int) -> None:
        if total:
            self._console.show(Info(text=f"  {here * 100 // total} % of the text is here"))

    async def _prepare(
        self, config: RunConfig, dataset: Dataset, state: State | None, roster: Roster
    ) -> Session:
        """Compile, make the first state, open the checkpoint folder."""
        if max_message(config) > LIMITS.bulk_bytes:
            raise ConfigError(
                f"The model has {layout_of(config.model).size:,} parameters; their sums do not fit "
                f"a message of {LIMITS.bulk_bytes // 2**20} MiB. Make it smaller."
            )
        self._console.show(Info(text="Preparing the kernels …"))
        trainer = await self._patiently(
            self._compute(Trainer, config, dataset, reference=self._config.reference),
            "Still compiling the kernels (once per machine and version)",
        )
        if state is not None:
            await self._compute(lambda: trainer.restore(codec.encode(state)))
        for kernel, reason in trainer.kernels.demoted.items():
            self._console.show(Warn(text=f"Kernel {kernel} runs in its slow form: {reason}"))
        folder = await self._compute(CheckpointFolder, self._config.out, self._config.keep)
        run = config.run_id()
        host = roster.member(roster.host)
        assert host is not None  # a verified roster holds its host
        host_key = host.key
        setup = Setup(
            me=self._room.identity.peer_id,
            run=run[:16],
            parameters=trainer.parameters,
            tensors=len(trainer.tensors),
            slots=config.slots,
            steps=config.steps,
            state_hash=trainer.state_hash,
            boot=secrets.randbits(63),
            probe=trainer.expected_probe,
            members=roster.ids,
            sign=lambda digest: sign_pledge(self._room.identity, digest),
            signed=self._signed,
            applied=trainer.step,
            stop_valid=lambda order: stop_is_signed(
                host_key, run, order.last_step, order.signature
            ),
        )
        self._console.show(
            RunStarted(
                run=run.hex()[:8],
                parameters=trainer.parameters,
                steps=config.steps,
                slots=config.slots,
                tokens_per_step=config.slots * config.tokens_per_slot,
                first_step=trainer.step,
                backend=trainer.kernels.backend,
            )
        )
        jobs = Jobs(trainer, folder, self._config.checkpoint_every)
        return Session(
            setup, config, jobs, worker=self._worker, mesh=self._room.mesh, show=self._console.show
        )

    def _signed(self, peer: PeerId, digest: bytes, signature: bytes) -> bool:
        member = self._room.roster.member(peer) if self._room.roster is not None else None
        return member is not None and pledge_is_signed(member.key, digest, signature)

    def _meet(self, session: Session) -> None:
        """Let the core hear of the others; a host's first plan then knows who is there."""
        self._session = session
        if self._room.roster is not None:
            session.handle(events.RosterChanged(self._room.roster.ids))
        for peer in self._room.mesh.links():
            session.handle(events.LinkUp(peer))

    def _begin(self, session: Session, *, lead: bool) -> None:
        session.handle(events.Start(lead=lead))
        self._room.tell_all(Ready(session.run_id))
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
            )
        )
        await session.released()
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
            self._spawn(self._start_as_host(roster))

    def stop(self) -> None:
        """Host: end the run after the step that is being computed; everybody saves it."""
        session = self._session
        if not self._room.is_host or session is None:
            self._console.show(
                Warn(text="Only the host can stop a run, and only while one goes on.")
            )
            return
        last = session.core.stop_step()
        if last is None:
            self._console.show(
                Warn(text="This machine does not know yet how far the run is; try again soon.")
            )
            return
        signature = sign_stop(self._room.identity, session.run_id, last)
        self._console.show(Info(text=f"The run ends after step {last}."))
        session.handle(events.StopRequested(StopOrder(last, signature)))

    def leave(self) -> None:
        """Say goodbye, save, end. A second time: end at once."""
        if self._session is None or self._leaving:
            self._finish(None)
            return
        self._leaving = True
        self._spawn(self._leave(self._session))


def make_run_config(options: RunOptions, dataset: Dataset) -> RunConfig:
    """In the computing thread: the configuration of a new run on this text."""
    return options.config(
        arithmetic_version=kernels.ARITHMETIC_VERSION,
        gates_digest=kernels.gates_digest(),
        data=dataset.manifest.hash(),
    )


def text_blob(dataset: Dataset) -> Blob | None:
    """In the computing thread: the text to hand to members, None if there is none or too much."""
    manifest = dataset.manifest
    if manifest.kind == "builtin" or manifest.size > LIMITS.shared_data_bytes:
        return None
    return share(dataset.blob())


def max_message(config: RunConfig) -> int:
    """Largest message of a run in bytes: all parameters in one shard, and evidence beside them."""
    return 4 * layout_of(config.model).size + HEADER_BYTES + PART_BYTES


def peak_rss() -> int:
    """Largest resident memory of this process so far, bytes."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
