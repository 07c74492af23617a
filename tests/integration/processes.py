"""Node and server processes that a test starts, watches, freezes and kills."""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.integration.commands import CODE, ROOT

SECONDS = 240.0
"""Far more than any wait takes here, on a busy machine too; a hang fails."""


class Process:
    """A child whose lines on standard output are read all the time."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        """within: a command that runs it elsewhere, as `ip netns exec NAME`."""
        self._arguments = arguments
        self._within = within
        self._env = env or {}
        self.lines: list[str] = []
        self._news = asyncio.Event()
        self._seen = 0
        self._over = False

    async def __aenter__(self) -> "Process":
        self._process = await asyncio.create_subprocess_exec(
            *(*self._within, sys.executable, "-m", *self._arguments),
            cwd=ROOT,
            env=os.environ | self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.kill()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(line.decode())
            self._news.set()
        self._over = True
        self._news.set()

    async def next_line(self) -> str:
        """The next line not yet looked at; EOFError after the last."""
        while self._seen == len(self.lines):
            if self._over:
                raise EOFError
            self._news.clear()
            await self._news.wait()
        self._seen += 1
        return self.lines[self._seen - 1]

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL, which ends a frozen process too."""
        self.send(signal.SIGKILL)
        await self.end()

    async def end(self) -> int:
        """Exit code, once the process has ended and everything it said was read."""
        await self._reader
        return await self._process.wait()


class Node(Process):
    """One `join` process."""

    def __init__(
        self,
        server: str,
        folder: Path,
        name: str,
        *more: str,
        env: Mapping[str, str] | None = None,
        approve: str = "all",
        within: Sequence[str] = (),
    ) -> None:
        """Two nodes of one folder and name are one machine, started twice."""
        self.name = name
        super().__init__(
            *("p2pnode", "join", "--signal", server, "--name", name, "--approve", approve),
            *("--home", str(folder / f"{name}-key"), "--out", str(folder / name)),
            *("--json-events", *more),
            env={"P2PNODE_ROOM": CODE} | dict(env or {}),
            within=within,
        )

    async def __aenter__(self) -> "Node":
        await super().__aenter__()
        return self

    async def until(self, kind: str, **fields: object) -> dict[str, Any]:
        """The next event of this kind with these fields."""
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    event: dict[str, Any] = json.loads(await self.next_line())
                    if event["event"] == kind and fields.items() <= event.items():
                        return event
        except (EOFError, TimeoutError) as error:
            said = "".join(self.lines[-20:])
            raise AssertionError(
                f"{self.name}: no {kind} {fields}, {error!r}; it said:\n{said}"
            ) from None

    def events(self, kind: str) -> list[dict[str, Any]]:
        """All events of this kind so far."""
        return [event for line in self.lines if (event := json.loads(line))["event"] == kind]


class Server(Process):
    """A signaling server process on a port of its own; restarted, it has forgotten everything."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        more: Sequence[str] = (),
    ) -> None:
        self.port = port
        self.url = f"http://{host}:{port}"
        command = ("signaling", "serve", "--host", host, "--port", str(port))
        super().__init__(*command, *more, within=within, env=env)

    async def __aenter__(self) -> "Server":
        await super().__aenter__()
        async with asyncio.timeout(SECONDS):
            while self.url not in await self.next_line():
                pass
        return self


def hooked(folder: Path, source: str, **more: str) -> dict[str, str]:
    """Environment of a process that first runs this source, with `more` variables."""
    hook = folder / f"hook-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(source)
    return {"PYTHONPATH": f"{hook}{os.pathsep}{ROOT}", **more}


_UNHURRIED = """
import pathlib, os, sys, time
from p2pnode.train import trainer

right = trainer.slot_gradient
hurry = pathlib.Path(os.environ["TEST_HURRY"])

def unhurried(*operands):
    if os.environ["TEST_LATECOMER"] in sys.argv:
        hurry.touch()
    if not hurry.exists():
        time.sleep(0.1)
    return right(*operands)

trainer.slot_gradient = unhurried
"""


class Pace:
    """Nodes started in `env` compute slowly until they are told to hurry, or the late-comer of
    this name computes too: a run lasts for as long as a test needs, on any machine."""

    def __init__(self, folder: Path, source: str = "", latecomer: str = "-") -> None:
        """source: what they run before anything else."""
        self._flag = folder / "hurry"
        self.env = hooked(
            folder, source + _UNHURRIED, TEST_HURRY=str(self._flag), TEST_LATECOMER=latecomer
        )

    def hurry(self) -> None:
        self._flag.touch()


def free_port() -> int:
    """A TCP port that nobody uses at the moment, and that nobody is given who asks for any."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(16_000, 32_000)))
            return int(probe.getsockname()[1])
