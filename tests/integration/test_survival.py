"""Real processes that are killed, frozen, cut off: the answer is the undisturbed one.

Every run here must end at all surviving nodes with the hash of one node that nobody disturbed.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.integration.commands import STEPS, Demo
from tests.integration.processes import Node, Pace, Server, free_port

FROZEN = 12.0
"""Seconds; longer than the silence after which a peer is dropped."""


@pytest.fixture
def answer(undisturbed: Demo) -> str:
    """The hash of the undisturbed run."""
    return undisturbed.hashes["node-1"]


@pytest.fixture
def pace(tmp_path: Path) -> Pace:
    return Pace(tmp_path)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(free_port()) as process:
        yield process


@contextlib.asynccontextmanager
async def nodes(
    server: Server,
    folder: Path,
    count: int,
    *,
    steps: int = STEPS,
    approve: str = "all",
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[list[Node]]:
    """Nodes a, b, … that start a run when all are there; the first is the host."""
    run = ("--preset", "nano", "--steps", str(steps), "--start-when", str(count))
    async with contextlib.AsyncExitStack() as stack:
        host = Node(server.url, folder, "a", *run, env=env, approve=approve)
        started = [await stack.enter_async_context(host)]
        await host.until("invite")
        for name in "bcdef"[: count - 1]:
            guest = Node(server.url, folder, name, "--guest", env=env)
            started.append(await stack.enter_async_context(guest))
        yield started


async def hashes(*survivors: Node) -> set[str]:
    """Of all survivors at their ends, each of which must be a success."""
    ends = await asyncio.gather(*(node.until("finished") for node in survivors))
    assert [await node.end() for node in survivors] == [0] * len(survivors)
    return {end["hash"] for end in ends}


async def test_a_killed_member_comes_back_without_a_question(
    server: Server, answer: str, pace: Pace, tmp_path: Path
) -> None:
    """The host asks for each machine and nobody answers: only what was saved lets it in."""
    async with nodes(server, tmp_path, 2, steps=1) as first:
        await hashes(*first)
    async with nodes(server, tmp_path, 2, approve="ask", env=pace.env) as (host, guest):
        await guest.until("step", step=3)
        await guest.kill()
        async with Node(server.url, tmp_path, "b", "--guest", env=pace.env) as again:
            await again.until("computing")
            pace.hurry()
            assert await hashes(host, again) == {answer}
        assert not host.events("knock")


@pytest.mark.parametrize("victim", [0, 1], ids=["host", "member"])
async def test_a_frozen_node_is_dropped_and_comes_back_by_itself(
    victim: int, server: Server, answer: str, pace: Pace, tmp_path: Path
) -> None:
    async with nodes(server, tmp_path, 2, env=pace.env) as both:
        frozen, other = both[victim], both[1 - victim]
        await frozen.until("step", step=3)
        frozen.send(signal.SIGSTOP)
        await other.until("left")
        frozen.send(signal.SIGCONT)
        await other.until("joined")
        at = (await other.until("step"))["step"]
        await frozen.until("step", step=at + 2)
        pace.hurry()
        assert await hashes(*both) == {answer}


async def test_everybody_asleep_at_once(server: Server, answer: str, tmp_path: Path) -> None:
    """As when all nodes run on one laptop that sleeps."""
    async with nodes(server, tmp_path, 2) as everyone:
        await everyone[1].until("step", step=10)
        for node in everyone:
            node.send(signal.SIGSTOP)
        await asyncio.sleep(FROZEN)
        for node in everyone:
            node.send(signal.SIGCONT)
        assert await hashes(*everyone) == {answer}


async def test_a_newcomer_after_the_server_was_killed(
    server: Server, answer: str, pace: Pace, tmp_path: Path
) -> None:
    async with (
        nodes(server, tmp_path, 2, env=pace.env) as both,
        contextlib.AsyncExitStack() as stack,
    ):
        await both[0].until("step", step=3)
        await server.kill()
        await both[0].until("warn")
        empty = await stack.enter_async_context(Server(server.port))
        await both[0].until("info", text="The signaling server is back.")
        newcomer = Node(empty.url, tmp_path, "c", "--guest", env=pace.env)
        await stack.enter_async_context(newcomer)
        await newcomer.until("computing")
        pace.hurry()
        assert await hashes(*both, newcomer) == {answer}


async def test_all_but_one_killed(server: Server, answer: str, tmp_path: Path) -> None:
    async with nodes(server, tmp_path, 3) as (host, last, other):
        await last.until("computing", step=10)
        await asyncio.gather(host.kill(), other.kill())
        assert await hashes(last) == {answer}
