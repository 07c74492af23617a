"""Real processes of which one computes wrong gradients that only an audit can find."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from p2pnode.train.ledger_lines import read_lines
from tests.integration.commands import Demo, run_cli
from tests.integration.liar import wrong_gradients
from tests.integration.processes import Node, Server, free_port

WRONG_AT = 5
RUN = ("--preset", "nano", "--steps", "16", "--slots", "6")


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the undisturbed run."""
    return Demo(tmp_path_factory.mktemp("right"), "--nodes", "1", *RUN).hashes["node-1"]


@contextlib.asynccontextmanager
async def group(folder: Path, sick: str, rate: str) -> AsyncIterator[list[Node]]:
    """Three nodes, a the host; the sick one computes step WRONG_AT wrongly."""
    run = (*RUN, "--start-when", "3", "--audit", rate)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(free_port()))
        started: list[Node] = []
        for name in "abc":
            env = wrong_gradients(folder, WRONG_AT) if name == sick else None
            more = run if name == "a" else ("--guest", "--audit", rate)
            node = Node(server.url, folder, name, *more, env=env)
            started.append(await stack.enter_async_context(node))
            if name == "a":
                await node.until("invite")
        yield started


@pytest.mark.parametrize("sick", ["a", "b"])
async def test_wrong_gradients_are_taken_back_everywhere(
    sick: str, right: str, tmp_path: Path
) -> None:
    async with group(tmp_path, sick, "1") as nodes:
        sound = [node for node in nodes if node.name != sick]
        ends = [await node.until("finished") for node in sound]
        assert {end["hash"] for end in ends} == {right}
        assert [await node.end() for node in sound] == [0, 0]
        (liar,) = (node for node in nodes if node.name == sick)
        assert await liar.end() == 12
    ledgers = [next((tmp_path / node.name).glob("*.ledger")) for node in sound]
    assert len({path.read_bytes() for path in ledgers}) == 1, "what was wrong is taken back"
    assert [line.entry.state for line, _ in read_lines(ledgers[0])][-1] == right
    said = "".join("".join(node.lines) for node in sound)
    assert f"at step {WRONG_AT}" in said
    assert f"back to step {WRONG_AT - 1}" in said
    assert sum(end["audited_slots"] for end in ends) > 0
    bundles = [path for name in "abc" for path in (tmp_path / name).glob("wrong-run-*")]
    assert bundles
    shown = run_cli("reproduce", str(bundles[0]))
    assert shown.returncode == 0, shown.stderr
    assert f"of step {WRONG_AT}" in shown.stdout
    assert "the statement is wrong" in shown.stdout


async def test_without_audits_they_would_stay(right: str, tmp_path: Path) -> None:
    """The fault is one that nothing else finds: else the test above would show nothing."""
    async with group(tmp_path, "b", "0") as nodes:
        ends = {(await node.until("finished"))["hash"] for node in nodes}
    assert len(ends) == 1
    assert ends != {right}
    verdict = run_cli("verify", str(tmp_path / "a"))
    assert verdict.returncode == 18
    assert (
        f"Step {WRONG_AT} did not come out as the ledger says: it differs first in embed, sum"
        in (verdict.stderr)
    )
    assert run_cli("verify", str(tmp_path / "c"), "--steps", f":{WRONG_AT - 1}").returncode == 0
