"""Figures of every step: how time is divided, and the file they go to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2pnode.limits import LIMITS
from p2pnode.ui import metrics as module
from p2pnode.ui.events import Warn
from p2pnode.ui.metrics import MetricsLog, TimeSplit, read_metrics
from tests.ui.examples import RUN, metrics


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
