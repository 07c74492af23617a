"""A library that switches on flush-to-zero is loaded into a node process while it trains."""

import contextlib
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Demo
from tests.integration.processes import Node, Pace, Server, free_port
from tests.train.test_flush_to_zero import SOURCE

COMPILER = shutil.which("cc")
STEP = 4
RUN = ("--preset", "nano", "--steps", "8", "--slots", "4")

pytestmark = pytest.mark.skipif(
    COMPILER is None or platform.machine().lower() not in ("x86_64", "amd64"),
    reason="needs a C compiler and an x86 processor",
)

_LOADER = """
import ctypes, os, pathlib
import numpy
from p2pnode.train import trainer

exact = trainer.slot_gradient

def disturbed(w, state, *rest):
    told = pathlib.Path(os.environ.get("TEST_TOLD", os.devnull))
    if state.step + 1 >= int(os.environ["TEST_STEP"]) and not told.exists():
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


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the undisturbed run."""
    return Demo(tmp_path_factory.mktemp("right"), "--nodes", "1", *RUN).hashes["node-1"]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    source, compiled = tmp_path / "fast.c", tmp_path / "fast.so"
    source.write_text(SOURCE)
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", compiled, source], check=True)
    return compiled


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
async def test_no_other_bit_reaches_the_group(
    right: str, compiled: bool, library: Path, tmp_path: Path
) -> None:
    """Compiled kernels put the mode right and go on; without them the node refuses and ends, and
    the other one finishes."""
    told = tmp_path / "told"
    pace = Pace(tmp_path, _LOADER)
    pace.env["TEST_STEP"] = str(STEP)
    env = pace.env | {"TEST_LIBRARY": str(library), "TEST_TOLD": str(told)}
    if not compiled:
        env["P2PNODE_NO_NUMBA"] = "1"
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(free_port()))
        host = Node(server.url, tmp_path, "a", *RUN, "--start-when", "2", env=pace.env)
        await stack.enter_async_context(host)
        await host.until("invite")
        guest = Node(server.url, tmp_path, "b", "--guest", env=env)
        await stack.enter_async_context(guest)
        assert (await host.until("finished"))["hash"] == right
        if compiled:
            assert (await guest.until("finished"))["hash"] == right
        assert await guest.end() == (0 if compiled else 12)
        assert await host.end() == 0
    found = told.read_text()
    assert found.startswith("half of a subnormal: 0.0"), "the library did what it is here for"
    assert ("repairs: " in found) == compiled
    assert not found.endswith("repairs: 0")
