"""Server and three nodes in real terminals: the host approves one by one and refuses one."""

import os
import re
from pathlib import Path

import pytest

from p2pnode.errors import RefusedError
from tests.integration.commands import run_cli
from tests.integration.terminals import CODE, Room, Terminal


def test_a_host_approves_and_refuses(terminals: list[Terminal], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for source in ("asyncio/base_events.py", "argparse.py", "typing.py", "doctest.py"):
        content = (Path(os.__file__).parent / source).read_bytes()
        (text / Path(source).name).write_bytes(content)

    room = Room(terminals, tmp_path)
    host = room.join("alice", "--preset", "nano", "--steps", "20", "--data", str(text))
    host.sees("You are the host")
    bob = room.join("bob", "--guest")
    bob.sees("Waiting for the host")
    host.sees(r"Let bob \([a-z2-7]{4}-[a-z2-7]{4}\) in\?")
    host.types("y")
    bob.sees("The host has let this machine in")
    host.sees("bob .* is connected")
    mallory = room.join("mallory", "--guest")
    host.sees(r"Let mallory .* in\?")
    host.types("n")
    mallory.sees("error: The host")
    assert mallory.ends() == RefusedError.exit_code
    carol = room.join("carol", "--guest")
    host.sees(r"Let carol .* in\?")
    host.types("yes")
    host.sees("carol .* is connected")
    host.types("peers")
    host.sees("this machine")
    host.types("nonsense")
    host.sees("no command 'nonsense'")
    host.types("start")
    hashes = set()
    for terminal in (host, bob, carol):
        terminal.sees("Finished at step 20")
        hashes.add(terminal.sees(r"hash [0-9a-f]{64}"))
    assert len(hashes) == 1
    for terminal in (host, bob, carol):
        assert terminal.ends() == 0
    room.server.child.sendintr()
    assert room.server.ends() == 0

    # bob had no text of his own: it came from the host.
    files = {p.read_bytes() for p in tmp_path.glob("*-out/*-step-00000020.safetensors")}
    assert len(files) == 1
    said = run_cli("generate", str(tmp_path / "bob-out"), "--prompt", "def ", "--tokens", "80")
    assert said.returncode == 0
    assert said.stdout.startswith("def ")
    assert len(said.stdout) > 40


def test_known_and_blocked_devices(terminals: list[Terminal], tmp_path: Path) -> None:
    room = Room(terminals, tmp_path)
    host = room.join("alice", "--approve", "known")
    host.sees("You are the host")
    bob = room.join("bob", "--guest")
    host.sees(r"Let bob .* in\?")
    host.types("y")
    host.sees("bob .* is connected")
    mallory = room.join("mallory", "--guest")
    host.sees(r"Let mallory .* in\?")
    host.types("b")
    assert mallory.ends() == RefusedError.exit_code
    for terminal in (bob, host):
        terminal.types("quit")
        assert terminal.ends() == 0

    # Another server and another room: nobody is asked about again.
    listed = run_cli("devices", "--home", str(tmp_path / "alice")).stdout
    assert re.search(r"known +let in 1 times +bob\n", listed)
    assert re.search(r"blocked +let in 0 times +mallory\n", listed)
    room = Room(terminals, tmp_path, code=CODE + "-other")
    host = room.join("alice", "--approve", "known")
    host.sees("You are the host")
    assert room.join("mallory", "--guest").ends() == RefusedError.exit_code
    room.join("bob", "--guest").sees("alice .* is connected")
    host.sees("bob .* is connected")


def test_kick_and_stop(terminals: list[Terminal], tmp_path: Path) -> None:
    room = Room(terminals, tmp_path)
    host = room.join(
        *("alice", "--preset", "nano", "--steps", "100000", "--approve", "all"),
        *("--start-when", "3"),
    )
    host.sees("You are the host")
    bob, carol = room.join("bob", "--guest"), room.join("carol", "--guest")
    for terminal in (host, bob, carol):
        terminal.sees(r"step \d+/100000")
    host.types("peers")
    listed = host.sees(r"[a-z2-7]{4}-[a-z2-7]{4}  carol")
    host.types(f"kick {listed.split()[0]}")
    host.sees(r"carol \([a-z2-7-]{9}\) left: no longer a member")
    carol.sees("error: The host removed this node")
    assert carol.ends() == RefusedError.exit_code
    host.sees(r"step \d+/100000")
    host.types("stop")
    last = host.sees(r"ends after step \d+").split()[-1]
    hashes = set()
    for terminal in (host, bob):
        terminal.sees(f"Finished at step {last}")
        hashes.add(terminal.sees(r"hash [0-9a-f]{64}"))
        assert terminal.ends() == 0
    assert len(hashes) == 1


def test_nearby_with_words_to_compare(terminals: list[Terminal], tmp_path: Path) -> None:
    server = Terminal(
        *("signaling", "serve", "--host", "127.0.0.1", "--port", "0", "--group-private")
    )
    terminals.append(server)
    server.sees("warning: --group-private")
    url = server.sees(r"http://127\.0\.0\.1:\d+")

    def join(name: str, *more: str) -> Terminal:
        terminal = Terminal(
            *("p2pnode", "join", "--nearby", "--signal", url, "--name", name),
            *("--home", str(tmp_path / name), "--out", str(tmp_path / f"{name}-out"), *more),
        )
        terminals.append(terminal)
        return terminal

    host = join("alice", "--preset", "nano", "--steps", "5")
    host.sees("You are the host")
    host.sees("join --nearby --guest --signal")
    for name in ("bob", "carol"):
        guest = join(name, "--guest")
        words = guest.sees(r"Words to compare: [a-z]+( [a-z]+){5}").split(": ")[1]
        host.sees(rf"Let {name} \([a-z2-7-]{{9}}\) in\? Only if its terminal shows: {words}\.")
        host.types("y")
        guest.sees(rf"Enter the room of [a-z2-7-]{{9}}\? Only if its terminal shows: {words}\.")
        guest.types("y")
        host.sees(f"{name} .* is connected")
    host.types("start")
    hashes = set()
    for terminal in terminals[1:]:
        terminal.sees("Finished at step 5")
        hashes.add(terminal.sees(r"hash [0-9a-f]{64}"))
        assert terminal.ends() == 0
    assert len(hashes) == 1


def test_nearby_on_one_machine_may_let_all_in(terminals: list[Terminal], tmp_path: Path) -> None:
    run = ("--preset", "nano", "--steps", "3", "--start-when", "2", "--approve", "all")
    host = Terminal(
        *("p2pnode", "join", "--nearby", "--serve", "--bind", "127.0.0.1", "--port", "0", *run),
        *("--home", str(tmp_path / "a"), "--out", str(tmp_path / "o")),
    )
    terminals.append(host)
    host.sees("warning: whoever reaches this server")
    url = host.sees(r"--nearby --guest --signal \S+").split()[-1]
    guest = Terminal(
        *("p2pnode", "join", "--nearby", "--signal", url, "--home", str(tmp_path / "b")),
        *("--out", str(tmp_path / "p"), "--approve", "all"),
    )
    terminals.append(guest)
    guest.sees("Words to compare")
    hashes = set()
    for terminal in terminals:
        hashes.add(terminal.sees(r"hash [0-9a-f]{64}"))
        assert terminal.ends() == 0
    assert len(hashes) == 1


@pytest.mark.parametrize("how", ["quit", "interrupt", "terminate", "hang up"])
def test_leaving_with_a_question_open(how: str, terminals: list[Terminal], tmp_path: Path) -> None:
    host = Terminal(
        *("p2pnode", "join", "--serve", "--bind", "127.0.0.1", "--port", "0"),
        *("--home", str(tmp_path / "a"), "--out", str(tmp_path / "o")),
    )
    terminals.append(host)
    invite = host.sees(r"--room \S+@\S+").split()[1]
    guest = Terminal(
        *("p2pnode", "join", "--guest", "--room", invite, "--home", str(tmp_path / "b")),
        *("--name", "bob", "--out", str(tmp_path / "p")),
    )
    terminals.append(guest)
    host.sees(r"Let bob .* in\?")
    if how == "quit":
        host.types("quit")
    elif how == "interrupt":
        host.child.sendintr()
    else:
        host.child.kill(15 if how == "terminate" else 1)
    assert host.ends() == 0
