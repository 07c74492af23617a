"""A machine goes wrong while it trains: a library switches on flush-to-zero, attention gives wrong
tiles. It says so itself, and no other bit reaches the group."""

import contextlib
import platform
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.commands import Demo
from tests.integration.processes import Node, Pace, Server, free_port
from tests.train.test_flush_to_zero import SOURCE

COMPILER = shutil.which("cc")
RUN = ("--preset", "nano", "--steps", "6", "--slots", "4")
STEP = 2
"""So many steps are applied before it goes wrong."""

_LOADER = """
import ctypes, os, pathlib
import numpy
from p2pnode.train import trainer

exact = trainer.slot_gradient

def disturbed(w, state, *rest):
    told = pathlib.Path(os.environ.get("TEST_TOLD", os.devnull))
    if state.step >= int(os.environ["TEST_STEP"]) and not told.exists():
        ctypes.CDLL(os.environ["TEST_LIBRARY"])
        pathlib.Path(os.environ["TEST_HURRY"]).touch()
        half = float((numpy.array([1e-39], "f4") * numpy.float32(0.5))[0])
        told.write_text(f"half of a subnormal: {half}")
        exact(w, state, *rest)
        repairs = w.ops.counts["float_mode_repairs"]
        told.write_text(f"half of a subnormal: {half}; repairs: {repairs}")
    return exact(w, state, *rest)

trainer.slot_gradient = disturbed
"""

_BROKEN_TILES = """
import os
from p2pnode.train import trainer

exact = trainer.slot_gradient

def sick(w, state, *rest):
    if "TEST_SICK" in os.environ and state.step >= int(os.environ["TEST_STEP"]):
        form = w.ops._forms["attention_backward"]

        def broken(*operands):
            result = form(*operands)
            result[0].reshape(2, 64, -1)[:, -6:] *= 1.0625  # a tile's rows, of every head
            return result

        w.ops._forms["attention_backward"] = broken
        w.ops._spots._every = 1
    return exact(w, state, *rest)

trainer.slot_gradient = sick
"""


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the undisturbed run."""
    return Demo(tmp_path_factory.mktemp("right"), "--nodes", "1", *RUN).hashes["node-1"]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """One that is linked as gcc does with -ffast-math."""
    if COMPILER is None or platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("needs a C compiler and an x86 processor")
    source, compiled = tmp_path / "fast.c", tmp_path / "fast.so"
    source.write_text(SOURCE)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", compiled, source], check=True)
    return compiled


@contextlib.asynccontextmanager
async def pair(folder: Path, source: str, **guest_env: str) -> AsyncIterator[tuple[Node, Node]]:
    """Host and guest that run this source first, and slowly until the guest has gone wrong."""
    pace = Pace(folder, source)
    pace.env["TEST_STEP"] = str(STEP)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(free_port()))
        host = Node(server.url, folder, "a", *RUN, "--start-when", "2", env=pace.env)
        await stack.enter_async_context(host)
        await host.until("invite")
        guest = Node(server.url, folder, "b", "--guest", env=pace.env | guest_env)
        await stack.enter_async_context(guest)
        yield host, guest


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
async def test_flush_to_zero_changes_no_bit(
    right: str, compiled: bool, library: Path, tmp_path: Path
) -> None:
    """Compiled kernels put the mode right and go on; without them the node refuses and ends, and
    the other one finishes."""
    told = tmp_path / "told"
    env = {"TEST_LIBRARY": str(library), "TEST_TOLD": str(told)}
    if not compiled:
        env["P2PNODE_NO_NUMBA"] = "1"
    async with pair(tmp_path, _LOADER, **env) as (host, guest):
        assert (await host.until("finished"))["hash"] == right
        if compiled:
            assert (await guest.until("finished"))["hash"] == right
        assert await guest.end() == (0 if compiled else 12)
        assert await host.end() == 0
    found = told.read_text()
    assert found.startswith("half of a subnormal: 0.0"), "the library did what it is here for"
    assert ("repairs: " in found) == compiled
    assert not found.endswith("repairs: 0")


async def test_wrong_attention_is_named_and_stays_where_it_is(
    right: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with pair(tmp_path, _BROKEN_TILES, TEST_SICK="1") as (host, guest):
        assert await guest.end() == 12
        assert (await host.until("finished"))["hash"] == right
        assert await host.end() == 0
    said = capfd.readouterr().err.replace("\n", " ")
    where = rf"slot [0-3] of step [{STEP}-5]: .* in attention_backward, sequence [01], head [01], "
    assert re.search(where, said)
