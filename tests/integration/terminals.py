"""Nodes and servers in real terminals."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pexpect

from tests.integration.commands import CODE, ROOT

SECONDS = 240


class Terminal:
    """A process in a pseudo-terminal that is read all the time, as a real one is."""

    def __init__(
        self,
        *arguments: str,
        program: tuple[str, ...] = ("-m",),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.child = pexpect.spawn(
            sys.executable,
            [*program, *arguments],
            cwd=str(ROOT),
            env=os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"} | dict(env or {}),
            encoding="utf-8",
            dimensions=(40, 160),
        )
        self._text = ""
        self._seen = 0
        self._over = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._over:
            try:
                text = self.child.read_nonblocking(4096, timeout=None)
            except (pexpect.EOF, OSError, ValueError):
                text, self._over = "", True
            with self._changed:
                self._text += text
                self._changed.notify_all()

    def sees(self, pattern: str) -> str:
        """Wait for the pattern after what was seen before; returns what matched."""
        deadline = time.monotonic() + SECONDS
        with self._changed:
            while not (match := re.compile(pattern).search(self._text, self._seen)):
                left = deadline - time.monotonic()
                assert left > 0, f"no {pattern!r} in:\n{self._text[-3000:]}"
                assert not self._over, f"ended without {pattern!r}:\n{self._text[-3000:]}"
                self._changed.wait(left)
            self._seen = match.end()
            return match.group(0)

    def types(self, line: str) -> None:
        self.child.send(line + "\r")

    def ends(self) -> int:
        """Exit code, once everything it printed was read."""
        self._reader.join(SECONDS)
        assert self._over, f"still running; it said:\n{self._text[-3000:]}"
        self.child.wait()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -1)

    def close(self) -> None:
        """Kill it. pexpect's own way allows a busy machine a tenth of a second to end it."""
        self.child.kill(signal.SIGKILL)
        self._reader.join(SECONDS)
        self.child.wait()
        self.child.close()


class Room:
    """A signaling server and nodes that join its one room, each in a terminal."""

    def __init__(self, terminals: list[Terminal], folder: Path, code: str = CODE) -> None:
        self._code = code
        self._terminals = terminals
        self._folder = folder
        self.server = self._start("signaling", "serve", "--host", "127.0.0.1", "--port", "0")
        self._url = self.server.sees(r"http://127\.0\.0\.1:\d+")

    def join(self, name: str, *more: str) -> Terminal:
        return self._start(
            *("p2pnode", "join", "--signal", self._url, "--room", self._code, "--name", name),
            *("--home", str(self._folder / name), "--out", str(self._folder / f"{name}-out")),
            *more,
        )

    def _start(self, *arguments: str) -> Terminal:
        terminal = Terminal(*arguments)
        self._terminals.append(terminal)
        return terminal
