"""The run that this node trains: its sessions, the records they go by, what comes of them.

Under a record that has all its states a session goes on; under another one it is closed, and the
next begins from a state that counts. May import: audits, jobs, keeper, ledger_share, orders,
prepare, process_memory, room, sampling, session, tasks, worker, net, protocol, ui, node_config,
errors.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from p2pnode.audits import Cost
from p2pnode.errors import ConfigError, NonFiniteError, PeerError, UsageError
from p2pnode.jobs import Jobs
from p2pnode.keeper import CommitResult, Keeper
from p2pnode.ledger_share import LedgerShare
from p2pnode.net.watchdog import Watchdog
from p2pnode.node_config import NodeConfig
from p2pnode.orders import Orders, sentence
from p2pnode.prepare import Preparation, Workshop
from p2pnode.process_memory import peak_rss
from p2pnode.protocol import effects, events
from p2pnode.protocol.chain import Chain, Records
from p2pnode.protocol.identity import PeerId
from p2pnode.protocol.lobby import (
    LedgerMessage,
    Ready,
    RecordNews,
    pledge_is_signed,
    sign_pledge,
)
from p2pnode.protocol.setup import Setup
from p2pnode.room import Room
from p2pnode.sampling import Samples
from p2pnode.session import Outcome, Session
from p2pnode.tasks import Tasks
from p2pnode.ui.events import Event, Finished, Info, RunStarted, Warn
from p2pnode.ui.metrics import Metrics, MetricsLog
from p2pnode.ui.trackers import Tracker
from p2pnode.worker import Worker

_chance = secrets.SystemRandom()
"""Draws what is audited: nobody can know it before."""
LEDGER_SECONDS = 3.0
"""How long a node whose run is over waits for others to fetch lines of the ledger they lack."""
DRAIN_SECONDS = 2.0
"""How long goodbyes and last shards may take to leave this machine."""


class Run:
    """One run at this node. All methods are called on the event loop."""

    def __init__(
        self,
        room: Room,
        orders: Orders,
        preparation: Preparation,
        config: NodeConfig,
        *,
        worker: Worker,
        show: Callable[[Event], None],
        watchdog: Watchdog,
        tasks: Tasks[Outcome | None],
    ) -> None:
        """`tasks` are finished with the outcome, with None if the owner left before."""
        self._room = room
        self._orders = orders
        self._preparation = preparation
        self._config = config
        self._worker = worker
        self._show = show
        self._watchdog = watchdog
        self._tasks = tasks
        self._session: Session | None = None
        self._workshop: Workshop | None = None
        self._ledgers: LedgerShare | None = None
        self._metrics = MetricsLog(config.out, show)
        self._tracker = self._make_tracker()
        self._samples = Samples(config.out, config.sample_prompt, worker=worker, show=show)
        self._audit_cost = Cost()
        """Of this session and those before it that a rewind ended, as the number of sets missed."""
        self._audits_missed = 0
        self._leaving = False

    @property
    def has_session(self) -> bool:
        """Whether a session takes messages of the run."""
        return self._session is not None

    def handle(self, event: events.Event) -> None:
        """Give the session an event, if there is one."""
        if self._session is not None:
            self._session.handle(event)

    # Sessions

    async def open(self, workshop: Workshop, older: Chain | None) -> Session:
        """A session that goes on from the newest state here that counts under the chain, and knows
        who is there; `begin` has it train. `older`: the chain that the states here were made
        under, None if that is not known. Raises P2PNodeError."""
        self._workshop = workshop
        await self._take_up(workshop, older)
        return self._open_session(workshop)

    def begin(self, session: Session, *, lead: bool) -> None:
        """Train. `lead`: make the first plan, as the host of a new run."""
        session.handle(events.Start(lead=lead))
        if self._orders.chain is not None:
            self._room.tell_all(Ready(self._orders.chain.ids[0]))
        self._tasks.spawn(self._see_it_through(session))

    async def _take_up(self, workshop: Workshop, older: Chain | None) -> None:
        """Go to the newest state that is here and counts under the chain, which may change
        meanwhile."""
        while (chain := self._orders.chain) is not None and chain is not older:
            await self._preparation.compute(workshop.take_up, chain, older)
            older = chain

    def _open_session(self, workshop: Workshop) -> Session:
        """A step core that goes on from the trainer's state."""
        chain, roster = self._orders.chain, self._room.roster
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
            members=roster.ids if roster is not None else (),
            sign=lambda digest: sign_pledge(self._room.identity, digest),
            signed=self._signed,
            secret=secrets.token_bytes(32),
            applied=trainer.step,
            stopped=chain.stopped,
            excluded=chain.excluded,
            audit=lambda: _chance.random() < self._config.audit,
        )
        self._show(
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
            show=self._show,
            spawn=self._tasks.spawn,
        )
        self._session = session = Session(
            setup,
            config,
            Jobs(trainer, workshop.folder, keeper),
            worker=self._worker,
            mesh=self._room.mesh,
            show=self._show,
            rewind=self._rewind,
            kept=self._on_kept,
            measured=self._on_measured,
            audit_cost=self._audit_cost,
        )
        # A host's first plan then knows who is there.
        if roster is not None:
            session.handle(events.RosterChanged(roster.ids))
        for peer in self._room.mesh.links():
            session.handle(events.LinkUp(peer))
        return session

    def _signed(self, peer: PeerId, digest: bytes, signature: bytes) -> bool:
        key = self._key_of(peer)
        return key is not None and pledge_is_signed(key, digest, signature)

    def _key_of(self, peer: PeerId) -> bytes | None:
        member = self._room.roster.member(peer) if self._room.roster is not None else None
        return member.key if member is not None else None

    # What a commit leaves behind

    def on_ledger(self, peer: PeerId, message: LedgerMessage) -> None:
        """A member's word about the ledger."""
        if self._ledgers is not None:
            self._ledgers.take(peer, message)

    def _on_kept(self, result: CommitResult) -> None:
        """A commit was written down here."""
        if self._ledgers is not None:
            if result.signs is not None:
                self._ledgers.signed_here(*result.signs)
            self._ledgers.lacks(result.missing)
        if result.sample is not None and self._workshop is not None:
            kernels = self._workshop.trainer.kernels
            self._tasks.spawn(self._samples.take(result.sample, kernels))
        chain, after = self._orders.chain, result.stop_after
        if after is None or chain is None or not self._room.door.decides or self._leaving:
            return
        if after < chain.last_step:  # every node finds the same; who may sign orders it
            self._follow(self._orders.stop(after), chain, here=True)

    def _make_tracker(self) -> Tracker | None:
        if self._config.track is None:
            return None
        loop = asyncio.get_running_loop()

        def show(event: Event) -> None:  # from the tracker's thread
            loop.call_soon_threadsafe(self._show, event)

        return Tracker(self._config.track, self._config.out, show)

    def _on_measured(self, metrics: Metrics) -> None:
        self._metrics.write(metrics)
        if self._tracker is not None:
            self._tracker.write(metrics)

    # Records

    def on_records(self, peer: PeerId, records: Records) -> None:
        """A member tells the chain that it goes by."""
        older = self._orders.chain
        if older is None:
            return  # whoever knows of the run announces it first
        try:
            chain = self._orders.hear(records)
        except PeerError as error:
            self._room.mesh.drop(peer, str(error))
        except ConfigError as error:
            self._show(Warn(text=str(error)))
        else:
            if chain is not None:
                self._follow(chain, older, here=False)

    def order(self, what: str, make: Callable[[int], Chain]) -> None:
        """Sign a record that begins after the step under way, and follow it. `what`: a verb.
        Raises UsageError."""
        session, older = self._session, self._orders.chain
        if not self._room.door.decides or session is None or older is None:
            raise UsageError(
                f"Only the host can {what} a run, or who stands in for it, and only while one goes "
                "on."
            )
        after = session.core.horizon()
        if after is None:
            raise UsageError("This machine does not know yet how far the run is; try again soon.")
        self._follow(make(after), older, here=True)

    def _rewind(self, effect: effects.Rewind) -> None:
        """Wrong work was found, and it is on this node to take it back."""
        older = self._orders.chain
        assert older is not None  # a session runs
        try:
            chain = self._orders.rewind(effect.step, effect.state_hash, effect.culprits)
        except UsageError as error:
            self._tasks.fail(error)
            return
        if chain is not None:
            self._follow(chain, older, here=True)

    def _follow(self, chain: Chain, older: Chain, *, here: bool) -> None:
        """Another chain holds: tell the others, and go on or begin again."""
        for record in chain.records[chain.shared(older) :]:
            self._show(sentence(record, chain, self._room.name(record.signer)))
        self._room.tell_all(RecordNews(chain.signed))
        session = self._session
        if session is None or self._leaving:
            return  # `open` goes by the newest chain
        if not session.over and chain.goes_on(older, session.core.reached):
            event = events.Redirected(
                chain.tag, chain.last_step, chain.stopped, chain.branch(older), here
            )
            session.redirect(chain.config, event)
            return
        self._session = None
        self._audits_missed += session.core.audits_missed
        session.close()
        self._tasks.spawn(self._begin_again(older, lead=here))

    async def _begin_again(self, older: Chain, *, lead: bool) -> None:
        assert self._workshop is not None  # there was a session
        await self._take_up(self._workshop, older)
        if not self._leaving:
            self.begin(self._open_session(self._workshop), lead=lead)

    # Ending

    def leave(self) -> None:
        """Say goodbye, save, end. A second time: end at once."""
        if self._session is None or self._leaving:
            self._tasks.finish(None)
            return
        self._leaving = True
        self._tasks.spawn(self._leave(self._session))

    def stop(self) -> None:
        """No session does anything any more."""
        if self._session is not None:
            self._session.close()

    async def close(self) -> None:
        """Close what the run's figures go to."""
        self._metrics.close()
        if self._tracker is not None:
            await asyncio.to_thread(self._tracker.close)

    async def _see_it_through(self, session: Session) -> None:
        outcome = await session.finished()
        report = self._watchdog.report()
        self._show(
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
        self._tasks.finish(outcome)

    async def _leave(self, session: Session) -> None:
        session.handle(events.LeaveRequested())
        if session.core.committed > 0:
            path = await session.save()
            self._show(Info(text=f"Left at step {session.core.committed}; saved {path}."))
        await self._room.mesh.drain(DRAIN_SECONDS)
        self._tasks.finish(None)
