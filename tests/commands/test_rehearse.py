"""`rehearse` as a user meets it: progress, summary, replay lines, exit codes."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from p2pnode.cli import main
from p2pnode.commands import rehearse as rehearse_command
from p2pnode.commands.rehearse import Options, rehearse
from p2pnode.commands.tools import REHEARSE_HELP
from p2pnode.commands.types import EXIT_CODES
from p2pnode.errors import RehearsalError, UsageError
from p2pnode.protocol.recover import Repair
from p2pnode.rehearse.campaign import Tally
from p2pnode.rehearse.faults import ALL, Kind


def run(*arguments: str) -> int:
    return main(["rehearse", *arguments])


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was lost is asked for again."""
    monkeypatch.setattr(Repair, "settle", lambda self: None)


def test_summary_names_seeds_faults_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "12", "--first-seed", "5", "--nodes", "3") == 0
    out = capsys.readouterr().out
    assert "12 seeds (5 to 16)" in out
    assert "0 failures" in out
    assert "faults that took effect: " in out


def test_the_number_of_processes_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for jobs in ("1", "2"):
        assert run("--seeds", "9", "--jobs", jobs) == 0
        said.append([line for line in capsys.readouterr().out.splitlines() if " of 9 " not in line])
    assert said[0][1:] == said[1][1:]
    assert said[0][0].split(" events in ")[0] == said[1][0].split(" events in ")[0]


def test_an_interrupted_campaign_still_tells_what_it_did(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = rehearse_command.campaign

    def interrupted(*arguments: Any) -> Iterator[Tally]:
        for tally in real(*arguments):
            if tally.seeds == 3:
                raise KeyboardInterrupt
            yield tally

    monkeypatch.setattr(rehearse_command, "campaign", interrupted)
    assert run("--seeds", "9") == 130
    assert "3 seeds (0 to 2)" in capsys.readouterr().out


def test_every_failing_seed_prints_a_command_that_fails_too(
    broken: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--seeds", "12", "--nodes", "3", "--faults", "crash,partition,flap") == 20
    captured = capsys.readouterr()
    assert "broke the promise" in captured.err
    lines = [line for line in captured.out.splitlines() if "replay: " in line]
    failed = [line for line in captured.out.splitlines() if " FAILED: " in line]
    assert len(lines) == len(failed) > 0
    command = shlex.split(lines[0].split("replay: ")[1])
    assert command[:4] == ["python", "-m", "p2pnode", "rehearse"]
    assert main(command[3:]) == 20
    captured = capsys.readouterr()
    assert "<- " in captured.out, "the trace"
    assert "did not finish" in captured.err


def test_one_seed_tells_what_happens_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seed", "3", "--trace", "--only", "none") == 0
    assert "good after" in capsys.readouterr().out


def test_progress_comes_at_intervals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticks = itertools.count(step=0.7)
    monkeypatch.setattr(rehearse_command.time, "monotonic", lambda: next(ticks))
    run("--seeds", "10", "--faults", "none")
    progress = [line for line in capsys.readouterr().out.splitlines() if " of 10 seeds" in line]
    assert len(progress) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("--faults", "crash,earthquake"),
        ("--seeds", "3", "--trace"),
        ("--seed", "3", "--only", "99"),
        ("--seed", "3", "--only", "x"),
        ("--nodes", "99"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == UsageError.exit_code
    assert capsys.readouterr().err.startswith("error: ")


def test_the_help_names_every_fault_and_the_exit_code() -> None:
    words = REHEARSE_HELP.replace(",", " ").replace("(", " ").split()
    assert all(kind.value in words for kind in ALL)
    assert f"{RehearsalError.exit_code}   a rehearsed run" in EXIT_CODES


def test_the_replay_line_repeats_what_was_asked_for() -> None:
    every = Options(0, 10, None, ALL)
    assert every.replay(7) == "python -m p2pnode rehearse --seed 7 --trace"
    some = Options(0, 10, 4, (Kind.CRASH, Kind.STOP))
    assert some.replay(7, (1, 2)) == (
        "python -m p2pnode rehearse --seed 7 --nodes 4 --faults crash,stop --only 1,2 --trace"
    )
    assert Options(0, 1, None, ()).replay(7, ()).endswith("--faults none --only none --trace")


def test_a_run_that_is_good_returns_zero() -> None:
    said: list[object] = []
    assert rehearse(Options(0, 1, 2, ()), said.append) == 0
    assert "1 seeds (0 to 0)" in str(said[0])
