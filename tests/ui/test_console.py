"""Consoles: lines, JSON, the prompt, the log; readers that go away and disks that fill up."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from p2pnode.ui.console import (
    EventLog,
    JsonConsole,
    PlainConsole,
    PromptConsole,
    StepThrottle,
    open_console,
)
from p2pnode.ui.events import Computing, Event, Info, Knock, Warn, to_json
from tests.net.fakes import until
from tests.ui.examples import EXAMPLES, STEP
from tests.ui.hostile import HOSTILE, unsafe


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def step(number: int, of: int = 100) -> Event:
    return msgspec.structs.replace(STEP, step=number, steps=of)


def closed_pipe() -> io.TextIOWrapper:
    """A stream whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(writer, "w")))


# Steps


def test_steps_are_shown_once_a_second_and_at_the_end() -> None:
    clock = Clock()
    throttle = StepThrottle(clock)
    assert not throttle.hides(step(1))
    clock.now += 0.5
    assert throttle.hides(step(2))
    assert not throttle.hides(Info(text="always"))
    clock.now += 0.5
    assert not throttle.hides(step(3))
    assert throttle.hides(step(4))
    assert not throttle.hides(step(100))


# Lines and JSON


def test_plain_lines() -> None:
    out = io.StringIO()
    console = PlainConsole(Clock(), out)
    for number in range(1, 4):
        console.show(step(number))
    console.show(Computing(step=1, slots=2))
    console.show(Warn(text="careful"))
    assert [line[:10] for line in out.getvalue().splitlines()] == ["step 1/100", "warning: c"]


def test_a_question_without_a_terminal_says_what_to_do() -> None:
    out = io.StringIO()
    console = PlainConsole(Clock(), out)
    console.ask("Let bob\x1b[2J (aaaa-bbbb) in?")
    console.ask(None)
    (line,) = out.getvalue().splitlines()
    assert line.startswith("Let bob\\x1b[2J (aaaa-bbbb) in?")
    assert "--approve all" in line


def test_json_lines() -> None:
    out = io.StringIO()
    console = JsonConsole(out)
    for event, _ in EXAMPLES:
        console.show(event)
    console.ask("Let bob in?")
    lines = out.getvalue().splitlines()
    assert lines == [to_json(event) for event, _ in EXAMPLES]


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_hostile_words_in_json_stay_on_one_line(hostile: str) -> None:
    line = to_json(Info(text=hostile))
    assert not any(ord(char) < 0x20 for char in line)


@pytest.mark.parametrize(
    "console", [JsonConsole(io.StringIO()), PlainConsole(Clock(), io.StringIO())]
)
async def test_nothing_is_typed_where_nothing_can_be(console: Any) -> None:
    await asyncio.wait_for(console.run(pytest.fail), 5)


def test_the_console_fits_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.stdout", io.TextIOWrapper(io.BufferedWriter(io.FileIO(os.devnull, "w")))
    )
    with open_console(True, Clock()) as console:
        assert isinstance(console, JsonConsole)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with open_console(False, Clock()) as console:
        assert isinstance(console, PlainConsole)


@pytest.mark.parametrize("json_events", [True, False])
def test_a_reader_that_went_away_is_no_error(
    json_events: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = closed_pipe()
    with pytest.raises(BrokenPipeError):
        out.buffer.raw.write(b"x")
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with open_console(json_events, Clock()) as console:
        for _ in range(3):
            console.show(Info(text="anybody there?"))
            console.ask("Let bob in?")


# The log


def test_the_log_has_every_event_with_its_time(tmp_path: Path) -> None:
    clock, out = Clock(), io.StringIO()
    path = tmp_path / "new" / "events.jsonl"
    log = EventLog(JsonConsole(out), path, clock)
    for event, _ in EXAMPLES:
        log.show(event)
        clock.now += 0.5
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line.pop("t") for line in lines] == [0.5 * n for n in range(len(EXAMPLES))]
    assert lines == [json.loads(line) for line in out.getvalue().splitlines()]
    EventLog(JsonConsole(out), path, clock).show(Info(text="again"))
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(EXAMPLES) + 1


def test_the_log_is_for_its_owner(tmp_path: Path) -> None:
    """A host's log holds the room code."""
    EventLog(JsonConsole(io.StringIO()), tmp_path / "events.jsonl", Clock())
    assert stat.S_IMODE((tmp_path / "events.jsonl").stat().st_mode) == 0o600


def test_a_log_that_cannot_be_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = io.StringIO()
    log = EventLog(PlainConsole(Clock(), out), tmp_path / "file" / "events.jsonl", Clock())
    log.show(Info(text="on it goes"))
    warning, line = out.getvalue().splitlines()
    assert "No event log" in warning
    assert line == "on it goes"


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_ends_the_log_and_nothing_else(tmp_path: Path) -> None:
    out = io.StringIO()
    log = EventLog(PlainConsole(Clock(), out), tmp_path / "events.jsonl", Clock())
    log._file = FullDisk()
    for number in range(3):
        log.show(Info(text=f"line {number}"))
    assert out.getvalue().splitlines() == [
        "warning: The event log ends here: No space left on device.",
        "line 0",
        "line 1",
        "line 2",
    ]


def test_the_log_passes_questions_on(tmp_path: Path) -> None:
    out = io.StringIO()
    EventLog(PlainConsole(Clock(), out), tmp_path / "e.jsonl", Clock()).ask("Let bob in?")
    assert out.getvalue().startswith("Let bob in?")


# The prompt


class Prompt:
    """A prompt with a keyboard in memory, and the lines it delivered."""

    def __init__(self, keyboard: PipeInput) -> None:
        self.keyboard = keyboard
        self.console = PromptConsole(Clock())
        self.lines: list[str] = []
        self.on_line: Callable[[str], None] = lambda line: None

    def deliver(self, line: str) -> None:
        self.lines.append(line)
        self.on_line(line)

    @property
    def buffer(self) -> str:
        return self.console._session.default_buffer.text

    @property
    def running(self) -> bool:
        return self.console._session.app.is_running

    async def types(self, keys: str) -> None:
        """Send keys that end no line, and wait until they stand there."""
        before = self.buffer
        self.keyboard.send_text(keys)
        await until(lambda: self.buffer == before + keys)

    async def gets(self, *lines: str) -> None:
        await until(lambda: self.lines == list(lines))
        await until(lambda: self.running)


@asynccontextmanager
async def prompt() -> AsyncIterator[Prompt]:
    with create_pipe_input() as keyboard, create_app_session(keyboard, DummyOutput()):
        made = Prompt(keyboard)
        task = asyncio.create_task(made.console.run(made.deliver))
        await until(lambda: made.running)
        yield made
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_lines_are_delivered() -> None:
    async with prompt() as p:
        p.keyboard.send_text("peers\r")
        await p.gets("peers")
        p.keyboard.send_text("start\r")
        await p.gets("peers", "start")


async def test_the_question_is_in_the_prompt() -> None:
    async with prompt() as p:
        assert p.console._message() == "p2pnode> "
        p.console.ask("Let bob in?")
        assert p.console._message() == "Let bob in? [y]es [n]o [l]ater [b]lock: "
        p.keyboard.send_text("y\r")
        await p.gets("y")


async def test_what_is_half_typed_goes_when_the_question_changes() -> None:
    async with prompt() as p:
        p.console.ask("Let bob in?")
        await p.types("y")
        p.console.ask("Let mallory in?")
        assert p.buffer == ""
        p.keyboard.send_text("\r")
        await p.gets("")


async def test_what_is_half_typed_stays_while_the_question_does() -> None:
    async with prompt() as p:
        p.console.ask("Let bob in?")
        await p.types("ye")
        p.console.ask("Let bob in?")
        assert p.buffer == "ye"
        p.keyboard.send_text("s\r")
        await p.gets("yes")


async def test_an_answer_does_not_go_to_a_question_that_came_just_then() -> None:
    """Enter was pressed, the line is on its way, and the machine it was about goes away."""
    async with prompt() as p:
        p.console.ask("Let bob in?")
        entered = p.console._on_enter
        buffer = p.console._session.default_buffer

        def on_enter(buffer: Any) -> bool:
            kept = entered(buffer)
            p.console.ask("Let mallory in?")
            return kept

        buffer.accept_handler = on_enter
        p.keyboard.send_text("y\r")
        await until(lambda: p.console._answered == "Let bob in?")
        buffer.accept_handler = entered
        await until(lambda: p.running)
        p.keyboard.send_text("n\r")
        await p.gets("n")


async def test_keys_typed_ahead_do_not_answer_the_next_question() -> None:
    async with prompt() as p:
        p.console.ask("Let bob in?")
        p.on_line = lambda line: p.console.ask("Let mallory in?")
        p.keyboard.send_text("y\ry\r")
        await p.gets("y")
        await asyncio.sleep(0.05)
        assert p.lines == ["y"]
        p.on_line = lambda line: None
        p.keyboard.send_text("n\r")
        await p.gets("y", "n")


@pytest.mark.parametrize("key", ["\x04", "\x03"], ids=["Ctrl-D", "Ctrl-C"])
async def test_keys_that_leave(key: str) -> None:
    async with prompt() as p:
        p.keyboard.send_text(key)
        await until(lambda: p.lines == ["quit"])


async def test_a_keyboard_that_is_gone_leaves_too() -> None:
    async with prompt() as p:
        p.keyboard.close()
        await until(lambda: p.lines == ["quit"])


async def test_events_scroll_above_and_steps_stand_below(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with prompt() as p:
        assert "help" in p.console._toolbar()
        p.console.show(step(1))
        p.console.show(step(2))
        assert p.console._toolbar().startswith("step 2/100  loss 2.3457")
        p.console.show(msgspec.structs.replace(step(3), nodes=2))
        assert p.console._toolbar().endswith(" 2 nodes")
        p.console.show(msgspec.structs.replace(step(4), nodes=1))
        assert p.console._toolbar().endswith(" 1 node")
    with create_pipe_input() as keyboard, create_app_session(keyboard, DummyOutput()):
        console = PromptConsole(Clock())
        for hostile in HOSTILE:
            console.show(Knock(peer="aaaa-bbbb", name=hostile))
        console.show(Computing(step=1, slots=2))
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if "asks to join" in line]
    assert len(shown) == len(lines) == len(HOSTILE)
    assert unsafe("".join(shown)) == []
