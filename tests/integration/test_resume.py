"""A run that was stopped, killed or ordered to end goes on to the bits of the unbroken run."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from p2pnode.train.checkpoint import CheckpointFolder
from p2pnode.train.ledger_lines import read_lines, the_ledger
from signaling.app import SignalingServer
from tests.integration.commands import STEPS, Demo
from tests.integration.processes import Node, Pace


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
        await node.until("step", step=7)
        node.send(number)
        assert await node.end() == (0 if number == signal.SIGTERM else -number)
    saved = await asyncio.to_thread(os.listdir, tmp_path / "a")
    assert any("step-00000005" in name for name in saved)
    async with Node(server, tmp_path, "a", "--start-when", "2", "--resume", "auto") as host:
        await host.until("invite")
        async with Node(server, tmp_path, "b", "--guest") as guest:
            begun = await host.until("runstarted")
            assert begun["first_step"] >= 5
            ends = await asyncio.gather(host.until("finished"), guest.until("finished"))
    assert {end["hash"] for end in ends} == set(undisturbed.hashes.values())
    assert undisturbed.holds(end["checkpoint"] for end in ends)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_a_signal_leaves_and_saves(number: int, server: str, tmp_path: Path) -> None:
    """Ctrl-C, and a terminal that is closed; what is resumed from is a folder."""
    async with Node(server, tmp_path, "a", "--start-when", "1", *RUN) as node:
        await node.until("step", step=2)
        node.send(number)
        assert await node.end() == 0
    found = CheckpointFolder(tmp_path / "a").newest()
    assert found is not None
    state = found[1]
    lines = [line.entry for line, _ in read_lines(the_ledger(tmp_path / "a"))]
    assert 2 <= state.step == len(lines)
    assert lines[-1].state == state.hash().hex()
    found[0].with_name(found[0].name.replace("step-0", "step-9")).write_bytes(b"half")
    elsewhere = ("--out", str(tmp_path / "new"), "--resume", str(tmp_path / "a"))
    async with Node(server, tmp_path, "a", "--start-when", "1", *elsewhere) as node:
        damaged = await node.until("warn")
        assert "is damaged and is left aside" in damaged["text"]
        assert (await node.until("runstarted"))["first_step"] == state.step


async def test_everybody_leaves_and_everybody_comes_back(
    server: str, undisturbed: Demo, tmp_path: Path
) -> None:
    async with Node(server, tmp_path, "a", "--start-when", "2", *RUN) as host:
        await host.until("invite")
        async with Node(server, tmp_path, "b", "--guest") as guest:
            await host.until("step", step=7)
            await asyncio.gather(host.kill(), guest.kill())
    async with Node(server, tmp_path, "a", "--start-when", "2", "--resume", "auto") as host:
        await host.until("invite")
        async with Node(server, tmp_path, "b", "--guest") as guest:
            finished = await asyncio.gather(host.until("finished"), guest.until("finished"))
    assert {end["hash"] for end in finished} == set(undisturbed.hashes.values())


async def test_a_restarted_host_returns_to_its_run(
    server: str, undisturbed: Demo, tmp_path: Path
) -> None:
    """Whatever options it is started with: the others tell it what they train."""
    pace = Pace(tmp_path)
    run = ("--start-when", "2", *RUN)
    other = ("--start-when", "2", "--preset", "nano", "--steps", "7", "--seed", "5")
    async with Node(server, tmp_path, "a", *run, env=pace.env) as first:
        await first.until("invite")
        async with Node(server, tmp_path, "b", "--guest", env=pace.env) as guest:
            await first.until("step", step=3)
            await first.kill()
            async with Node(server, tmp_path, "a", *other, env=pace.env) as host:
                await host.until("computing")
                pace.hurry()
                ends = await asyncio.gather(host.until("finished"), guest.until("finished"))
    assert {end["hash"] for end in ends} == set(undisturbed.hashes.values())
