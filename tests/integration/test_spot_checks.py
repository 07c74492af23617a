"""A node whose fused attention goes wrong while it trains: named by its own spot checks, and the
others finish with the undisturbed hash."""

import contextlib
import re
from pathlib import Path

import pytest

from tests.integration.conftest import Demo
from tests.integration.processes import Node, Pace, Server, free_port

STEP = 2
RUN = ("--preset", "nano", "--steps", "6", "--slots", "4")

_BROKEN_TILE = """
import os
from p2pnode.train import trainer

exact = trainer.slot_gradient

def sick(w, state, *rest):
    if "TEST_OPERATION" in os.environ and state.step >= int(os.environ["TEST_STEP"]):
        name = os.environ["TEST_OPERATION"]
        form = w.ops._forms[name]

        def broken(*operands):
            result = form(*operands)
            result[0].reshape(2, 64, -1)[:, -6:] *= 1.0625  # a tile's rows, of every head
            return result

        w.ops._forms[name] = broken
        w.ops._spots._every = 1
    return exact(w, state, *rest)

trainer.slot_gradient = sick
"""


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the undisturbed run."""
    return Demo(tmp_path_factory.mktemp("right"), "--nodes", "1", *RUN).hashes["node-1"]


@pytest.mark.parametrize("operation", ["attention", "attention_backward"])
async def test_a_wrong_tile_of_attention_is_named_and_stays_where_it_is(
    operation: str, right: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pace = Pace(tmp_path, _BROKEN_TILE)
    sick = pace.env | {"TEST_OPERATION": operation, "TEST_STEP": str(STEP)}
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(free_port()))
        host = Node(server.url, tmp_path, "a", *RUN, "--start-when", "2", env=pace.env)
        await stack.enter_async_context(host)
        await host.until("invite")
        guest = Node(server.url, tmp_path, "b", "--guest", env=sick)
        await stack.enter_async_context(guest)
        assert await guest.end() == 12
        pace.hurry()
        assert (await host.until("finished"))["hash"] == right
        assert await host.end() == 0
    said = capfd.readouterr().err
    where = rf"slot [0-3] of step [{STEP}-5]: .* in {operation}, sequence [01], head [01], the "
    assert re.search(where, said.replace("\n", " "))
