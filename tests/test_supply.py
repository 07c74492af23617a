"""A run whose text stays away waits for it, says so, and goes on to the same state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2pnode import supply
from p2pnode.audits import Cost
from p2pnode.jobs import Jobs
from p2pnode.keeper import Keeper
from p2pnode.protocol import effects, events
from p2pnode.session import Session
from p2pnode.sources import units
from p2pnode.sources.retry import Patience
from p2pnode.train.checkpoint import CheckpointFolder
from p2pnode.train.data import Dataset
from p2pnode.train.ledger import Ledger
from p2pnode.train.open_data import Source, open_dataset
from p2pnode.ui.events import Info, Warn
from p2pnode.worker import Worker
from tests.harness.range_server import RangeServer
from tests.harness.real_text import passages, write_parquet
from tests.harness.stage import FakeMesh, make_setup
from tests.test_session import new_trainer, run_config

STEPS = 6
BRIEF = Patience(attempts=2, pause=0.01, stall=1.0, least_stall=1.0)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[RangeServer]:
    write_parquet(tmp_path / "t.parquet", passages()[:200], 5)
    with RangeServer(tmp_path) as running:
        yield running


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


class Run:
    """One node alone, on a table of the web."""

    def __init__(self, worker: Worker, folder: Path, dataset: Dataset) -> None:
        config = run_config("nano", steps=STEPS, slots=4, warmup=1, eval_every=2)
        self.config = config = config.__class__(
            **{name: getattr(config, name) for name in config.__struct_fields__}
            | {"data": dataset.manifest.hash()}
        )
        dataset.prepare(config)
        trainer = new_trainer(config, dataset)
        self.trainer = trainer
        self.shown: list[Any] = []
        self.warned = asyncio.Event()
        files = CheckpointFolder(folder)
        keeper = Keeper(trainer, files, Ledger(folder, config), every=100, keep_best=False)
        self.session = Session(
            make_setup(
                parameters=trainer.parameters,
                tensors=len(trainer.tensors),
                slots=config.slots,
                steps=STEPS,
                state_hash=trainer.state_hash,
                probe=trainer.expected_probe,
                run=config.run_id()[:16],
            ),
            config,
            Jobs(trainer, files, keeper),
            worker=worker,
            mesh=FakeMesh(),  # type: ignore[arg-type]
            show=self._show,
            rewind=self.shown.append,
            kept=lambda result: None,
            measured=lambda metrics: None,
            audit_cost=Cost(),
        )

    def _show(self, event: Any) -> None:
        self.shown.append(event)
        if isinstance(event, Warn):
            self.warned.set()

    async def end(self) -> bytes:
        outcome = await asyncio.wait_for(self.session.finished(), 60)
        self.session.close()
        assert outcome.ending is effects.Ending.COMPLETE
        return outcome.state_hash

    def said(self, kind: type) -> str:
        return " ".join(event.text for event in self.shown if isinstance(event, kind))


async def test_nobody_has_the_text_for_a_while(
    web: RangeServer, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(units, "AGAIN_SECONDS", 0.1)
    local = open_dataset(Source(str(tmp_path / "t.parquet")))
    assert len(local.manifest.groups) == 40
    undisturbed = Run(worker, tmp_path / "one", local)
    undisturbed.session.handle(events.Start(lead=True))
    expected = await undisturbed.end()

    source = Source(web.url("ok", "t.parquet"), patience=BRIEF)
    run = Run(worker, tmp_path / "two", open_dataset(source, local.manifest))
    web.away = True
    run.session.handle(events.Start(lead=True))
    async with asyncio.timeout(30):
        await run.warned.wait()
    assert "503" in run.said(Warn)
    assert run.session.core.applied == 0
    web.away = False
    assert await run.end() == expected
    assert "takes work again" in run.said(Info)
