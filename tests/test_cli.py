"""The command line itself: help, flags that contradict, codes and invites, errors and exit codes.

What needs a server or a run is in tests/integration.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2pnode import __version__, cli, errors
from p2pnode import demo as demo_module
from p2pnode import join as join_module
from p2pnode.commands import generate
from p2pnode.config import PRESETS, RunOptions
from p2pnode.node_config import NodeConfig, TextChoice
from p2pnode.protocol.code import generate_code

ROOT = Path(__file__).parents[1]
CODE = "a-room-code-of-our-own-93417562-long-enough"
HTTP = "http://example.org:8765"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("P2PNODE_HOME", "P2PNODE_ROOM", "P2PNODE_SIGNAL", "P2PNODE_LOG", "P2PNODE_TURN"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


class Joined:
    """What `join` was called with."""

    config: NodeConfig
    options: RunOptions
    data: str | None
    resume: str | None
    serve: tuple[str, int] | None


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Joined]:
    """Run `join` on the command line without a node behind it."""
    seen = Joined()

    async def fake(config: Any, options: Any, data: Any, resume: Any, serve: Any) -> int:
        seen.config, seen.options, seen.data = config, options, data
        seen.resume, seen.serve = resume, serve
        return 0

    monkeypatch.setattr(join_module, "join", fake)

    def run(*arguments: str) -> Joined:
        assert cli.main(["join", *arguments]) == 0
        return seen

    return run


def fails(*arguments: str) -> tuple[int, str]:
    """Exit code and what was said, of a command that must fail before anything is started."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            code = cli.main(arguments)
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
    assert code != 0
    assert "Traceback" not in said.getvalue()
    return code, said.getvalue()


# Help


@pytest.mark.parametrize("command", [[], ["join"], ["demo"], ["generate"]])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "exit codes:" in said
    assert f"python -m p2pnode {' '.join(command)}".strip() in said
    if command in (["join"], ["demo"]):
        for name, preset in PRESETS.items():
            assert name in said
            assert preset.about.split(",")[0] in " ".join(said.split())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"p2pnode {__version__}\n"


def test_help_needs_nothing_heavy() -> None:
    """Help and mistakes answer at once: no network, no compiler is loaded for them."""
    code = (
        "import sys, contextlib\n"
        "from p2pnode.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['join', '--help'])\n"
        "heavy = {'numba', 'aiortc', 'aiohttp', 'numpy', 'prompt_toolkit'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


# Exit codes


def all_errors(kind: type[errors.P2PNodeError]) -> list[type[errors.P2PNodeError]]:
    return [kind, *(e for child in kind.__subclasses__() for e in all_errors(child))]


@pytest.mark.parametrize("kind", all_errors(errors.P2PNodeError), ids=lambda kind: kind.__name__)
def test_an_error_becomes_a_sentence_and_its_code(
    kind: type[errors.P2PNodeError],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fail(*arguments: object) -> int:
        raise kind("what went wrong \x1b[2J")

    monkeypatch.setattr(join_module, "join", fail)
    assert cli.main(["join", "--signal", HTTP]) == kind.exit_code
    said = capsys.readouterr()
    assert said.err == "error: what went wrong \\x1b[2J\n"
    assert said.out == ""


def test_exit_codes_tell_errors_apart() -> None:
    codes = [kind.exit_code for kind in errors.P2PNodeError.__subclasses__()]
    special = [code for code in codes if code != errors.P2PNodeError.exit_code]
    assert len(special) == len(set(special))
    assert 0 not in codes


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(join_module, "join", interrupted)
    assert cli.main(["join", "--signal", HTTP]) == 130


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bug(*arguments: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(join_module, "join", bug)
    with pytest.raises(ZeroDivisionError):
        cli.main(["join", "--signal", HTTP])


SCRIPT = """
import sys
from p2pnode import cli, join
async def talk(*arguments):
    {body}
    return {code}
join.join = talk
sys.exit(cli.main(["join", "--signal", "http://example.org"]))
"""


def script(body: str, code: int = 0) -> list[str]:
    return [sys.executable, "-c", SCRIPT.format(body=body, code=code)]


@pytest.mark.parametrize("body", ["print('x' * 9)", "print('x' * 999_999)"], ids=["late", "early"])
def test_a_closed_pipe_is_no_error(body: str) -> None:
    """As in `… | head -1`, also when the end of the output is noticed only at the end."""
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        script(body),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=buffered,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_lacks_a_letter_is_no_error() -> None:
    """A peer's name must not be able to end this node."""
    done = subprocess.run(
        script(r"print('\u0416\U0001f6b2')", code=3),
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 3
    assert done.stdout.strip() == rb"\u0416\U0001f6b2"


# Flags


def test_turn_servers_can_come_from_the_environment(
    join: Callable[..., Joined], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command line can be read by every user of the machine."""
    monkeypatch.setenv("P2PNODE_TURN", "turn:u:p@a  turns:u:p@b:1")
    seen = join("--signal", HTTP, "--stun", "stun:c")
    assert seen.config.ice_servers == ("stun:c", "turn:u:p@a", "turns:u:p@b:1")
    seen = join("--signal", HTTP, "--turn", "turn:u:p@d")
    assert seen.config.ice_servers == ("turn:u:p@d",)


@pytest.mark.parametrize("flags", [("--stun", "turn:u:p@a"), ("--turn", "stun:a")])
def test_servers_of_the_other_kind_are_refused(
    flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["join", "--signal", HTTP, *flags]) == 2
    assert "Error" not in capsys.readouterr().err


def test_join_passes_on_what_it_was_told(join: Callable[..., Joined], tmp_path: Path) -> None:
    seen = join(
        *("--signal", HTTP, "--room", CODE, "--name", "alice", "--guest", "--approve", "all"),
        *("--start-when", "3", "--preset", "nano", "--data", "texts", "--steps", "7"),
        *("--slots", "4", "--micro-batch", "2", "--lr", "0.5", "--warmup", "1", "--seed", "9"),
        *("--eval-every", "0", "--width", "48", "--layers", "2", "--heads", "4", "--ffn", "80"),
        *("--seq-len", "32", "--resume", "auto", "--out", str(tmp_path), "--home", str(tmp_path)),
        *("--checkpoint-every", "5", "--keep", "2", "--reference", "--addresses", "all"),
        *("--threads", "3"),
        *("--stun", "stun:a:1", "--turn", "turn:u:p@b:2", "--json-events"),
    )
    assert seen.config == NodeConfig(
        signal=HTTP,
        code=CODE,
        name="alice",
        home=tmp_path,
        out=tmp_path,
        guest=True,
        approve="all",
        start_when=3,
        reference=True,
        threads=3,
        addresses="all",
        ice_servers=("stun:a:1", "turn:u:p@b:2"),
        checkpoint_every=5,
        keep=2,
        json_events=True,
    )
    assert seen.options == RunOptions(
        preset="nano",
        width=48,
        layers=2,
        heads=4,
        ffn=80,
        seq_len=32,
        micro_batch=2,
        slots=4,
        steps=7,
        lr=0.5,
        warmup=1,
        seed=9,
        eval_every=0,
    )
    assert (seen.data, seen.resume, seen.serve) == (TextChoice("texts"), "auto", None)


def test_join_by_itself(join: Callable[..., Joined]) -> None:
    seen = join("--signal", HTTP)
    assert seen.options == RunOptions()
    config = seen.config
    assert (config.code, config.name, config.approve, config.guest) == (None, "", "ask", False)
    assert config.start_when is None


def test_serve(join: Callable[..., Joined], bare: pytest.MonkeyPatch) -> None:
    assert join("--serve").serve == ("0.0.0.0", 8765)
    assert join("--serve", "--bind", "127.0.0.1", "--port", "0").serve == ("127.0.0.1", 0)
    bare.setenv("P2PNODE_SIGNAL", HTTP)  # what is set for every day does not forbid it
    seen = join("--serve", "--room", CODE)
    assert (seen.config.signal, seen.config.code) == ("", CODE)


def test_invites(join: Callable[..., Joined], bare: pytest.MonkeyPatch) -> None:
    code = generate_code()
    seen = join("--room", f"{code}@{HTTP}")
    assert (seen.config.code, seen.config.signal) == (code, HTTP)
    seen = join("--room", f" {code.replace('-', ' ').upper()} @ {HTTP} ")
    assert (seen.config.code, seen.config.signal) == (code, HTTP)
    # The flag wins over the invite, the invite over the environment.
    bare.setenv("P2PNODE_SIGNAL", "http://third:3")
    assert join("--room", f"{code}@{HTTP}").config.signal == HTTP
    assert join("--room", f"{code}@{HTTP}", "--signal", "http://two:2").config.signal == (
        "http://two:2"
    )
    assert join("--room", code).config.signal == "http://third:3"
    bare.setenv("P2PNODE_ROOM", f"{code}@{HTTP}")
    seen = join()
    assert (seen.config.code, seen.config.signal) == (code, HTTP)


def test_the_room_from_a_file(join: Callable[..., Joined], tmp_path: Path) -> None:
    file = tmp_path / "room"
    file.write_text(f"{CODE}@{HTTP}\n")
    seen = join("--room-file", str(file))
    assert (seen.config.code, seen.config.signal) == (CODE, HTTP)


def test_nearby_needs_no_code(join: Callable[..., Joined], bare: pytest.MonkeyPatch) -> None:
    bare.setenv("P2PNODE_ROOM", CODE)
    seen = join("--nearby", "--signal", HTTP)
    assert seen.config.nearby
    assert seen.config.code is None
    assert not join("--signal", HTTP).config.nearby


def test_letting_all_nearby_in_is_for_one_machine_only(join: Callable[..., Joined]) -> None:
    for server, allowed in ((HTTP, False), ("http://127.0.0.1:1", True), ("192.168.1.5", False)):
        config = join("--nearby", "--approve", "all", "--signal", server).config
        with contextlib.nullcontext() if allowed else pytest.raises(errors.UsageError):
            join_module._check_nearby(config)


def test_home_from_the_environment(
    join: Callable[..., Joined], bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare.setenv("P2PNODE_HOME", str(tmp_path))
    assert join("--signal", HTTP).config.home == tmp_path
    assert join("--signal", HTTP, "--home", "here").config.home == Path("here")


def in_shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'"$0" -m p2pnode {command}', sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_below_the_output_is_a_sentence() -> None:
    done = in_shell("rehearse --seeds 1 > /dev/full")
    assert done.returncode == errors.CheckpointError.exit_code
    assert done.stderr == "error: The output cannot be written: No space left on device.\n"


@pytest.mark.skipif(os.name == "nt", reason="no such shell")
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    done = in_shell(f"rehearse --seeds 1 {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["join"], errors.UsageError, "join --serve"),
        (["join", "--serve", "--signal", HTTP], errors.UsageError, "--serve"),
        (["join", "--serve", "--room", f"{CODE}@{HTTP}"], errors.UsageError, "--serve"),
        (["join", "--room", CODE, "--room-file", "x"], errors.UsageError, "not by both"),
        (["join", "--room-file", "no-such-file"], errors.UsageError, "no-such-file"),
        (["join", "--signal", HTTP, "--room", "weak"], errors.RoomCodeError, "guessed"),
        (["join", "--nearby", "--signal", HTTP, "--room", CODE], errors.UsageError, "one or the"),
        (
            ["join", "--nearby", "--approve", "all", "--signal", HTTP],
            errors.UsageError,
            "only at a server on this machine",
        ),
        (["join", "--guest", "--signal", HTTP], errors.UsageError, "give the host's code"),
        (["join", "--guest", "--serve"], errors.UsageError, "give the host's code"),
        (["join", "--signal", HTTP, "--start-when", "65"], errors.UsageError, "at most 64"),
        (["join", "--signal", HTTP, "--room", ""], errors.RoomCodeError, "empty"),
        (["join", "--signal", HTTP, "--room-file", os.devnull], errors.RoomCodeError, "empty"),
        (["join", "--signal", HTTP, "--room", f"@{HTTP}"], errors.RoomCodeError, "empty"),
        (["demo", "--lr", "nan"], errors.ConfigError, "lr"),
        (["demo", "--steps", "10000001"], errors.ConfigError, "steps"),
        (["demo", "--nodes", "65"], errors.UsageError, "64"),
        (["demo", "--reference-nodes", "4"], errors.UsageError, "no node 4"),
        (["generate", "no-such-file"], errors.CheckpointError, "no-such-file"),
    ],
)
def test_what_makes_no_sense(
    arguments: list[str], error: type[errors.P2PNodeError], words: str
) -> None:
    code, said = fails(*arguments)
    assert code == error.exit_code
    assert said.startswith("error: ")
    assert words in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["join", "--sing"], "--sing"),
        (["join", "--preset", "huge"], "huge"),
        (["join", "--approve", "some"], "some"),
        (["join", "--port", "65536"], "'65536' is not a port"),
        (["join", "--port", "http"], "'http' is not a port"),
        (["join", "--start-when", "0"], "'0' is not a positive whole number"),
        (["join", "--steps", "many"], "'many' is not a positive whole number"),
        (["join", "--steps", "-3"], "'-3' is not a positive whole number"),
        (["join", "--lr", "fast"], "fast"),
        (["join", "--seed", "0x7"], "0x7"),
        (["demo", "--kill", "2"], "'2' is not NODE@STEP"),
        (["demo", "--kill", "0@3"], "'0@3' is not NODE@STEP"),
        (["demo", "--join", "2@"], "'2@' is not NODE@STEP"),
        (["demo", "--reference-nodes", "1,,2"], "not a list of node numbers"),
        (["generate"], "checkpoint"),
        (["generate", "x", "--tokens", "0"], "'0' is not a positive whole number"),
    ],
)
def test_what_cannot_be_parsed(arguments: list[str], words: str) -> None:
    code, said = fails(*arguments)
    assert code == errors.UsageError.exit_code
    assert words in said
    assert "_positive" not in said  # no names of ours


def test_demo_passes_on_what_it_was_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans: list[demo_module.Plan] = []
    monkeypatch.setattr(demo_module, "demo", lambda plan: plans.append(plan) or 0)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo"]) == 0
    assert cli.main(
        [
            *("demo", "--nodes", "2", "--kill", "1@5", "--kill", "2@6", "--join", "3@7"),
            *("--reference-nodes", "2,3", "--out", "there", "--data", "texts", "--json"),
            *("--column", "body", "--tokenizer", "words.json"),
            *("--steps", "9"),
        ]
    ) == (0)
    plain, full = plans
    assert plain == demo_module.Plan(
        nodes=3,
        kills=(),
        joins=(),
        reference=(),
        out=Path("p2pnode-runs/demo-1"),
        text=TextChoice(),
        options=RunOptions(preset="nano"),
        json=False,
    )
    assert full == demo_module.Plan(
        nodes=2,
        kills=((1, 5), (2, 6)),
        joins=((3, 7),),
        reference=(2, 3),
        out=Path("there"),
        text=TextChoice("texts", "body", "words.json"),
        options=RunOptions(preset="nano", steps=9),
        json=True,
    )


def test_generate_passes_on_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def fake(checkpoint: Path, **options: Any) -> int:
        calls.append((checkpoint, options))
        return 0

    monkeypatch.setattr(generate, "generate", fake)
    assert cli.main(["generate", "x", "--prompt", "Once", "--tokens", "5", "--top-k", "0"]) == 0
    ((checkpoint, options),) = calls
    assert checkpoint == Path("x")
    assert options == {
        "prompt": "Once",
        "tokens": 5,
        "temperature": 0.8,
        "top_k": 0,
        "top_p": 1.0,
        "seed": 0,
        "reference": False,
    }


def test_impossible_runs_stop_before_a_server_is_started() -> None:
    config = NodeConfig(signal="", code=None, name="", home=Path("h"), out=Path("o"))
    with pytest.raises(errors.ConfigError, match="slots"):
        asyncio.run(
            join_module.join(config, RunOptions(slots=5_000), None, None, ("not an address", 0))
        )


@pytest.mark.parametrize("level", [None, "debug"])
def test_words_in_log_records_do_not_reach_the_terminal_raw(
    level: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library may log what a stranger sent, such as a TURN server's reason for saying no."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("p2pnode"), "level", logging.NOTSET)
    cli._set_up_log(level)
    logging.getLogger("aioice.turn").warning("401 %s", "\x1b[2J\r\x9b31m\u202e\nforged: line")
    try:
        raise ValueError("\x1b]0;title\x07")
    except ValueError:
        logging.getLogger("asyncio").exception("never retrieved")
    err = capsys.readouterr().err
    assert "\\x1b[2J" in err
    assert all(line.isprintable() for line in err.split("\n"))
    assert not any(line.startswith("forged") for line in err.split("\n"))
    assert "Traceback" in err


def test_an_unknown_log_level_is_a_sentence(
    bare: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare.setenv("P2PNODE_LOG", "loud\x1b[2J")
    assert cli.main(["devices", "list"]) == errors.UsageError.exit_code
    assert "P2PNODE_LOG is 'loud" in capsys.readouterr().err
