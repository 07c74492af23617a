"""Orders typed in real terminals: settings changed while a run goes on, a host that is killed and
the next member in its place. The oracle is a trainer alone with the same chain of settings."""

import re
import signal
import sys
from pathlib import Path

import pytest

from p2pnode.train.checkpoint import load
from p2pnode.train.ledger_lines import read_lines
from tests.integration.terminals import Room, Terminal
from tests.train.helpers import new_trainer, train

HASTY = """
import sys
from p2pnode.protocol import roster_rules, succession
from signaling import limits
succession.TAKEOVER, roster_rules.BELIEVE = 6.0, 3.0
limits.Limits.__init__.__defaults__ = tuple(
    5.0 if field.name == "takeover_seconds" else field.default
    for field in __import__("dataclasses").fields(limits.Limits)
)
limits.LIMITS = limits.Limits()
name = sys.argv[1]
sys.argv[:2] = [name]
__import__("runpy").run_module(name, run_name="__main__", alter_sys=True)
"""
"""A node or server that is given up sooner than a minute: a test has not the time."""


class HastyRoom(Room):
    def _start(self, *arguments: str) -> Terminal:
        terminal = Terminal(*arguments, program=("-c", HASTY))
        self._terminals.append(terminal)
        return terminal


def final_files(folder: Path, *names: str) -> set[Path]:
    """The newest checkpoint of each node."""
    return {max((folder / f"{name}-out").glob("run-*.safetensors"), key=step_of) for name in names}


def step_of(path: Path) -> int:
    return int(path.stem.rsplit("-", 1)[1])


def step_shown(text: str) -> int:
    return int(text.split("/", maxsplit=1)[0].rsplit(maxsplit=1)[-1])


def check_alone(folder: Path, *names: str) -> None:
    """All nodes wrote the same file, and a trainer alone with its configuration makes its state."""
    files = final_files(folder, *names)
    assert len(files) == len(names)
    assert len({path.name for path in files}) == len({path.read_bytes() for path in files}) == 1
    ledgers = [path for name in names for path in (folder / f"{name}-out").glob("run-*.ledger")]
    assert len(ledgers) == len(names)
    assert len({path.read_bytes() for path in ledgers}) == 1
    state = load(files.pop())
    assert [line.entry.step for line, _ in read_lines(ledgers[0])] == [*range(1, state.step + 1)]
    alone = new_trainer(state.config)
    train(alone, state.step)
    assert alone.committed_hash == state.hash()


def test_settings_changed_and_the_run_stopped_at_the_terminal(
    terminals: list[Terminal], tmp_path: Path
) -> None:
    room = Room(terminals, tmp_path)
    host = room.join("alice", "--preset", "nano", "--steps", "5000", "--approve", "all")
    host.sees("You are the host")
    bob = room.join("bob", "--guest")
    host.sees("bob .* is connected")
    bob.types("change lr=0.1")
    bob.sees("Only the host can change a run")
    host.types("change lr=0.1")
    host.sees("only while one goes on")
    host.types("start")
    host.sees(r"step +\d+/5000")
    for mistake, answer in (
        ("change slots=8", "'slots' cannot change while a run goes on"),
        ("change lr=fast", "lr is a number"),
        ("change", "Type what changes"),
        ("change steps=1", "steps must be more than that"),
        ("change lr=7", "lr is 7"),
    ):
        host.types(mistake)
        host.sees(answer)
    host.types("change steps=4000 lr=0.001")
    for terminal in (host, bob):
        said = terminal.sees(
            r"alice changed the settings: after step \d+ the run goes on with 4000"
        )
    changed_at = int(re.findall(r"step (\d+)", said)[0])
    while step_shown(host.sees(r"step +\d+/4000")) <= changed_at:
        pass
    host.types("stop")
    for terminal in (host, bob):
        terminal.sees(r"alice ends the run after step \d+")
    for terminal in (host, bob):
        assert terminal.ends() == 0
    check_alone(tmp_path, "alice", "bob")
    state = load(final_files(tmp_path, "alice").pop())
    assert [past.until for past in state.config.past] == [changed_at]
    assert changed_at < state.step < 4000


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_the_next_in_order_takes_the_place_of_a_killed_host(
    terminals: list[Terminal], tmp_path: Path
) -> None:
    room = HastyRoom(terminals, tmp_path)
    host = room.join("alice", "--preset", "nano", "--steps", "100000")
    host.sees("You are the host")
    bob = room.join("bob", "--guest")
    host.sees("Let bob .* in")
    host.types("y")
    host.sees("bob .* is connected")
    host.types("start")
    bob.sees(r"step +\d+/100000")
    host.child.kill(signal.SIGKILL)
    bob.sees("decides: you are asked about newcomers")
    carol = room.join("carol", "--guest")
    bob.sees("Let carol .* in")
    bob.types("y")
    bob.sees("carol .* is connected")
    carol.sees(r"step +\d+/100000")
    bob.types("stop")
    carol.sees("bob ends the run after step")
    for terminal in (bob, carol):
        assert terminal.ends() == 0
    check_alone(tmp_path, "bob", "carol")
