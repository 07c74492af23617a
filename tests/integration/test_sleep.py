"""Real processes on machines that sleep: a laptop's lid is closed and opened again.

Sleep is faked by SIGSTOP and a jump of one clock: as on Linux, time stands still on the monotonic
clock while a machine sleeps, and goes on on the boot clock.
"""

import asyncio
import contextlib
import signal
from pathlib import Path

from tests.integration.conftest import STEPS, Demo
from tests.integration.processes import Node, Pace, Process, Server, free_port

ASLEEP = 10.0
"""Seconds; longer than the silence after which a peer is dropped."""

_SLEEPER = f"""
import signal, time

real, slept = time.monotonic, 0.0

def wake(*_):
    global slept
    slept += {ASLEEP}

signal.signal(signal.SIGCONT, wake)
time.monotonic = lambda: real() - slept
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
        assert f"this machine slept for {ASLEEP:.0f} s" in {event["reason"] for event in left}
        pace.hurry()
        ends = await asyncio.gather(desktop.until("finished"), laptop.until("finished"))
        assert {end["hash"] for end in ends} == {undisturbed.hashes["node-1"]}
        assert [await desktop.end(), await laptop.end()] == [0, 0]
