"""Watchdog: stalls of the loop and sleep of the machine are seen."""

from __future__ import annotations

import asyncio
import time

import pytest

from p2pnode.net.watchdog import INTERVAL, STALL, Stalls, Watchdog, boot_time


def test_stalls_are_measured_and_counted():
    stalls = Stalls(100.0, 500.0, 7.0)
    now = 100.0
    for late in (0.0, 0.05, 0.3, 0.0, 0.15):
        now += INTERVAL + late
        assert stalls.look(now, now + 400.0, 7.0) == pytest.approx(late)
    assert stalls.worst == pytest.approx(0.3)
    assert stalls.stalls == 2
    assert stalls.suspensions == 0


def test_sleep_of_the_machine_is_told_from_a_stall():
    stalls = Stalls(100.0, 500.0, 7.0)
    stalls.look(100.02, 500.02, 7.0)
    stalls.look(100.04, 3600.0, 7.0)
    stalls.look(100.06, 3600.02, 7.0)
    assert stalls.suspensions == 1
    assert stalls.stalls == 0


def test_own_work_is_told_from_waiting(caplog):
    stalls = Stalls(100.0, 500.0, 7.0)
    stalls.look(100.32, 500.32, 7.25)
    stalls.look(100.84, 500.84, 7.26)
    assert [record.args for record in caplog.records] == [
        (pytest.approx(300), pytest.approx(250)),
        (pytest.approx(500), pytest.approx(10)),
    ]


def test_the_boot_clock_is_not_behind_the_monotonic_one():
    assert boot_time() >= time.monotonic() - 1.0


async def test_a_blocked_loop_is_reported():
    watchdog = Watchdog()
    await asyncio.sleep(2 * INTERVAL)
    time.sleep(3 * STALL)  # noqa: ASYNC251
    await asyncio.sleep(2 * INTERVAL)
    report = watchdog.report()
    await watchdog.close()
    assert report.stalls >= 1
    assert report.worst >= STALL
