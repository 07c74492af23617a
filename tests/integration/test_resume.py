"""A run that was stopped, killed or ordered to end goes on to the bits of the unbroken run."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from signaling.app import SignalingServer
from tests.integration.conftest import ROOT, SECONDS, STEPS, Demo

CODE = "a-room-code-of-our-own-93417562-long-enough"


class Node:
    """One `join` process, read through its JSON events."""

    def __init__(self, server: str, folder: Path, name: str, *more: str) -> None:
        self._arguments = [
            *("join", "--signal", server, "--name", name, "--approve", "all", "--json-events"),
            *("--home", str(folder / f"{name}-key"), "--out", str(folder / name), *more),
        ]

    async def __aenter__(self) -> "Node":
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "p2pnode", *self._arguments),
            cwd=ROOT,
            env=os.environ | {"P2PNODE_ROOM": CODE},
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def until(self, kind: str, **fields: object) -> dict[str, Any]:
        """The next event of this kind with these fields."""

        async def read() -> dict[str, Any]:
            assert self._process.stdout is not None
            async for line in self._process.stdout:
                event: dict[str, Any] = json.loads(line)
                if event["event"] == kind and fields.items() <= event.items():
                    return event
            raise AssertionError(f"the node ended before {kind} {fields}")

        return await asyncio.wait_for(read(), SECONDS)

    async def end(self, number: int | None = None) -> int:
        """Send a signal, if one is given, and wait for the exit code."""
        if number is not None:
            self._process.send_signal(number)
        assert self._process.stdout is not None
        await self._process.stdout.read()
        return await self._process.wait()


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async with SignalingServer("127.0.0.1", 0) as running:
        yield running.url


RUN = ("--preset", "nano", "--steps", str(STEPS), "--checkpoint-every", "5")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_resume_gives_the_unbroken_bits(
    number: int, server: str, undisturbed: Demo, tmp_path: Path
) -> None:
    async with Node(server, tmp_path, "a", "--start-when", "1", *RUN) as node:
        await node.until("step", step=32)
        assert await node.end(number) == (0 if number == signal.SIGTERM else -number)
    saved = await asyncio.to_thread(os.listdir, tmp_path / "a")
    assert any("step-00000030" in name for name in saved)
    async with Node(server, tmp_path, "a", "--start-when", "2", "--resume", "auto") as host:
        await host.until("invite")
        async with Node(server, tmp_path, "b", "--guest") as guest:
            begun = await host.until("runstarted")
            assert begun["first_step"] >= 30
            ends = await asyncio.gather(host.until("finished"), guest.until("finished"))
    assert {end["hash"] for end in ends} == set(undisturbed.hashes.values())
    assert undisturbed.holds(end["checkpoint"] for end in ends)


async def test_everybody_leaves_and_everybody_comes_back(
    server: str, undisturbed: Demo, tmp_path: Path
) -> None:
    killed = -signal.SIGKILL
    async with Node(server, tmp_path, "a", "--start-when", "2", *RUN) as host:
        await host.until("invite")
        async with Node(server, tmp_path, "b", "--guest") as guest:
            await host.until("step", step=32)
            ends = await asyncio.gather(host.end(signal.SIGKILL), guest.end(signal.SIGKILL))
            assert ends == [killed, killed]
    async with Node(server, tmp_path, "a", "--start-when", "2", "--resume", "auto") as host:
        await host.until("invite")
        async with Node(server, tmp_path, "b", "--guest") as guest:
            finished = await asyncio.gather(host.until("finished"), guest.until("finished"))
    assert {end["hash"] for end in finished} == set(undisturbed.hashes.values())


async def test_a_restarted_host_returns_to_its_run(
    server: str, undisturbed: Demo, tmp_path: Path
) -> None:
    """Whatever options it is started with: the others tell it what they train."""
    async with Node(server, tmp_path, "a", "--start-when", "2", *RUN) as first:
        await first.until("invite")
        async with Node(server, tmp_path, "b", "--guest") as guest:
            await first.until("step", step=10)
            await first.end(signal.SIGKILL)
            other = ("--preset", "nano", "--steps", "7", "--seed", "5")
            async with Node(server, tmp_path, "a", "--start-when", "2", *other) as host:
                ends = await asyncio.gather(host.until("finished"), guest.until("finished"))
    assert {end["hash"] for end in ends} == set(undisturbed.hashes.values())
