"""Disasters drawn from a seed, and the scene of real processes that they happen to.

A seed decides the number of nodes, the lines between them, and what happens to whom at which step.
Every node is in a network namespace of its own (see switch).
"""

import asyncio
import contextlib
import dataclasses
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.integration.processes import Node, Server, hooked
from tests.integration.switch import Switch

STEPS = 60
LOSSY_STEPS = 16
PATIENCE = 120.0
"""Seconds in which whoever takes part ends after the first has ended: others wait half a minute for
one that makes no progress, which then has to notice that they have gone and to go on alone."""
PORT = 8765
VOLUME = 4 << 20
"""Bytes of the disk that fills up."""
FILLER = "filler"
"""The file that fills it."""

NAMES = "abcd"
KINDS = (
    "kill",
    "restart",
    "freeze",
    "sleep",
    "server",
    "blackout",
    "oneway",
    "move",
    "disk",
    "save",
    "last",
)

_SLOW_DISK = """
import os, time
fsync = os.fsync

def slow(handle):
    time.sleep(0.3)
    fsync(handle)

os.fsync = slow
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens when the first node is at this step."""

    step: int
    kind: str
    """`kill` (SIGKILL for good), `restart` (SIGKILL, then started again), `freeze` (SIGSTOP),
    `sleep` (SIGSTOP for longer than the silence limit), `server` (killed and started, having
    forgotten all), `blackout` (cut off for longer than the silence limit), `oneway` (what it sends
    to one other vanishes), `move` (another address), `disk` (full, later cleared), `save`
    (SIGKILL in the middle of a checkpoint, then started again), `last` (all others killed)."""
    node: int
    seconds: float
    """How long it lasts, or until it is started again."""
    other: int = 0


@dataclasses.dataclass(frozen=True)
class Disaster:
    """Everything that a seed decides."""

    nodes: int
    steps: int
    loss: float
    checkpoint_every: int
    faults: tuple[Fault, ...]


def disaster(seed: int) -> Disaster:
    """Seeds in a row have each kind of fault first, one after the other. One node is never killed,
    so that somebody is there at the end."""
    rng = random.Random(seed)
    nodes = rng.randint(2, 4)
    lossy = rng.random() < 0.15
    steps = LOSSY_STEPS if lossy else STEPS
    keeper = rng.randrange(nodes)
    kinds = [KINDS[seed % len(KINDS)], *rng.choices(KINDS, k=rng.randint(0, 2))]
    faults = [_fault(kind, nodes, keeper, steps, rng) for kind in kinds]
    every = 1 if "save" in kinds else rng.choice([1, 5, 100])
    faults.sort(key=lambda fault: fault.step)
    return Disaster(nodes, steps, rng.uniform(0.005, 0.03) if lossy else 0.0, every, tuple(faults))


def _fault(kind: str, nodes: int, keeper: int, steps: int, rng: random.Random) -> Fault:
    others = [node for node in range(nodes) if node != keeper]
    killed = kind in ("kill", "restart", "save")
    node = keeper if kind == "last" else rng.choice(others if killed else range(nodes))
    long = kind in ("sleep", "blackout", "oneway")
    seconds = rng.uniform(9.0, 14.0) if long else rng.uniform(0.0, 4.0)
    other = rng.choice([n for n in range(nodes) if n != node])
    return Fault(rng.randint(1, steps // 2), kind, node, seconds, other)


class Scene:
    """Server and nodes of one disaster: start, run, close."""

    def __init__(self, plan: Disaster, seed: int, folder: Path) -> None:
        self._plan = plan
        self.folder = folder
        self._open = contextlib.AsyncExitStack()
        self._net = Switch(seed, loss=plan.loss, delay=0.01 if plan.loss else 0.0)
        self._jobs: list[asyncio.Task[None]] = []
        self._outage = asyncio.Lock()
        """The server goes away and comes back once at a time, however fast the steps pass."""
        self.nodes: dict[int, Node] = {}
        self.happened: list[str] = []
        """Kinds of the faults that took effect."""

    async def __aenter__(self) -> "Scene":
        try:
            await self._open.enter_async_context(self._net)
            for name in ("s", *NAMES[: self._plan.nodes]):
                await self._net.plug(name)
            for node in {fault.node for fault in self._plan.faults if fault.kind == "disk"}:
                await self._mount(NAMES[node])
            self._server = await self._start_server()
            await self._start(0)
            await self.nodes[0].until("invite")
            for number in range(1, self._plan.nodes):
                await self._start(number)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._stop_jobs()
        finally:
            await self._open.aclose()

    @property
    def lost(self) -> int:
        """Packets that the network has lost."""
        return self._net.lost

    async def run(self) -> set[str]:
        """Hashes of all that finished. AssertionError if somebody who takes part did not."""
        self._jobs = [asyncio.create_task(self._at(fault)) for fault in self._plan.faults]
        async with asyncio.timeout(400):
            await until(self._finished)
        await self._stop_jobs()
        self._net.dark.clear()
        self._net.deaf.clear()
        for node in self.nodes.values():
            node.send(signal.SIGCONT)
        for filler in self.folder.glob(f"*/{FILLER}"):
            filler.unlink()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await until(lambda: not self._taking_part() - self._finished())
        late = self._taking_part() - self._finished()
        said = [f"{node.name}: {line}" for node in self.nodes.values() for line in node.lines[-12:]]
        assert not late, f"{[NAMES[n] for n in late]} did not end\n{''.join(said)}"
        return {self.nodes[n].events("finished")[0]["hash"] for n in self._finished()}

    def _finished(self) -> set[int]:
        return {number for number, node in self.nodes.items() if node.events("finished")}

    def _taking_part(self) -> set[int]:
        """Those for whom the run has begun, and who were not killed for good."""
        return {number for number, node in self.nodes.items() if node.events("runstarted")}

    def _step(self) -> int:
        steps = [node.events("step") for node in self.nodes.values()]
        return max((seen[-1]["step"] for seen in steps if seen), default=0)

    async def _stop_jobs(self) -> None:
        for job in self._jobs:
            job.cancel()
        for result in await asyncio.gather(*self._jobs, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        self._jobs = []

    # Faults

    async def _at(self, fault: Fault) -> None:
        await until(lambda: self._step() >= fault.step)
        await asyncio.sleep(fault.seconds / 20)  # somewhere inside the step
        if fault.kind != "server" and fault.node not in self.nodes:
            return  # killed already
        self.happened.append(fault.kind)
        name = NAMES[fault.node]
        match fault.kind:
            case "server":
                async with self._outage:
                    await self._server.kill()
                    await asyncio.sleep(fault.seconds)
                    self._server = await self._start_server()
            case "freeze" | "sleep":
                self.nodes[fault.node].send(signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                if fault.node in self.nodes:
                    self.nodes[fault.node].send(signal.SIGCONT)
            case "blackout":
                self._net.dark.add(name)
                await asyncio.sleep(fault.seconds)
                self._net.dark.discard(name)
            case "oneway":
                pair = (name, NAMES[fault.other])
                self._net.deaf.add(pair)
                await asyncio.sleep(fault.seconds)
                self._net.deaf.discard(pair)
            case "move":
                await self._net.move(name)
            case "disk":
                fill(self.folder / name / FILLER)
                await asyncio.sleep(4 * fault.seconds)
                (self.folder / name / FILLER).unlink(missing_ok=True)
            case "last":
                for number in set(self.nodes) - {fault.node}:
                    await self.nodes.pop(number).kill()
            case _:
                await self._kill(fault)

    async def _kill(self, fault: Fault) -> None:
        node = self.nodes.pop(fault.node)
        if fault.kind == "save":
            folder = self.folder / node.name
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20):
                    await until(lambda: list(folder.glob("*.tmp")))
        await node.kill()
        if fault.kind != "kill":
            await asyncio.sleep(fault.seconds)
            await self._start(fault.node)

    async def _mount(self, name: str) -> None:
        """Have the node's checkpoints on a volume of their own."""
        volume = self.folder / name
        volume.mkdir()
        await _run("mount", "-t", "tmpfs", "-o", f"size={VOLUME}", "tmpfs", str(volume))
        self._open.push_async_callback(_run, "umount", "--lazy", str(volume))

    # Processes

    async def _start(self, number: int) -> None:
        plan, name = self._plan, NAMES[number]
        more = ["--checkpoint-every", str(plan.checkpoint_every)]
        if number == 0:
            more += ["--preset", "nano", "--steps", str(plan.steps)]
            more += ["--start-when", str(plan.nodes)]
        else:
            more += ["--guest"]
        saving = any(fault.kind == "save" and fault.node == number for fault in plan.faults)
        node = Node(
            self._server.url,
            self.folder,
            name,
            *more,
            env=slow_disk(self.folder) if saving else None,
            within=self._net.within(name),
        )
        self.nodes[number] = await self._open.enter_async_context(node)

    async def _start_server(self) -> Server:
        server = Server(PORT, self._net.address("s"), self._net.within("s"))
        return await self._open.enter_async_context(server)


def slow_disk(folder: Path) -> Mapping[str, str]:
    """Environment of a process for which writing a file out takes a while."""
    return hooked(folder, _SLOW_DISK)


def fill(filler: Path) -> None:
    """Write to a small volume until nothing more fits."""
    with contextlib.suppress(OSError):
        filler.write_bytes(bytes(VOLUME))


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that many processes bring about."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def _run(*command: str) -> None:
    assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0, command
