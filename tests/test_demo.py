"""The demo's decisions, with nodes that are not there: plans, kills, joins and the verdict.

Whole demos with real processes are in tests/integration.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2pnode import demo as demo_module
from p2pnode.config import RunOptions
from p2pnode.demo import Cluster, Node, Plan, next_folder
from p2pnode.errors import ConfigError, DataError, DivergenceError, P2PNodeError, UsageError
from p2pnode.node_config import TextChoice
from p2pnode.ui.events import Computing, HeldOut, Invite, Warn, to_json
from tests.net.fakes import until
from tests.ui.examples import FINISHED, STARTED, STEP


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Plan]:
    def make(**changes: Any) -> Plan:
        fields: dict[str, Any] = {
            "nodes": 3,
            "kills": (),
            "joins": (),
            "reference": (),
            "out": tmp_path / "out",
            "text": TextChoice(),
            "options": RunOptions(preset="nano", steps=10),
            "json": False,
        }
        made = Plan(**fields | changes)
        if made.out == tmp_path / "out":
            made.out.mkdir(exist_ok=True)
        return made

    return make


# Plans


def test_good_plans(plan: Callable[..., Plan]) -> None:
    plan().check()
    plan(nodes=1).check()
    plan(kills=((1, 5), (2, 5)), joins=((4, 3),), reference=(4,)).check()
    plan(kills=((1, 5), (2, 5), (3, 5)), joins=((4, 3),)).check()  # the late one finishes
    plan(nodes=60, joins=tuple((60 + n, 1) for n in range(1, 5))).check()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kills": ((4, 5),)}, "no node 4"),
        ({"kills": ((2, 201),)}, "--kill 2@201: the run has 10 steps"),
        ({"joins": ((4, 201),)}, "--join 4@201: the run has 10 steps"),
        ({"joins": ((3, 5),)}, "node 3 is there already"),
        ({"joins": ((4, 5), (4, 6))}, "node 4 is there already"),
        ({"kills": ((1, 5), (2, 5), (3, 5))}, "no node to finish"),
        ({"nodes": 1, "kills": ((1, 5),)}, "no node to finish"),
        ({"reference": (4,)}, "no node 4"),
        ({"nodes": 64, "joins": ((65, 1),)}, "at most 64"),
    ],
)
def test_plans_that_cannot_be(
    plan: Callable[..., Plan], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        plan(**changes).check()


def test_a_folder_that_cannot_be_made_is_a_sentence(
    plan: Callable[..., Plan], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot make the folder"):
        demo_module.demo(plan(out=tmp_path / "file" / "below"))


def test_an_impossible_run_is_known_at_once(plan: Callable[..., Plan]) -> None:
    with pytest.raises(ConfigError, match="lr"):
        plan(options=RunOptions(lr=9.0)).check()


def test_a_folder_in_use_is_refused(plan: Callable[..., Plan], tmp_path: Path) -> None:
    plan(out=tmp_path / "new").check()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="in use"):
        plan(out=file).check()
    (tmp_path / "full").mkdir()
    plan(out=tmp_path / "full").check()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(UsageError, match="in use"):
        plan(out=tmp_path / "full").check()


def test_next_folder(tmp_path: Path) -> None:
    assert next_folder(tmp_path) == tmp_path / "demo-1"
    (tmp_path / "demo-1").mkdir()
    (tmp_path / "demo-3").touch()
    assert next_folder(tmp_path) == tmp_path / "demo-2"
    (tmp_path / "demo-2").mkdir()
    assert next_folder(tmp_path) == tmp_path / "demo-4"


# Processes that are not there


class FakeProcess:
    """A node process: events are fed to it, it ends when told."""

    def __init__(self) -> None:
        self.stdout = asyncio.StreamReader()
        self.returncode: int | None = None
        self.signals: list[int] = []
        self.ended = asyncio.Event()

    def tells(self, *events: Any) -> None:
        for event in events:
            self.stdout.feed_data(to_json(event).encode() + b"\n")

    def ends(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self.stdout.feed_eof()
            self.ended.set()

    async def wait(self) -> int:
        await self.ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self.ends(-number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Bench:
    """A cluster of fake processes."""

    def __init__(self, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.processes: list[FakeProcess] = []
        self.commands: list[tuple[Any, ...]] = []
        self.rooms: list[str] = []
        self.cluster = Cluster(plan, "http://127.0.0.1:9", plan.out, self.said.append)

        async def start(*arguments: Any, **options: Any) -> FakeProcess:
            self.commands.append(arguments)
            self.rooms.append(options["env"]["P2PNODE_ROOM"])
            self.processes.append(FakeProcess())
            return self.processes[-1]

        monkeypatch.setattr(demo_module.asyncio, "create_subprocess_exec", start)

    def add(self, number: int, hash: str | None = None, *, killed: bool = False) -> Node:
        """A node that has ended, with this hash or without a result."""
        node = Node(number, None)  # type: ignore[arg-type]
        node.killed = killed
        node.exit_code = -9 if killed else 0 if hash else 12
        if hash is not None:
            node.finished = msgspec.structs.replace(FINISHED, hash=hash)
        self.cluster._nodes[number] = node
        return node

    def trained(self) -> None:
        self.cluster._tokens_per_step = 2048
        for step in range(1, 11):
            self.cluster._on_step(
                msgspec.structs.replace(STEP, step=step, steps=10, loss=5.0 - 0.1 * step)
            )


@pytest.fixture
def bench(plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    return lambda **changes: Bench(plan(**changes), monkeypatch)


# The verdict


def test_equal_hashes_are_success(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.trained()
    for number in (1, 2, 3):
        b.add(number, "ab" * 32)
    assert b.cluster.conclude() == 0
    said = "\n".join(b.said)
    assert said.count("ab" * 32) == 3
    assert "loss 4.9000 -> 4.0000" in said
    assert "/runs/x.safetensors" in said
    assert "one run, one answer" in said


def test_different_hashes_are_divergence(bench: Callable[..., Bench], plan: Any) -> None:
    b = bench()
    b.trained()
    for number, digest in ((1, "ab"), (2, "ab"), (3, "cd")):
        b.add(number, digest * 32)
    assert b.cluster.conclude() == DivergenceError.exit_code
    assert "THE NODES DIFFER" in "\n".join(b.said)
    assert "one run, one answer" not in "\n".join(b.said)
    assert str(plan().out) in b.said[-1]


def test_a_node_without_a_result_is_failure(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.trained()
    b.add(1, "ab" * 32)
    b.add(2)
    assert b.cluster.conclude() == 1
    assert any("node-2 ended without a result (exit code 12)" in line for line in b.said)


def test_divergence_weighs_more_than_a_lost_node(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.trained()
    b.add(1, "ab" * 32)
    b.add(2, "cd" * 32)
    b.add(3)
    assert b.cluster.conclude() == DivergenceError.exit_code


def test_a_node_that_was_killed_is_no_failure(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.trained()
    b.add(1, killed=True)
    b.add(2, "ab" * 32)
    assert b.cluster.conclude() == 0
    assert not any("node-1" in line for line in b.said)


def test_nobody_finished(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(1)
    b.add(2, killed=True)
    with pytest.raises(P2PNodeError, match="No node finished"):
        b.cluster.conclude()


def test_the_last_line_is_for_programs(
    bench: Callable[..., Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    b = bench(json=True)
    b.trained()
    b.add(1, "ab" * 32)
    b.add(2, "ab" * 32)
    assert b.cluster.conclude() == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["hashes"] == {"node-1": "ab" * 32, "node-2": "ab" * 32}
    assert outcome["steps"] == 10
    assert outcome["first_loss"] == pytest.approx(4.9)
    assert outcome["final_loss"] == pytest.approx(4.0)
    assert outcome["worst_loop_stall_ms"] == 12.6
    assert outcome["checkpoint"] == "/runs/x.safetensors"
    assert outcome["tokens_per_s"] is None or outcome["tokens_per_s"] > 0


# The course of a demo


async def test_the_host_first_then_the_others(bench: Callable[..., Bench]) -> None:
    b = bench(reference=(2,), text=TextChoice(data="texts"))
    run = asyncio.create_task(b.cluster.run())
    await until(lambda: len(b.processes) == 1)
    await asyncio.sleep(0.01)
    assert len(b.processes) == 1  # the room is not open yet
    b.processes[0].tells(Invite(server="http://h", code="c", command="join"))
    await until(lambda: len(b.processes) == 3)
    host, reference, guest = b.commands
    assert host[host.index("--start-when") + 1] == "3"
    assert host[host.index("--steps") + 1] == "10"
    assert "--guest" not in host
    assert "--preset" in host
    for command in (reference, guest):
        assert "--guest" in command
        assert "--preset" not in command
        assert command[command.index("--data") + 1] == "texts"
        assert "--approve" in command
    assert ["--reference" in command for command in b.commands] == [False, True, False]
    # The code goes by the environment: command lines can be seen by everybody on the machine.
    assert len(set(b.rooms)) == 1
    assert b.rooms[0] not in " ".join(map(str, host))
    for process in b.processes:
        process.tells(STARTED, FINISHED)
        process.ends(0)
    await asyncio.wait_for(run, 30)


async def test_kills_and_joins_happen_once_at_their_step(bench: Callable[..., Bench]) -> None:
    b = bench(kills=((2, 5),), joins=((4, 3),))
    run = asyncio.create_task(b.cluster.run())
    await until(lambda: b.processes)
    b.processes[0].tells(Invite(server="http://h", code="c", command="join"), STARTED)
    await until(lambda: len(b.processes) == 3)
    host, second = b.processes[:2]
    second.tells(Computing(step=4, slots=1))
    await until(lambda: len(b.processes) == 4)
    assert "node-4 joins at step 4" in b.said
    host.tells(Computing(step=5, slots=1))  # not the node that is to be killed
    second.tells(Computing(step=5, slots=1), Computing(step=6, slots=1))
    await until(lambda: second.signals)
    assert second.signals == [signal.SIGKILL]
    assert host.signals == []
    assert "killing node-2 in the middle of step 5" in b.said
    for process in b.processes:
        process.tells(FINISHED) if process.returncode is None else None
        process.ends(0)
    await asyncio.wait_for(run, 30)
    assert len(b.processes) == 4
    assert b.cluster._nodes[2].killed


async def test_progress_is_told_once(bench: Callable[..., Bench]) -> None:
    b = bench(nodes=2)
    run = asyncio.create_task(b.cluster.run())
    await until(lambda: b.processes)
    b.processes[0].tells(Invite(server="http://h", code="c", command="join"))
    await until(lambda: len(b.processes) == 2)
    for process in b.processes:
        process.tells(STARTED, msgspec.structs.replace(STEP, step=10, steps=10))
        process.tells(HeldOut(step=10, loss=2.0), Warn(text="slow disk"))
        process.stdout.feed_data(b"not an event\n")
        process.tells(FINISHED)
        process.ends(0)
    await asyncio.wait_for(run, 30)
    text = "\n".join(b.said)
    assert text.count("50,000 parameters") == 1
    assert text.count("held-out loss") == 1
    assert text.count("step   10/10") == 1
    assert text.count("slow disk") == 2
    assert b.cluster.conclude() == 0


async def test_a_host_that_fails_before_the_run_ends_the_demo(
    bench: Callable[..., Bench],
) -> None:
    """The others would wait for ever: only the host can begin."""
    b = bench()
    run = asyncio.create_task(b.cluster.run())
    await until(lambda: b.processes)
    b.processes[0].tells(Invite(server="http://h", code="c", command="join"))
    await until(lambda: len(b.processes) == 3)
    b.cluster._log_path(1).write_text("error: There is no file 'x'; check --data.\n")
    b.processes[0].ends(DataError.exit_code)
    with pytest.raises(P2PNodeError, match="no file 'x'; check --data") as failed:
        await asyncio.wait_for(run, 30)
    assert failed.value.exit_code == DataError.exit_code
    assert [process.signals for process in b.processes[1:]] == [[signal.SIGTERM]] * 2


@pytest.mark.parametrize(("code", "expected"), [(11, 11), (-9, 1), (0, 1)])
async def test_a_host_that_opens_no_room(
    bench: Callable[..., Bench], code: int, expected: int
) -> None:
    b = bench()
    run = asyncio.create_task(b.cluster.run())
    await until(lambda: b.processes)
    b.processes[0].ends(code)
    with pytest.raises(P2PNodeError, match="did not begin a run: it gave no reason") as failed:
        await asyncio.wait_for(run, 30)
    assert failed.value.exit_code == expected
    assert len(b.processes) == 1


async def test_stop_ends_what_still_runs(bench: Callable[..., Bench]) -> None:
    b = bench()
    run = asyncio.create_task(b.cluster.run())
    await until(lambda: b.processes)
    b.processes[0].tells(Invite(server="http://h", code="c", command="join"))
    await until(lambda: len(b.processes) == 3)
    b.processes[1].ends(0)
    run.cancel()
    await b.cluster.stop()
    assert [process.signals for process in b.processes] == [
        [signal.SIGTERM],
        [],
        [signal.SIGTERM],
    ]


ENDED_POLITELY = """
import os, signal, time
from p2pnode.demo import _end_as_by_ctrl_c
_end_as_by_ctrl_c()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(os.name == "nt", reason="no such signals")
@pytest.mark.parametrize("background", [False, True])
def test_a_polite_kill_interrupts(background: bool) -> None:
    """A shell that starts a job in the background has SIGINT ignored."""
    command = [sys.executable, "-c", ENDED_POLITELY]
    if background:
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    assert subprocess.check_output(command, text=True, timeout=60) == "interrupted\n"
