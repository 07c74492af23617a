"""`demo`: a signaling server and several node processes on this machine, watched until they end.

Everything is real (server, WebRTC, processes, signals) and stays on loopback.
May import: signaling.app, ui.events, protocol.code, polite, config, node_config, limits, errors;
the kernels only in a process of their own, to fill the compile cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from p2pnode.config import RunOptions
from p2pnode.errors import DivergenceError, P2PNodeError, UsageError
from p2pnode.limits import LIMITS
from p2pnode.node_config import TextChoice
from p2pnode.polite import ending_signals
from p2pnode.protocol.code import generate_code
from p2pnode.ui.events import (
    Computing,
    Finished,
    HeldOut,
    Invite,
    RunStarted,
    Step,
    Warn,
    from_json,
)

ROOM_READY_SECONDS = 120.0
"""How long the host process may take to open its room (imports on a slow disk)."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the demo was asked to do. Node numbers start at 1, the host."""

    nodes: int
    kills: tuple[tuple[int, int], ...]
    joins: tuple[tuple[int, int], ...]
    reference: tuple[int, ...]
    out: Path
    text: TextChoice
    options: RunOptions
    json: bool

    def check(self) -> None:
        """Raise UsageError or ConfigError for a plan that cannot be carried out."""
        self.options.check()
        if self.nodes + len(self.joins) > LIMITS.peers:
            raise UsageError(f"A room holds at most {LIMITS.peers} nodes.")
        known = set(range(1, self.nodes + 1))
        for node, _ in self.joins:
            if node in known:
                raise UsageError(f"--join {node}: node {node} is there already; take a new number.")
            known.add(node)
        for node, _ in self.kills:
            if node not in known:
                raise UsageError(f"--kill {node}: there is no node {node}")
        last = self.options.config(arithmetic_version=1, gates_digest="0" * 64, data="0" * 64).steps
        for name, faults in (("kill", self.kills), ("join", self.joins)):
            for node, step in faults:
                if step > last:
                    raise UsageError(f"--{name} {node}@{step}: the run has {last} steps.")
        for node in self.reference:
            if node not in known:
                raise UsageError(f"--reference-nodes {node}: there is no node {node}")
        if len({node for node, _ in self.kills}) == len(known):
            raise UsageError("--kill would leave no node to finish the run.")
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise UsageError(f"--out {self.out}: take a new or empty folder; this one is in use.")


def next_folder(base: Path) -> Path:
    """`base`/demo-N with the smallest N that is free, so that no demo meets another's files."""
    return next(p for n in itertools.count(1) if not (p := base / f"demo-{n}").exists())


def demo(plan: Plan) -> int:
    """Run the demo to its end; 0 if every surviving node printed the same hash."""
    plan.check()
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: cannot make the folder {plan.out}: {error.strerror}.") from None
    _end_as_by_ctrl_c()
    return asyncio.run(_demo(plan))


def _end_as_by_ctrl_c() -> None:
    """Have a polite kill end as Ctrl-C does, so that no node process is left behind; also where a
    shell started us in the background and had SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ending_signals():
        if number != signal.SIGINT:
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


async def _demo(plan: Plan) -> int:
    # Progress goes to stderr when the last line of stdout is for a program.
    say = _printer(sys.stderr if plan.json else sys.stdout)
    await _warm(say)
    from signaling.app import SignalingServer

    with tempfile.TemporaryDirectory(prefix="p2pnode-demo-") as scratch:
        async with SignalingServer("127.0.0.1", 0) as server:
            cluster = Cluster(plan, server.url, Path(scratch), say)
            try:
                await cluster.run()
            finally:
                await cluster.stop()
    return cluster.conclude()


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _printer(stream: object) -> Callable[[str], None]:
    def say(text: str) -> None:
        print(text, file=stream, flush=True)  # type: ignore[call-overload]

    return say


async def _warm(say: Callable[[str], None]) -> None:
    """Fill the compile cache once, so that the nodes do not all compile the same kernels."""
    say("Preparing the kernels (the first time on a machine they are compiled; about a minute) …")
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from p2pnode.train.arithmetic import kernels; kernels.load()"
    )
    while True:
        try:
            code = await asyncio.wait_for(process.wait(), 5.0)
            break
        except TimeoutError:
            say(f"  still compiling: {time.monotonic() - started:.0f} s …")
    if code != 0:
        raise P2PNodeError("The kernels could not be prepared; see the message above.")
    say(f"Kernels ready after {time.monotonic() - started:.0f} s.")


class Node:
    """One node process and what its events told so far."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.room_open = asyncio.Event()
        self.finished: Finished | None = None
        self.killed = False
        self.takes_part = False
        """The run has begun there."""
        self.exit_code: int | None = None


class Cluster:
    """All node processes of one demo."""

    def __init__(self, plan: Plan, url: str, scratch: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._url = url
        self._scratch = scratch
        self._say = say
        self._code = generate_code()
        self._nodes: dict[int, Node] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._pending_kills = dict(plan.kills)
        self._pending_joins = dict(plan.joins)
        self._losses: dict[int, float] = {}
        self._tokens_per_step = 0
        self._first_step_at: float | None = None
        self._last_step_at = 0.0
        self._shown_at = 0.0
        self._run_started = False

    async def run(self) -> None:
        """Start the nodes and return when all of them have ended."""
        host = await self._start(1)
        opened = asyncio.create_task(host.room_open.wait())
        ended = asyncio.create_task(host.process.wait())
        await asyncio.wait(
            {opened, ended}, timeout=ROOM_READY_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (opened, ended):
            task.cancel()
        if not host.room_open.is_set():
            raise self._host_failed()
        for number in range(2, self._plan.nodes + 1):
            await self._start(number)
        while self._readers:
            done, pending = await asyncio.wait(self._readers, return_when=asyncio.FIRST_COMPLETED)
            self._readers = list(pending)
            for reader in done:
                reader.result()  # raises what went wrong in reading
            self._end_latecomers()
        if not self._run_started:
            raise self._host_failed()

    def _end_latecomers(self) -> None:
        """A node that was still starting when the run ended would wait for its host for ever."""
        running = [n for n in self._nodes.values() if n.process.returncode is None]
        if any(n.finished for n in self._nodes.values()):
            for node in running:
                if not (node.takes_part or any(n.takes_part for n in running)):
                    node.process.terminate()

    async def stop(self) -> None:
        """End whatever still runs."""
        self._terminate()
        for node in self._nodes.values():
            try:
                await asyncio.wait_for(node.process.wait(), 10)
            except TimeoutError:
                node.process.kill()
                await node.process.wait()

    def _terminate(self) -> None:
        for node in self._nodes.values():
            if node.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    node.process.terminate()

    def _host_failed(self) -> P2PNodeError:
        """What to say when no run began: the host's own last words, under its exit code."""
        log = self._log_path(1)
        words = log.read_text(encoding="utf-8", errors="replace").splitlines()
        reason = words[-1].removeprefix("error: ") if words else "it gave no reason"
        error = P2PNodeError(f"The host did not begin a run: {reason} (see {log}).")
        error.exit_code = max(self._nodes[1].process.returncode or 1, 1)
        return error

    def conclude(self) -> int:
        """Print the outcome; 0 if all surviving nodes hold the same state."""
        done = {n.number: n.finished for n in self._nodes.values() if n.finished is not None}
        lost = [n for n in self._nodes.values() if n.finished is None and not n.killed]
        hashes = {f"node-{number}": finished.hash for number, finished in sorted(done.items())}
        for name, digest in hashes.items():
            self._say(f"{name}  {digest}")
        for node in lost:
            self._say(
                f"node-{node.number} ended without a result (exit code {node.exit_code}); "
                f"see {self._log_path(node.number)}"
                if node.takes_part or node.exit_code
                else f"node-{node.number} came too late: the run was over; take more --steps"
            )
        if not done:
            raise P2PNodeError("No node finished the run.")
        missed = [f"--kill {n}@{at}" for n, at in self._pending_kills.items()]
        missed += [f"--join {n}@{at}" for n, at in self._pending_joins.items()]
        for what in missed:
            self._say(f"{what} did not happen: the run ended before")
        losses = [self._losses[step] for step in sorted(self._losses)]
        last = next(iter(done.values()))
        seconds = self._last_step_at - (self._first_step_at or self._last_step_at)
        tokens = self._tokens_per_step * max(len(losses) - 1, 0)
        outcome = {
            "hashes": hashes,
            "steps": last.step,
            "first_loss": losses[0] if losses else None,
            "final_loss": losses[-1] if losses else None,
            "tokens_per_s": round(tokens / seconds, 1) if seconds > 0 else None,
            "worst_loop_stall_ms": round(max(f.worst_loop_stall_ms for f in done.values()), 1),
            "peak_rss_mb": round(max(f.peak_rss_mb for f in done.values()), 1),
            "checkpoint": last.checkpoint,
        }
        self._say(
            f"{last.step} steps, loss {outcome['first_loss']:.4f} -> {outcome['final_loss']:.4f}, "
            f"{outcome['tokens_per_s'] or 0:,.0f} tokens/s; worst event-loop stall "
            f"{outcome['worst_loop_stall_ms']:.0f} ms"
        )
        self._say(f"checkpoint {last.checkpoint}")
        self._say(f"try it:  python -m p2pnode generate {last.checkpoint}")
        same = len(set(hashes.values())) == 1
        self._say(
            "one run, one answer: all nodes hold the same state"
            if same
            else "THE NODES DIFFER: this is a bug, please report it with the logs in "
            f"{self._plan.out}"
        )
        if self._plan.json:
            print(json.dumps(outcome), flush=True)
        if not same:
            return DivergenceError.exit_code
        return 1 if lost or missed else 0

    def _log_path(self, number: int) -> Path:
        return self._plan.out / f"node-{number}.log"

    async def _start(self, number: int) -> Node:
        arguments = [sys.executable, "-m", "p2pnode", "join", "--signal", self._url]
        arguments += ["--name", f"node-{number}", "--approve", "all", "--json-events"]
        arguments += [
            "--threads",
            "1",
            "--addresses",
            "loopback",
            "--home",
            str(self._scratch / str(number)),
        ]
        arguments += ["--out", str(self._plan.out / f"node-{number}")]
        text = self._plan.text
        if text.data is not None:
            arguments += ["--data", text.data, "--column", text.column]
        if text.tokenizer is not None:
            arguments += ["--tokenizer", text.tokenizer]
        if number in self._plan.reference:
            arguments += ["--reference"]
        if number == 1:
            arguments += ["--start-when", str(self._plan.nodes)]
            for name, value in msgspec.structs.asdict(self._plan.options).items():
                if value is not None:
                    arguments += [f"--{name.replace('_', '-')}", str(value)]
        else:
            arguments += ["--guest"]
        with self._log_path(number).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=os.environ | {"P2PNODE_ROOM": self._code},
            )
        node = self._nodes[number] = Node(number, process)
        self._readers.append(asyncio.create_task(self._read(node)))
        return node

    async def _read(self, node: Node) -> None:
        assert node.process.stdout is not None
        async for line in node.process.stdout:
            try:
                event = from_json(line)
            except msgspec.MsgspecError:
                continue
            await self._handle(node, event)
        node.exit_code = await node.process.wait()
        if node.number == 1 and not self._run_started:
            self._terminate()  # only the host can begin the run: the others would wait for ever

    async def _handle(self, node: Node, event: object) -> None:
        match event:
            case Invite():
                node.room_open.set()
            case RunStarted():
                node.takes_part = True
                if not self._run_started:
                    self._run_started = True
                    self._tokens_per_step = event.tokens_per_step
                    self._say(
                        f"{event.parameters:,} parameters, {event.steps} steps of {event.slots} "
                        f"slots on {_nodes(self._plan.nodes)}"
                    )
            case Computing():
                await self._on_step_begins(node, event.step)
            case Step():
                self._on_step(event)
            case HeldOut():
                if node.number == min(n.number for n in self._nodes.values() if not n.killed):
                    self._say(f"step {event.step}  held-out loss {event.loss:.4f}")
            case Warn():
                self._say(f"node-{node.number}: {event.text}")
            case Finished():
                node.finished = event
            case _:
                pass

    async def _on_step_begins(self, node: Node, step: int) -> None:
        if self._pending_kills.get(node.number, step + 1) <= step:
            del self._pending_kills[node.number]
            node.killed = True
            self._say(f"killing node-{node.number} in the middle of step {step}")
            node.process.send_signal(signal.SIGKILL if os.name != "nt" else signal.SIGTERM)
        for number in [n for n, at in self._pending_joins.items() if at <= step]:
            del self._pending_joins[number]
            self._say(f"node-{number} joins at step {step}")
            await self._start(number)

    def _on_step(self, event: Step) -> None:
        if event.step in self._losses:
            return
        self._losses[event.step] = event.loss
        now = time.monotonic()
        if self._first_step_at is None:
            self._first_step_at = now
        self._last_step_at = now
        if now - self._shown_at >= 1.0 or event.step == event.steps:
            self._shown_at = now
            self._say(
                f"step {event.step:>4}/{event.steps}  loss {event.loss:.4f}  "
                f"{event.tokens_per_s:,.0f} tokens/s  {_nodes(event.nodes)}"
            )
