"""Real processes on machines that sleep: a laptop's lid is closed and opened again.

Sleep is faked by SIGSTOP and a clock that leaves out the time for which the process was stopped:
as on Linux, time stands still on the monotonic clock while a machine sleeps, and goes on on the
boot clock.
"""

import asyncio
import contextlib
import signal
from pathlib import Path

from tests.integration.commands import STEPS, Demo
from tests.integration.processes import Node, Pace, Process, Server, free_port

ASLEEP = 10.0
"""Seconds; longer than the silence after which a peer is dropped."""

# The loop looks at the clock many times a second; what it did not see, it slept through.
_SLEEPER = f"""
import threading, time

real, slept, seen = time.monotonic, 0.0, time.monotonic()
reading = threading.Lock()

def monotonic():
    global slept, seen
    with reading:
        now = real()
        if now - seen > {ASLEEP / 2}:
            slept += now - seen
        seen = now
        return now - slept

time.monotonic = monotonic
"""


async def sleep(*processes: Process) -> None:
    for process in processes:
        process.send(signal.SIGSTOP)
    await asyncio.sleep(ASLEEP)
    for process in processes:
        process.send(signal.SIGCONT)


async def test_a_laptop_sleeps_and_then_all_machines_at_once(
    undisturbed: Demo, tmp_path: Path
) -> None:
    pace = Pace(tmp_path, _SLEEPER)
    run = ("--preset", "nano", "--steps", str(STEPS), "--start-when", "2")
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(free_port(), env=pace.env))
        host = Node(server.url, tmp_path, "a", *run, env=pace.env)
        desktop = await stack.enter_async_context(host)
        await desktop.until("invite")
        guest = Node(server.url, tmp_path, "b", "--guest", env=pace.env)
        laptop = await stack.enter_async_context(guest)
        await laptop.until("step", step=3)
        await sleep(laptop)
        away = await desktop.until("left")
        assert "nothing heard" in away["reason"]
        await asyncio.gather(desktop.until("joined"), laptop.until("joined"))

        # The house has one machine for all, or they sleep by the clock. Nobody has dropped
        # anybody, but whoever wakes up first knows that links do not last that long.
        await sleep(server, desktop, laptop)
        await asyncio.gather(desktop.until("joined"), laptop.until("joined"))
        left = desktop.events("left")[1:] + laptop.events("left")[1:]
        assert any(event["reason"].startswith("this machine slept") for event in left)
        pace.hurry()
        ends = await asyncio.gather(desktop.until("finished"), laptop.until("finished"))
        assert {end["hash"] for end in ends} == {undisturbed.hashes["node-1"]}
        assert [await desktop.end(), await laptop.end()] == [0, 0]
