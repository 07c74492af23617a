"""A run whose source is away before its first step here waits for it, or has the text of others."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2pnode import prepare, texts
from p2pnode.errors import DataError
from p2pnode.node_config import NodeConfig, TextChoice
from p2pnode.prepare import Preparation
from p2pnode.share import share
from p2pnode.sources.proxied import DataProxy
from p2pnode.sources.retry import Patience
from p2pnode.train.data import Dataset
from p2pnode.train.open_data import Source, open_dataset
from p2pnode.train.tables import Need
from p2pnode.train.update import initial_state
from p2pnode.ui.events import Info, Warn
from p2pnode.worker import Worker
from tests.harness.range_server import RangeServer
from tests.harness.real_text import passages, write_parquet
from tests.train.helpers import micro_config

BRIEF = Patience(attempts=2, pause=0.01, stall=1.0, least_stall=1.0)
SECONDS = 60.0


@pytest.fixture
def web(tmp_path: Path) -> Iterator[RangeServer]:
    (tmp_path / "web").mkdir()
    write_parquet(tmp_path / "web" / "t.parquet", passages()[:200], 20)
    with RangeServer(tmp_path / "web") as running:
        yield running


class Bench:
    """One machine with nothing on its disk but what the tests put there."""

    def __init__(self, worker: Worker, folder: Path, url: str) -> None:
        run = micro_config(eval_every=2)
        need = Need(run.steps * run.slots * run.micro_batch, run.model.seq_len + 1, run.seed)
        self.text = open_dataset(Source(str(folder / "web" / "t.parquet")), need=need)
        self.run = micro_config(data=self.text.manifest.hash(), eval_every=2)
        self.shown: list[Any] = []
        self.told = asyncio.Event()
        config = NodeConfig(
            signal="http://127.0.0.1:1", code=None, name="a", home=folder, out=folder / "out"
        )
        self.out = config.out
        self.out.mkdir()
        self.choice = TextChoice(url)
        self.preparation = Preparation(config, self.choice, worker, self._show, DataProxy())

    def _show(self, event: Any) -> None:
        self.shown.append(event)
        if isinstance(event, Warn):
            self.told.set()

    def same(self, dataset: Dataset) -> None:
        """It reads what the run reads."""
        assert dataset.token_hash(3, 1, self.run) == self.text.token_hash(3, 1, self.run)
        assert (
            dataset.heldout_slot(0, self.run)[0] == self.text.heldout_slot(0, self.run)[0]
        ).all()

    async def away(self) -> str:
        async with asyncio.timeout(SECONDS):
            await self.told.wait()
        return str(next(event.text for event in self.shown if isinstance(event, Warn)))


@pytest.fixture
def bench(web: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(prepare, "AGAIN_SECONDS", 0.05)
    source = texts.Source
    monkeypatch.setattr(
        texts, "Source", lambda *args, **more: source(*args, patience=BRIEF, **more)
    )
    worker = Worker()
    yield Bench(worker, tmp_path, web.url("ok", "t.parquet"))
    worker.close()


@pytest.mark.parametrize("manifest_is_kept", [True, False])
async def test_a_host_that_resumes_waits_for_its_source(
    bench: Bench, web: RangeServer, manifest_is_kept: bool
) -> None:
    """With the manifest the text is missed when it is read, without it at once."""
    if manifest_is_kept:
        name = texts._manifest_name(bench.run.data)
        (bench.out / name).write_bytes(bench.text.manifest.canonical())
    web.away = True

    async def start() -> tuple[Dataset, Any]:
        state = initial_state(bench.run)
        found = await bench.preparation.own_text(None, state, "auto")  # type: ignore[arg-type]
        return found, await bench.preparation.blob(found)

    starting = asyncio.ensure_future(start())
    said = await bench.away()
    assert "503" in said
    assert "waits for it" in said
    assert not starting.done()
    web.away = False
    dataset, blob = await asyncio.wait_for(starting, SECONDS)
    bench.same(dataset)
    assert blob.root == share(bench.text.blob()).root
    assert any("The text is here" in e.text for e in bench.shown if isinstance(e, Info))
    assert sum(isinstance(event, Warn) for event in bench.shown) == 1, "it is said once"


class Share:
    """What members send of the text: nothing, until it is let go."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.go = asyncio.Event()
        self.asked = self.cancelled = False
        self.served: list[Any] = []

    async def fetch(self, size: int, donors: Any, progress: Any) -> bytes:
        self.asked = True
        assert size == len(self.raw)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return self.raw

    def serve(self, blob: Any) -> None:
        self.served.append(blob)


@pytest.mark.parametrize("first", ["members", "source"])
async def test_a_member_takes_what_comes_first(bench: Bench, web: RangeServer, first: str) -> None:
    web.away = True
    members = Share(bench.text.blob())
    finding = asyncio.ensure_future(
        bench.preparation.find_text(bench.text.manifest, bench.run, members, lambda: ())  # type: ignore[arg-type]
    )
    assert "from the other machines" in await bench.away()
    assert not finding.done()
    if first == "members":
        members.go.set()
    else:
        web.away = False
    bench.same(await asyncio.wait_for(finding, SECONDS))
    assert members.asked
    assert members.cancelled == (first == "source")
    assert len(members.served) == (first == "members"), "who has it whole hands it on"


async def test_a_member_waits_if_the_text_is_too_large_to_be_sent(
    bench: Bench, web: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dataclasses.replace(prepare.LIMITS, shared_data_bytes=1_000)
    monkeypatch.setattr("p2pnode.train.manifest.LIMITS", limits)
    web.away = True
    members = Share(b"")
    finding = asyncio.ensure_future(
        bench.preparation.find_text(bench.text.manifest, bench.run, members, lambda: ())  # type: ignore[arg-type]
    )
    assert "waits for it" in await bench.away()
    web.away = False
    bench.same(await asyncio.wait_for(finding, SECONDS))
    assert not members.asked


async def test_other_text_is_not_waited_for(bench: Bench, web: RangeServer) -> None:
    entry = msgspec.structs.replace(bench.text.manifest.files[0], sha256="0" * 64)
    other = msgspec.structs.replace(bench.text.manifest, files=(entry,))
    with pytest.raises(DataError, match="not the file that the run was started with"):
        await bench.preparation.find_text(other, bench.run, None, lambda: ())
    assert not bench.told.is_set()
