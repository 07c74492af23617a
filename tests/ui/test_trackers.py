"""Figures reach the tools, and a tool that is slow or fails holds nobody up."""

from __future__ import annotations

import importlib.util
import struct
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from p2pnode.cli import main
from p2pnode.errors import UsageError
from p2pnode.ui import trackers
from p2pnode.ui.events import Warn
from p2pnode.ui.trackers import Tracker, load_tool, values_of
from tests.ui.examples import metrics

HERE = [tool for tool in trackers._MODULES if importlib.util.find_spec(trackers._MODULES[tool])]
"""The suite asks for tensorboardX alone; the others are large and are tried where they are."""


def track(tool: str, folder: Path, steps: int = 3) -> list[Any]:
    shown: list[Any] = []
    tracker = Tracker(tool, folder, shown.append)
    for step in range(1, steps + 1):
        tracker.write(metrics(step, loss=4.0 - step, heldout=2.5 if step == 2 else None))
    tracker.close()
    return shown


@pytest.mark.parametrize("tool", HERE)
def test_the_real_tools_take_figures_and_say_nothing(
    tool: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load_tool(tool, tmp_path)
    assert track(tool, tmp_path) == []
    assert capfd.readouterr() == ("", "")
    assert any(path.is_file() for path in (tmp_path / tool).rglob("*")), "in the run's folder"


def test_tensorboard_files_can_be_read_back(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    track("tensorboard", tmp_path)
    (path,) = (tmp_path / "tensorboard").rglob("events.*")
    raw, seen = path.read_bytes(), {}
    while raw:
        (size,) = struct.unpack("<Q", raw[:8])
        event = Event.FromString(raw[12 : 12 + size])
        raw = raw[16 + size :]
        for value in event.summary.value:
            seen[value.tag, event.step] = value.simple_value
    assert [seen["loss", step] for step in (1, 2, 3)] == [3.0, 2.0, 1.0]
    assert seen["heldout", 2] == 2.5
    assert ("heldout", 1) not in seen
    assert seen["tokens_per_s/aaaa-aaaa", 3] == 36.0


def fake(monkeypatch: pytest.MonkeyPatch, tool: str) -> list[Any]:
    """A module in place of the tool that writes down what is called."""
    calls: list[Any] = []

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            calls.append((step, values["loss"]))

        def finish(self, **options: object) -> None:
            calls.append("finish")

    module = types.ModuleType(tool)

    def init(**options: Any) -> Run:
        calls.append(options)
        return Run()

    module.Settings = dict  # type: ignore[attr-defined]
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, tool, module)
    return calls


@pytest.mark.parametrize("tool", ["trackio", "wandb"])
def test_what_is_asked_of_the_others(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake(monkeypatch, tool)
    assert track(tool, tmp_path) == []
    assert calls[1:] == [(1, 3.0), (2, 2.0), (3, 1.0), "finish"]
    assert calls[0]["name"] == metrics(1).run
    if tool == "wandb":
        assert (calls[0]["mode"], calls[0]["dir"]) == ("offline", str(tmp_path))


def test_a_tool_that_fails_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path, run: str) -> Any:
        raise RuntimeError("no\x1bway")

    monkeypatch.setitem(trackers._ADAPTERS, "wandb", broken)
    shown = track("wandb", tmp_path, steps=50)
    assert [type(event) for event in shown] == [Warn]
    assert "--track wandb ends here: RuntimeError: no\\x1bway" in shown[0].text


def test_a_slow_tool_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    class Slow:
        def log(self, values: dict[str, float], step: int) -> None:
            assert go.wait(30)

        def close(self) -> None:
            pass

    monkeypatch.setattr(trackers, "QUEUE", 5)
    monkeypatch.setitem(trackers._ADAPTERS, "wandb", lambda folder, run: Slow())
    shown: list[Any] = []
    tracker = Tracker("wandb", tmp_path, shown.append)
    for step in range(1, 101):
        tracker.write(metrics(step))
    go.set()
    tracker.close()
    assert len(shown) == 1
    assert int(shown[0].text.split()[2]) >= 94


def test_a_tool_that_is_not_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(trackers._MODULES, "wandb", "no_such_package")
    with pytest.raises(UsageError, match=r"pip install 'p2pnode\[wandb\]'"):
        load_tool("wandb", tmp_path)
    join = ("join", "--signal", "http://127.0.0.1:9", "--out", str(tmp_path), "--track", "wandb")
    assert main(join) == 2
    assert "needs a package" in capsys.readouterr().err


def test_values_are_numbers_by_name() -> None:
    values = values_of(metrics(1))
    assert values["nodes"] == 2
    assert "heldout" not in values
    assert all(isinstance(value, float) for value in values.values())
