"""Seeded disasters over real processes; not part of the suite:

    pytest -m campaign tests/integration/test_survival_campaign.py

A seed decides the number of nodes, the line, and who is killed, restarted or frozen at which step.
"""

import asyncio
import contextlib
import dataclasses
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Demo
from tests.integration.faults import lossy_network
from tests.integration.processes import Node, Server, free_port

pytestmark = pytest.mark.campaign

SEEDS = range(int(os.environ.get("P2PNODE_SEEDS", "50")))
STEPS = 100
LOSSY_STEPS = 16
PATIENCE = 60.0
"""Seconds in which whoever takes part ends after the first has ended."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """At a step: `kill`, `restart` or `freeze` of a node, or `server` killed and restarted."""

    step: int
    kind: str
    node: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Disaster:
    """Everything that a seed decides."""

    nodes: int
    steps: int
    loss: float
    checkpoint_every: int
    faults: tuple[Fault, ...]


def disaster(seed: int) -> Disaster:
    """Node `keeper` is frozen at most, so that somebody is there at the end."""
    rng = random.Random(seed)
    nodes = rng.randint(2, 4)
    lossy = rng.random() < 0.2
    steps = LOSSY_STEPS if lossy else STEPS
    keeper = rng.randrange(nodes)
    others = [node for node in range(nodes) if node != keeper]
    faults = []
    if rng.random() < 0.15:
        step = rng.randint(1, steps // 2)
        faults = [Fault(step, "kill", node, rng.random()) for node in others]
    else:
        for _ in range(rng.randint(1, 4)):
            kind = rng.choice(["kill", "restart", "restart", "freeze", "freeze", "server"])
            node = rng.choice(others) if kind in ("kill", "restart") else rng.randrange(nodes)
            seconds = rng.uniform(0.0, 14.0) if kind == "freeze" else rng.uniform(0.0, 3.0)
            faults.append(Fault(rng.randint(1, steps * 2 // 3), kind, node, seconds))
    faults.sort(key=lambda fault: fault.step)
    loss = rng.uniform(0.005, 0.03) if lossy else 0.0
    return Disaster(nodes, steps, loss, rng.choice([1, 5, 100]), tuple(faults))


class Scene:
    """Server and nodes of one disaster."""

    def __init__(self, plan: Disaster, seed: int, folder: Path) -> None:
        self._plan = plan
        self._seed = seed
        self._folder = folder
        self._server = Server(free_port())
        self._open: list[Node | Server] = []
        self.nodes: dict[int, Node] = {}
        self._jobs: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._server = await self._started(self._server)
        await self._start(0)
        await self.nodes[0].until("invite")
        for number in range(1, self._plan.nodes):
            await self._start(number)

    async def close(self) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        for process in self._open:
            await process.kill()

    async def run(self) -> set[str]:
        """Hashes of all that finished."""
        for fault in self._plan.faults:
            self._jobs.append(asyncio.create_task(self._at(fault)))
        async with asyncio.timeout(600):
            await until(self._finished)
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        for node in self.nodes.values():
            node.send(signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await until(lambda: not self._taking_part() - self._finished())
        late = self._taking_part() - self._finished()
        assert not late, [(self.nodes[n].name, self.nodes[n].lines[-10:]) for n in late]
        return {self.nodes[n].events("finished")[0]["hash"] for n in self._finished()}

    def _finished(self) -> set[int]:
        return {number for number, node in self.nodes.items() if node.events("finished")}

    def _taking_part(self) -> set[int]:
        """Those for whom the run has begun, and who were not killed for good."""
        return {number for number, node in self.nodes.items() if node.events("runstarted")}

    async def _at(self, fault: Fault) -> None:
        await until(lambda: self._step() >= fault.step)
        await asyncio.sleep(fault.seconds / 20)  # somewhere inside the step
        if fault.kind == "server":
            await self._server.kill()
            await asyncio.sleep(fault.seconds)
            self._server = await self._started(Server(self._server.port))
            return
        node = self.nodes.get(fault.node)
        if node is None:
            return
        if fault.kind == "freeze":
            node.send(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            node.send(signal.SIGCONT)
            return
        await node.kill()
        del self.nodes[fault.node]
        if fault.kind == "restart":
            await asyncio.sleep(fault.seconds)
            await self._start(fault.node)

    def _step(self) -> int:
        steps = [node.events("step") for node in self.nodes.values()]
        return max((seen[-1]["step"] for seen in steps if seen), default=0)

    async def _start(self, number: int) -> None:
        plan = self._plan
        if number == 0:
            more = ["--preset", "nano", "--steps", str(plan.steps)]
            more += ["--start-when", str(plan.nodes)]
        else:
            more = ["--guest"]
        more += ["--checkpoint-every", str(plan.checkpoint_every)]
        env = {}
        if plan.loss:
            env = lossy_network(self._folder, loss=plan.loss, delay=0.01, seed=self._seed)
        name = "abcd"[number]
        node = Node(self._server.url, self._folder, name, *more, env=env)
        await node.__aenter__()
        self._open.append(node)
        self.nodes[number] = node

    async def _started(self, server: Server) -> Server:
        await server.__aenter__()
        self._open.append(server)
        return server


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that many processes bring about."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def scene(seed: int, folder: Path) -> AsyncIterator[Scene]:
    """A started scene that leaves no process behind."""
    opened = Scene(disaster(seed), seed, folder)
    try:
        await opened.start()
        yield opened
    finally:
        await opened.close()


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The hash of the undisturbed run of so many steps."""
    known: dict[int, str] = {}

    def of(steps: int) -> str:
        if steps not in known:
            folder = tmp_path_factory.mktemp(f"undisturbed-{steps}")
            known[steps] = Demo(folder, "--nodes", "1", "--steps", str(steps)).hashes["node-1"]
        return known[steps]

    return of


async def test_a_disk_that_fills_up_and_is_cleared(
    answer: Callable[[int], str], tmp_path: Path
) -> None:
    """A member's checkpoints lie on a volume of 4 MiB that fills up at step 30 (needs root)."""
    volume = tmp_path / "b"
    volume.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(volume))
    assert await (await asyncio.create_subprocess_exec(*mount)).wait() == 0
    plan = Disaster(2, STEPS, 0.0, 5, ())
    opened = Scene(plan, 0, tmp_path)
    try:
        await opened.start()
        host, member = opened.nodes[0], opened.nodes[1]
        await member.until("step", step=30)
        filler = volume / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(bytes(4 << 20))
        assert "Training goes on" in (await member.until("warn"))["text"]
        await host.until("finished")
        await until(lambda: any("kept in memory" in e["text"] for e in member.events("warn")))
        assert not [p for p in volume.iterdir() if p.name.endswith(".tmp")]
        filler.unlink()
        end = await member.until("finished")
        assert end["hash"] == answer(STEPS)
        assert (volume / Path(end["checkpoint"]).name).exists()
    finally:
        await opened.close()
        await (await asyncio.create_subprocess_exec("umount", str(volume))).wait()


@pytest.mark.parametrize("seed", SEEDS)
async def test_disaster(seed: int, answer: Callable[[int], str], tmp_path: Path) -> None:
    plan = disaster(seed)
    print(plan)
    async with scene(seed, tmp_path) as opened:
        assert await opened.run() == {answer(plan.steps)}
