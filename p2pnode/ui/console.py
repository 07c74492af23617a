"""Where events go and commands come from: a terminal with a prompt, plain lines, or JSON lines.

May import: ui.events, ui.printer, protocol.text.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from p2pnode.protocol.text import visible
from p2pnode.ui.events import Event, Step, Warn, sentence, to_json
from p2pnode.ui.printer import Printer, writer

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer


class Console(Protocol):
    """Shows events; may deliver typed lines."""

    @property
    def can_type(self) -> bool:
        """Whether an owner can answer and type commands here."""

    def show(self, event: Event) -> None:
        """Show one event now. Called from the event loop; must not block."""

    def ask(self, question: str | None) -> None:
        """Make `question` the prompt (None: the ordinary one). What was half typed is discarded,
        so that an answer can never go to a question its writer has not read."""

    async def run(self, on_line: Callable[[str], None]) -> None:
        """Deliver typed lines until cancelled; returns at once where nothing can be typed."""


class JsonConsole:
    """Every event as one line of JSON, for programs."""

    can_type = False

    def __init__(self, out: TextIO | Printer) -> None:
        self._out = out

    def show(self, event: Event) -> None:
        print(to_json(event), file=self._out, flush=True)

    def ask(self, question: str | None) -> None:
        """Nothing can be asked here."""

    async def run(self, on_line: Callable[[str], None]) -> None:
        """Nothing can be typed here."""


class PlainConsole:
    """Sentences, one a line, for pipes and log files; steps at most once a second."""

    can_type = False

    def __init__(self, clock: Callable[[], float], out: TextIO | Printer) -> None:
        self._out = out
        self._steps = StepThrottle(clock)

    def show(self, event: Event) -> None:
        if self._steps.hides(event):
            return
        text = sentence(event)
        if text is not None:
            self._print(text)

    def ask(self, question: str | None) -> None:
        if question is not None:
            advice = "(no terminal here: use --approve all, or run me in one)"
            self._print(f"{visible(question)} {advice}")

    async def run(self, on_line: Callable[[str], None]) -> None:
        """Nothing can be typed here."""

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


class StepThrottle:
    """Lets a step line through once a second, and the first and last always."""

    def __init__(self, clock: Callable[[], float], interval: float = 1.0) -> None:
        self._clock = clock
        self._interval = interval
        self._last = float("-inf")

    def hides(self, event: Event) -> bool:
        if not isinstance(event, Step):
            return False
        now = self._clock()
        if now - self._last < self._interval and event.step != event.steps:
            return True
        self._last = now
        return False


class PromptConsole:
    """A prompt at the bottom of a terminal; events scroll above it.

    prompt_toolkit owns the terminal: it reads keys on the event loop without blocking it, and
    `patch_stdout` keeps everything that is printed above the prompt.
    """

    PROMPT = "p2pnode> "
    can_type = True

    def __init__(self, clock: Callable[[], float]) -> None:
        from prompt_toolkit import PromptSession

        self._session: PromptSession[str] = PromptSession(bottom_toolbar=self._toolbar)
        self._steps = StepThrottle(clock)
        self._question: str | None = None
        self._answered: str | None = None
        """The question that stood in the prompt when Enter was pressed."""
        self._accept = self._session.default_buffer.accept_handler
        self._session.default_buffer.accept_handler = self._on_enter
        self._status = ""

    def show(self, event: Event) -> None:
        if isinstance(event, Step):
            nodes = f"{event.nodes} node{'' if event.nodes == 1 else 's'}"
            self._status = (
                f"step {event.step}/{event.steps}  loss {event.loss:.4f}  "
                f"{event.tokens_per_s:,.0f} tokens/s  {nodes}"
            )
            if self._session.app.is_running:
                self._session.app.invalidate()
        if self._steps.hides(event):
            return
        text = sentence(event)
        if text is not None:
            print(text, flush=True)

    def ask(self, question: str | None) -> None:
        if question == self._question:
            return
        self._question = question
        if self._session.app.is_running:
            self._session.default_buffer.reset()
            self._session.app.invalidate()

    async def run(self, on_line: Callable[[str], None]) -> None:
        from prompt_toolkit.input.typeahead import clear_typeahead
        from prompt_toolkit.patch_stdout import patch_stdout

        with patch_stdout(raw=True):
            while True:
                try:
                    line = await self._session.prompt_async(self._message, handle_sigint=False)
                except EOFError:
                    on_line("quit")
                    return
                except KeyboardInterrupt:
                    on_line("quit")
                    return
                if self._answered == self._question:
                    on_line(line)
                if self._question != self._answered:
                    # It changed since Enter was pressed: whatever was typed was not meant for it.
                    clear_typeahead(self._session.input)
                await asyncio.sleep(0)

    def _on_enter(self, buffer: Buffer) -> bool:
        self._answered = self._question
        return self._accept(buffer) if self._accept is not None else False

    def _message(self) -> str:
        return f"{self._question} [y]es [n]o [l]ater [b]lock: " if self._question else self.PROMPT

    def _toolbar(self) -> str:
        return self._status or "help: commands    quit: leave and save"


class EventLog:
    """A console that also appends every event to a file, one JSON object a line.

    Each line begins with `t`, seconds since the node started. A full disk ends the log, not the
    node.
    """

    def __init__(self, inner: Console, path: Path, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._clock = clock
        self._started = clock()
        self._file: TextIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # For the owner's eyes: a host's log holds the room code.
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(handle, "a", encoding="utf-8", buffering=1)
        except OSError as error:
            inner.show(Warn(text=f"No event log: cannot write {path}: {error.strerror}."))

    def show(self, event: Event) -> None:
        if self._file is not None:
            line = f'{{"t":{self._clock() - self._started:.3f},{to_json(event)[1:]}\n'
            try:
                self._file.write(line)
            except OSError as error:
                self._file = None
                self._inner.show(Warn(text=f"The event log ends here: {error.strerror}."))
        self._inner.show(event)

    @property
    def can_type(self) -> bool:
        return self._inner.can_type

    def ask(self, question: str | None) -> None:
        self._inner.ask(question)

    async def run(self, on_line: Callable[[str], None]) -> None:
        await self._inner.run(on_line)


@contextlib.contextmanager
def open_console(json_events: bool, clock: Callable[[], float]) -> Iterator[Console]:
    """The console that fits where we run: JSON if asked for, a prompt on a terminal, else lines.
    A reader of lines or JSON that stops reading holds nobody up."""
    if not json_events and sys.stdin.isatty() and sys.stdout.isatty():
        yield PromptConsole(clock)
        return

    def lost(count: int) -> str:
        event = Warn(text=f"{count:,} lines are missing here: nobody read them in time.")
        return f"{to_json(event) if json_events else sentence(event)}\n"

    with Printer(writer(sys.stdout), lost) as out:
        yield JsonConsole(out) if json_events else PlainConsole(clock, out)
