"""Bad input meets a sentence and its documented exit code, never a traceback."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from p2pnode import errors
from p2pnode.commands.types import EXIT_CODES
from signaling.app import SignalingServer
from tests.integration.commands import ROOT, run_cli
from tests.integration.processes import free_port

CODE = "a-room-code-of-our-own-93417562-long-enough"


def fails(error: type[errors.P2PNodeError], *arguments: str) -> str:
    """Run, check exit code and form of the message, return it."""
    result = run_cli(*arguments)
    assert result.returncode == error.exit_code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    return result.stderr


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async with SignalingServer("127.0.0.1", 0) as running:
        yield running.url


@pytest.fixture
def home(tmp_path: Path) -> list[str]:
    return ["--home", str(tmp_path / "home"), "--out", str(tmp_path / "out")]


def test_every_exit_code_is_documented() -> None:
    def leaves(kind: type[errors.P2PNodeError]) -> Iterator[int]:
        yield kind.exit_code
        for child in kind.__subclasses__():
            yield from leaves(child)

    for code in set(leaves(errors.P2PNodeError)):
        assert f"\n  {code:<4} " in EXIT_CODES or f"  {code:<4} " in EXIT_CODES, code


def test_no_server_given(home: list[str]) -> None:
    assert "join --serve" in fails(errors.UsageError, "join", *home)


def test_server_not_reachable(home: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said = fails(errors.ServerUnreachableError, "join", "--signal", url, "--room", CODE, *home)
    assert "signaling serve" in said


async def test_mistyped_code(server: str, home: list[str]) -> None:
    from p2pnode.protocol.code import generate_code

    first, second, *rest = generate_code().split("-")
    swapped = "-".join([second, first, *rest])
    said = await asyncio.to_thread(
        fails, errors.RoomCodeError, "join", "--signal", server, "--room", swapped, *home
    )
    assert "mistyped" in said


async def test_room_that_nobody_hosts(server: str, home: list[str]) -> None:
    await asyncio.to_thread(
        fails,
        errors.RoomCodeError,
        *("join", "--signal", server, "--room", CODE, "--guest", *home),
    )


async def test_port_in_use(server: str, home: list[str]) -> None:
    port = server.rsplit(":", 1)[1]
    await asyncio.to_thread(
        fails,
        errors.AddressInUseError,
        "join",
        "--serve",
        "--bind",
        "127.0.0.1",
        "--port",
        port,
        *home,
    )
    serve = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "signaling", "serve", "--host", "127.0.0.1", "--port", port],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert serve.returncode == errors.AddressInUseError.exit_code
    assert "Traceback" not in serve.stderr


async def test_a_host_at_which_nobody_can_type_says_so(server: str, home: list[str]) -> None:
    def said_by_host() -> str:
        join = (sys.executable, "-m", "p2pnode", "join", "--signal", server, "--room", CODE, *home)
        with subprocess.Popen(
            join, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as host:
            assert host.stdout is not None
            line = next((line for line in host.stdout if "--start-when" in line), "")
            host.terminate()
        assert host.returncode == 0
        return line

    assert "nobody can type" in await asyncio.to_thread(said_by_host)


async def test_a_second_process_with_the_key_does_not_push_the_first_out(
    server: str, home: list[str], tmp_path: Path
) -> None:
    def said_by_second() -> str:
        join = ("join", "--signal", server, "--room", CODE, *home)
        with subprocess.Popen(
            (sys.executable, "-m", "p2pnode", *join),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as first:
            assert first.stdout is not None
            assert any("You are the host" in line for line in first.stdout)
            # If it took the first one's place it would be the host, and end.
            run = ("--start-when", "1", "--preset", "nano", "--steps", "1")
            said = fails(errors.IdentityError, *join, *run, "--out", str(tmp_path / "other"))
            first.terminate()
        assert first.returncode == 0
        return said

    assert "--home" in await asyncio.to_thread(said_by_second)


async def test_missing_data(server: str, home: list[str], tmp_path: Path) -> None:
    said = await asyncio.to_thread(
        fails,
        errors.DataError,
        *("join", "--signal", server, "--room", CODE, "--start-when", "1"),
        *("--data", str(tmp_path / "nothing-here"), *home),
    )
    assert "nothing-here" in said


@pytest.mark.parametrize(
    ("flag", "value", "error"),
    [
        ("--data", "nothing-here", errors.DataError),
        ("--tokenizer", "nothing-here.json", errors.DataError),
        ("--tokenizer", "README.md", errors.DataError),
        ("--resume", "nothing-here", errors.CheckpointError),
        ("--init", "nothing-here", errors.ExportError),
    ],
)
async def test_slips_are_seen_before_anybody_joins(
    flag: str, value: str, error: type[errors.P2PNodeError], server: str, home: list[str]
) -> None:
    join = ("join", "--signal", server, "--room", CODE, "--start-when", "1", flag, value, *home)
    result = await asyncio.to_thread(run_cli, *join)
    assert result.returncode == error.exit_code, result.stderr
    assert result.stderr.startswith("error: ")
    assert "You are the host" not in result.stdout


async def test_unreadable_checkpoint_at_resume(
    server: str, home: list[str], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 100)
    await asyncio.to_thread(
        fails,
        errors.CheckpointError,
        *("join", "--signal", server, "--room", CODE, "--start-when", "1"),
        *("--resume", str(broken), *home),
    )


def test_generate_from_nothing(tmp_path: Path) -> None:
    fails(errors.CheckpointError, "generate", str(tmp_path))
    fails(errors.CheckpointError, "generate", str(tmp_path / "missing.safetensors"))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--width", "30", "--heads", "4"], "heads"),
        (["--lr", "nan"], "lr"),
        (["--slots", "5000"], "slots"),
        (["--seq-len", "8192", "--micro-batch", "1000"], "exact"),
    ],
)
def test_impossible_run(options: list[str], word: str, home: list[str]) -> None:
    said = fails(
        errors.ConfigError, "join", "--signal", "127.0.0.1:9", "--room", CODE, *options, *home
    )
    assert word in said


async def test_a_run_that_does_not_fit_in_memory(server: str, home: list[str]) -> None:
    """Half a terabyte: known, and said with its numbers, before any of it is taken."""
    size = ("--width", "4096", "--layers", "64", "--heads", "32", "--ffn", "1024")
    said = await asyncio.to_thread(
        fails,
        errors.MemoryNeedError,
        *("join", "--signal", server, "--room", CODE, "--start-when", "1", *size, *home),
    )
    assert re.search(r"takes up to [\d,.]+ GB of memory \(program 231 MB, model", said)
    assert "can be had here" in said


def test_impossible_demo() -> None:
    fails(errors.UsageError, "demo", "--nodes", "1", "--kill", "1@3")
    fails(errors.UsageError, "demo", "--nodes", "2", "--kill", "7@3")
    fails(errors.UsageError, "demo", "--nodes", "2", "--join", "2@3")


def test_flags_that_are_not_numbers() -> None:
    result = run_cli("demo", "--kill", "two@ten")
    assert result.returncode == errors.UsageError.exit_code
    assert "2@10" in result.stderr
