"""Metrics of every step, and the report made of them and the ledger."""

from __future__ import annotations

import builtins
import dataclasses
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from p2pnode.cli import main
from p2pnode.commands import report as report_command
from p2pnode.commands.report import report
from p2pnode.errors import UsageError
from p2pnode.limits import LIMITS
from p2pnode.protocol.identity import Identity, short_id
from p2pnode.signatures import Signatures, file_of, sign
from p2pnode.train.ledger_lines import read_lines
from p2pnode.ui import metrics as module
from p2pnode.ui.events import Warn
from p2pnode.ui.metrics import Metrics, MetricsLog, NodeShare, TimeSplit, read_metrics
from tests.train.ledgers import CONFIG, entry, ledger_of

RUN = CONFIG.run_id().hex()[:8]


def metrics(step: int, **changes: Any) -> Metrics:
    fields: dict[str, Any] = {
        "run": RUN,
        "step": step,
        "loss": 3.0,
        "heldout": None,
        "tokens": 96,
        "grad_norm": 1.0,
        "lr": 0.01,
        "seconds": 2.0,
        "tokens_per_s": 48.0,
        "nodes": (NodeShare("aaaa-aaaa", 3, 36.0), NodeShare("bbbb-bbbb", 1, 12.0)),
        "bytes_in": 2_000_000,
        "bytes_out": 1_000_000,
        "compute_s": 1.0,
        "wire_s": 0.5,
        "wait_s": 0.5,
    }
    return Metrics(**fields | changes)


# Time


class Busy:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_time_is_divided_and_adds_up() -> None:
    busy = Busy()
    split = TimeSplit(busy)
    assert split.lap(10.0) == (0.0, 0.0, 0.0, 0.0)
    busy.seconds = 1.0  # 10 to 11
    split.bulk(11.5)  # the first frame: nothing is known of before
    split.bulk(11.7)
    split.bulk(11.9)
    busy.seconds = 1.05
    split.bulk(12.0)  # half of this gap was worked
    split.bulk(13.0)  # a pause, no transfer
    seconds, compute, wire, wait = split.lap(14.0)
    assert (seconds, compute) == (4.0, pytest.approx(1.05))
    assert wire == pytest.approx(0.45)
    assert compute + wire + wait == pytest.approx(seconds)
    assert split.lap(15.0) == (1.0, 0.0, 0.0, 1.0)


def test_no_part_is_more_than_the_whole() -> None:
    busy = Busy()
    split = TimeSplit(busy)
    split.lap(0.0)
    split.bulk(0.1)
    split.bulk(0.3)
    busy.seconds = 9.0
    assert split.lap(0.5) == (0.5, 0.5, 0.0, 0.0)


# The file


def test_lines_come_back(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, pytest.fail)
    for step in (1, 2):
        log.write(metrics(step))
    log.write(metrics(3, run="00000000"))
    log.close()
    log.write(metrics(4))  # nothing
    with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"half": ')
    assert list(read_metrics(tmp_path, RUN)) == [metrics(1), metrics(2)]
    again = MetricsLog(tmp_path, pytest.fail)
    again.write(metrics(5))
    again.write(metrics(6))
    again.close()
    steps = [one.step for one in read_metrics(tmp_path, RUN)]
    assert steps == [1, 2, 6], "the half line spoils one"


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(msgspec.json.encode(metrics(1))) + 1
    monkeypatch.setattr(module, "LIMITS", dataclasses.replace(LIMITS, metrics_bytes=3 * size))
    log = MetricsLog(tmp_path, pytest.fail)
    for step in range(1, 9):
        log.write(metrics(step))
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 6 * size
    assert [one.step for one in read_metrics(tmp_path, RUN)] == [4, 5, 6, 7, 8]


def test_a_disk_that_fails_ends_the_log_only(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    shown: list[Any] = []
    log = MetricsLog(tmp_path, shown.append)
    log.write(metrics(1))
    log.write(metrics(2))
    assert [type(event) for event in shown] == [Warn]
    assert "No metrics from here on" in shown[0].text


# The report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    ledger = ledger_of(folder, [])
    for step in range(1, 9):
        held = (1_000_000_000 * (20 - step), 10) if step % 4 == 0 else None
        ledger.record(entry(step, 96 * step << 24, held), CONFIG)
    log = MetricsLog(folder, pytest.fail)
    for step in range(1, 9):
        log.write(metrics(step, seconds=0.0 if step == 1 else 2.0))
    log.close()
    return folder


def test_the_report_tells_and_draws(run: Path, tmp_path: Path) -> None:
    digest = [line.digest for line, _ in read_lines(next(run.glob("*.ledger")))][-1]
    alice = Identity(b"a" * 32)
    signed = sign(alice, CONFIG.run_id(), 8, bytes.fromhex(digest))
    Signatures(file_of(next(run.glob("*.ledger")))).add(signed)
    assert main(["report", str(run), "--to", str(tmp_path / "there")]) == 0
    text = (tmp_path / "there/report.md").read_text(encoding="utf-8")
    for said in (
        "1.0000 at step 1, 8.0000 at the last",
        f"{12e9 / 10 / 2**24:.4f} at step 8; lowest",
        "48 tokens/s over all steps seen here, median 48",
        "aaaa-aaaa 75%, bbbb-bbbb 25%",
        "computing 50%, transfers 25%, waiting 25%",
        "16.0 MB in, 8.0 MB out",
        f"{short_id(alice.peer_id)} up to step 8",
        f"`{8:064x}`",
    ):
        assert said in text
    assert (tmp_path / "there/report.png").read_bytes().startswith(b"\x89PNG\r\n")
    drawn = ElementTree.parse(tmp_path / "there/report.svg").getroot()
    assert drawn.tag.endswith("svg")


def test_a_ledger_alone_is_enough(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    said: list[str] = []
    assert report(next(run.glob("*.ledger")), None, said.append) == 0
    assert "| throughput |" not in said[0]
    assert (run / "report.svg").exists()


def test_a_long_run_is_drawn_in_few_points(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_command, "WINDOW", 3)
    assert report(run, None, lambda _: None) == 0


def test_without_matplotlib_it_is_a_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def none(name: str, *more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", none)
    with pytest.raises(UsageError, match=r"pip install 'p2pnode\[report\]'"):
        report(run, None)


def test_a_place_that_cannot_be_written_is_a_sentence(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="Cannot write to"):
        report(run, tmp_path / "file")
