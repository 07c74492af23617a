"""What a run takes at this machine before its first step: memory, text, kernels, a first state.

May import: first_weights, texts, process_memory, share, signatures, worker, protocol, train,
sources, ui.events, node_config, config, limits, errors.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from p2pnode import first_weights
from p2pnode.config import RunConfig, RunOptions
from p2pnode.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MemoryNeedError,
    SourceAwayError,
)
from p2pnode.first_weights import FirstWeights
from p2pnode.limits import LIMITS
from p2pnode.node_config import NodeConfig, TextChoice
from p2pnode.process_memory import free_memory
from p2pnode.protocol.chain import END, Chain
from p2pnode.protocol.fetch import Blob
from p2pnode.protocol.identity import PeerId
from p2pnode.protocol.messages import HEADER_BYTES, PART_BYTES
from p2pnode.share import DataShare, share
from p2pnode.signatures import Signatures, file_of
from p2pnode.sources.proxied import DataProxy
from p2pnode.texts import (
    text_from_blob,
    text_here,
    text_of_new_run,
    text_of_resumed_run,
)
from p2pnode.train.arithmetic import kernels
from p2pnode.train.checkpoint import CheckpointFolder, load
from p2pnode.train.data import Dataset
from p2pnode.train.footprint import footprint, megabytes
from p2pnode.train.layout import layout_of
from p2pnode.train.ledger import Ledger
from p2pnode.train.manifest import Manifest
from p2pnode.train.state import State
from p2pnode.train.trainer import Trainer
from p2pnode.ui.events import Event, Info, Warn
from p2pnode.worker import Urgency, Worker

T = TypeVar("T")

PATIENCE_SECONDS = 5.0
"""How often something that takes long says so."""
AGAIN_SECONDS = 5.0
"""Pause before a source that is away is asked again, on top of its own patience."""


@dataclasses.dataclass(frozen=True)
class Workshop:
    """A trainer and the folder its states go to; one for as long as a node trains one model."""

    trainer: Trainer
    folder: CheckpointFolder
    ledger: Ledger
    signatures: Signatures

    def take_up(self, chain: Chain, older: Chain | None) -> None:
        """In the computing thread: go to the newest state here that is one of the chain's run.

        older: what the states here were made under, None if that is not known. Of a rewound run
        the states that hold wrong work are removed.
        """
        limit = chain.limit(older)
        wrong_after = chain.discarded_after(older)
        if wrong_after < END:
            self.folder.discard(chain.config, wrong_after)
        known = min(limit, chain.branch(older)) if older is not None else limit
        self.ledger.cut(known)
        self.signatures.cut(known)
        found = [self.folder.newest_of(chain.config, limit)]
        here = self.trainer.committed
        if here.step <= limit and here.config == chain.config.at(here.step):
            found.append(here)
        lent = self.trainer.newest_lent(limit)
        if lent is not None and lent.config == chain.config.at(lent.step):
            found.append(lent)
        states = [state for state in found if state is not None]
        newest = max(states, key=lambda state: state.step, default=None)
        self.trainer.restart(chain.config, newest)


class Preparation:
    """The steps towards a run, in the order a node takes them."""

    def __init__(
        self,
        config: NodeConfig,
        choice: TextChoice,
        worker: Worker,
        show: Callable[[Event], None],
        proxy: DataProxy,
    ) -> None:
        """`choice`: where this machine has the run's text, if it has; `proxy`: what the signaling
        server serves of it."""
        self._config = config
        self._choice = choice
        self._worker = worker
        self._show = show
        self._proxy = proxy
        self._away = False
        """The text is waited for, and the owner knows it."""

    async def compute(self, job: Callable[..., T], *args: object, **kwargs: object) -> T:
        """Anything that takes long, in the computing thread."""
        return await self._worker.submit(Urgency.BACKGROUND, job, *args, **kwargs)

    async def found_state(self, resume: str | None) -> State | None:
        """The checkpoint the owner wants to go on from. Raises CheckpointError."""
        if resume is None:
            return None
        path = self._config.out if resume == "auto" else Path(resume)
        if not await self.compute(path.is_dir):
            return await self.compute(load, path)
        folder = await self.compute(CheckpointFolder, path, self._config.keep)
        found = await self.compute(folder.newest)
        for name in folder.skipped:
            self._show(Warn(text=f"{name} is damaged and is left aside."))
        if found is None:
            raise CheckpointError(f"--resume {resume}: {path} holds no good checkpoint.")
        self._show(Info(text=f"Going on from step {found[1].step} ({found[0]})."))
        return found[1]

    async def given_weights(
        self, config: RunConfig, *, resumed: bool
    ) -> tuple[RunConfig, FirstWeights | None]:
        """At the host: `first_weights.given`."""
        return await self.compute(
            first_weights.given, config, self._config.init, self._config.out, resumed=resumed
        )

    async def find_weights(
        self,
        config: RunConfig,
        source: DataShare,
        donors: Callable[[], Iterable[PeerId]],
    ) -> FirstWeights:
        """At a member: the weights that the run begins with, from its folder or from the others.
        Then serve them too. Raises ExportError and CheckpointError."""
        first = await self.compute(first_weights.kept, self._config.out, config)
        if first is None:
            size = first_weights.size_of(config.model)
            self._show(Info(text=f"Fetching the run's first weights ({size / 2**20:.1f} MiB) …"))
            raw = await source.fetch(size, donors, lambda here, total: None)
            first = await self.compute(first_weights.read, raw, config)
            await self.compute(first_weights.keep, self._config.out, first)
        source.serve(first.blob)
        return first

    async def check_memory(self, config: RunConfig, manifest: Manifest) -> None:
        """Say what the run takes here. Raises MemoryNeedError if there is not as much."""
        compiling = not self._config.reference and await self.compute(kernels.will_compile)
        audits = self._config.audit > 0
        need = footprint(config, manifest.held_bytes, audits=audits, compiling=compiling)
        here = psutil.Process().memory_info().rss
        free = free_memory()
        if need.total - here > free:
            raise MemoryNeedError(
                f"This run takes up to {megabytes(need.total)} of memory ({need}), and only "
                f"{megabytes(free + here)} can be had here. Close other programs, or take a "
                "smaller model or shorter sequences."
            )
        self._show(
            Info(
                text=f"Takes up to {megabytes(need.total)} of memory here ({need}); "
                f"{megabytes(free + here)} can be had."
            )
        )

    async def own_text(
        self, options: RunOptions, state: State | None, resume: str | None
    ) -> Dataset:
        """The text that this machine's owner named, or the built-in one; for a run that goes on
        from `state`, the text of that, whose source is waited for. Raises DataError."""
        folder = self._config.out
        if state is None:
            work = self.compute(text_of_new_run, self._choice, options, folder)
        else:
            resumed = Path(resume) if resume not in (None, "auto") else None
            arguments = self._choice, state.config, folder, resumed, self._proxy
            work = self._source(text_of_resumed_run, *arguments)
        return await self._patiently(work, "Still reading the text")

    async def find_text(
        self,
        manifest: Manifest,
        config: RunConfig,
        source: DataShare | None,
        donors: Callable[[], Iterable[PeerId]],
    ) -> Dataset:
        """The run's text: from --data, built in, or from the other members. Then serve it too."""
        arguments = self._choice, manifest, config, self._config.out, self._proxy
        reading = self._here_or_fetched(arguments, source if manifest.shared else None, donors)
        dataset, raw = await self._patiently(reading, "Still reading the text")
        if dataset is None and source is None:
            raise DataError("This run trains on files that are not here; give them with --data.")
        if dataset is None and source is not None:
            size = manifest.blob_size
            what = "text" if manifest.shared else "tokenizer"
            text = f"Fetching the run's {what} ({size / 2**20:.1f} MiB) from the other machines …"
            self._show(Info(text=text))
            raw = await source.fetch(size, donors, self._show_progress)
        if raw is not None:
            dataset = await self._source(text_from_blob, *arguments, raw)
        assert dataset is not None
        # Who reads a table here reads it bit by bit, and has nothing whole to hand on.
        if source is not None and not (dataset.remote and raw is None):
            blob = await self.compute(text_blob, dataset)
            if blob is not None:
                source.serve(blob)
        return dataset

    async def _here_or_fetched(
        self,
        arguments: tuple[TextChoice, Manifest, RunConfig, Path, DataProxy],
        source: DataShare | None,
        donors: Callable[[], Iterable[PeerId]],
    ) -> tuple[Dataset | None, bytes | None]:
        """The text of this machine's own source (None: it has none), or, if that is away and the
        members hand the text on, what they send, whichever comes first."""
        _, manifest, config, *_ = arguments

        def here() -> Dataset | None:
            dataset = text_here(*arguments)
            if dataset is not None:
                dataset.prepare(config)
            return dataset

        if source is None:
            return await self._source(here), None
        try:
            return await self.compute(here), None
        except SourceAwayError as error:
            self._tell_away(error, "It is fetched from the other machines meanwhile.")
        own = asyncio.ensure_future(self._source(here))
        others = asyncio.ensure_future(
            source.fetch(manifest.blob_size, donors, self._show_progress)
        )
        try:
            await asyncio.wait({own, others}, return_when=asyncio.FIRST_COMPLETED)
            return (None, others.result()) if others.done() else (own.result(), None)
        finally:
            own.cancel()
            others.cancel()

    async def blob(self, dataset: Dataset) -> Blob | None:
        """The text to hand to members, None if there is none or too much."""
        return await self._source(text_blob, dataset)

    async def _source(self, job: Callable[..., T], *args: object) -> T:
        """As `compute`; a source that is away is waited for, however long."""
        while True:
            try:
                result = await self.compute(job, *args)
            except SourceAwayError as error:
                self._tell_away(
                    error,
                    "This machine waits for it, and asks again and again; Ctrl-C ends that. "
                    "Another of the group that has the text can resume the run as its host.",
                )
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                if self._away:
                    self._show(Info(text="The text is here."))
                self._away = False
                return result

    def _tell_away(self, error: SourceAwayError, what: str) -> None:
        if not self._away:
            self._away = True
            self._show(Warn(text=f"{error} {what}"))

    def _show_progress(self, here: int, total: int) -> None:
        if total:
            self._show(Info(text=f"  {here * 100 // total} % of the text is here"))

    async def workshop(
        self, config: RunConfig, dataset: Dataset, first: FirstWeights | None
    ) -> Workshop:
        """Compile, make the first state (from the weights `first`, if the run was given some), open
        the checkpoint folder. Raises P2PNodeError."""
        if max_message(config) > LIMITS.bulk_bytes:
            raise ConfigError(
                f"The model has {layout_of(config.model).size:,} parameters; their sums do not fit "
                f"a message of {LIMITS.bulk_bytes // 2**20} MiB. Make it smaller."
            )
        self._show(Info(text="Preparing the kernels …"))
        await self._patiently(self._source(dataset.prepare, config), "Still fetching held-out text")
        trainer = await self._patiently(
            self.compute(self._trainer, config, dataset, first),
            "Still compiling the kernels (once per machine and version)",
        )
        for kernel, reason in trainer.kernels.demoted.items():
            self._show(Warn(text=f"Kernel {kernel} runs in its slow form: {reason}"))
        folder = await self.compute(CheckpointFolder, self._config.out, self._config.keep)
        ledger = await self.compute(Ledger, self._config.out, config)
        for problem in ledger.problems:
            self._show(Warn(text=problem))
        ledger.problems.clear()
        signatures = await self.compute(Signatures, file_of(ledger.path))
        return Workshop(trainer, folder, ledger, signatures)

    def _trainer(self, config: RunConfig, dataset: Dataset, first: FirstWeights | None) -> Trainer:
        """In the computing thread: compiled kernels and the first state."""
        cores = psutil.cpu_count(logical=False) or 1
        kernels.use_threads(self._config.threads or max(1, cores - 1))
        values = first.values if first is not None else None
        return Trainer(config, dataset, reference=self._config.reference, first=values)

    async def _patiently(self, work: Coroutine[Any, Any, T], text: str) -> T:
        """Await `work` and say every few seconds that it goes on."""
        task = asyncio.ensure_future(work)
        try:
            seconds = 0.0
            while not (await asyncio.wait({task}, timeout=PATIENCE_SECONDS))[0]:
                seconds += PATIENCE_SECONDS
                if not self._away:
                    self._show(Info(text=f"{text}: {seconds:.0f} s …"))
            return task.result()
        finally:
            task.cancel()


def text_blob(dataset: Dataset) -> Blob | None:
    """In the computing thread: the text to hand to members, None if there is none or too much."""
    return share(dataset.blob()) if dataset.manifest.blob_size else None


def max_message(config: RunConfig) -> int:
    """Largest message of a run in bytes: all parameters in one shard, and evidence beside them."""
    return 4 * layout_of(config.model).size + HEADER_BYTES + PART_BYTES
