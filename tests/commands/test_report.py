"""The report made of the figures of every step and of the ledger."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from p2pnode.cli import main
from p2pnode.commands import report as report_command
from p2pnode.commands.report import report
from p2pnode.errors import UsageError
from p2pnode.protocol.identity import Identity, short_id
from p2pnode.signatures import Signatures, file_of, sign
from p2pnode.train.ledger_lines import read_lines
from p2pnode.ui.metrics import MetricsLog
from tests.train.ledgers import CONFIG, entry, ledger_of
from tests.ui.examples import metrics


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
