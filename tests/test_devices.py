"""The devices an owner has decided about: the file and the command."""

import stat
from pathlib import Path

import pytest

from p2pnode import cli
from p2pnode import devices as module
from p2pnode.devices import Devices
from p2pnode.errors import IdentityError
from p2pnode.protocol.identity import short_id

ONE, TWO = b"1" * 32, b"2" * 32


@pytest.fixture
def store(tmp_path: Path) -> Devices:
    return Devices(tmp_path / "home")


def test_nothing_is_known_at_first(store: Devices) -> None:
    assert store.all() == []
    assert store.known() == store.blocked() == frozenset()


def test_decisions_are_remembered(store: Devices) -> None:
    store.decide(ONE, "one", "known")
    store.decide(TWO, "two", "blocked")
    store.decide(ONE, "renamed", "known")
    again = Devices(store.path.parent)
    assert again.known() == {ONE}
    assert again.blocked() == {TWO}
    assert [(d.name, d.times) for d in again.all()] == [("one", 2), ("two", 0)], "first names stay"
    store.decide(ONE, "one", "blocked")
    assert again.blocked() == {ONE, TWO}
    store.forget(ONE)
    store.forget(ONE)
    assert again.known() == frozenset()
    assert again.blocked() == {TWO}


def test_a_host_that_was_followed_is_not_thereby_let_in(store: Devices) -> None:
    store.decide(ONE, "", "host")
    assert store.hosts() == {ONE}
    assert store.known() == frozenset()
    store.decide(ONE, "", "known")
    assert store.hosts() == store.known() == {ONE}
    store.decide(ONE, "", "blocked")
    assert store.hosts() == store.known() == frozenset()


def test_the_file_is_for_its_owner(store: Devices) -> None:
    store.decide(ONE, "one", "known")
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'[{"id":"x","name":"y"}]', b"\xff", b"[" * 10_000, b" " * 3_000_000]
)
def test_a_damaged_file_is_a_sentence_and_not_an_empty_one(store: Devices, content: bytes) -> None:
    store.decide(ONE, "one", "blocked")
    store.path.write_bytes(content)
    for use in (store.all, store.known, store.blocked, lambda: store.decide(TWO, "", "known")):
        with pytest.raises(IdentityError, match="is damaged"):
            use()
    assert store.path.read_bytes() == content


def test_names_in_the_file_are_cleaned(store: Devices, capsys: pytest.CaptureFixture[str]) -> None:
    store.decide(ONE, "\x1b[2Jevil\nline", "known")
    text = store.path.read_text(encoding="utf-8").replace("evil", "\\u001b]0;")
    store.path.write_text(text, encoding="utf-8")
    assert cli.main(["devices", "--home", str(store.path.parent)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count("\n") == 1


def test_devices_are_bounded_and_the_blocked_stay(
    store: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEVICES", 3)
    store.decide(ONE, "bad", "blocked")
    for n in range(3, 7):
        store.decide(bytes([n]) * 32, str(n), "known")
    assert [device.name for device in store.all()] == ["bad", "5", "6"]
    for n in range(7, 10):
        store.decide(bytes([n]) * 32, str(n), "blocked")
    assert [device.name for device in store.all()] == ["7", "8", "9"]


def test_the_command(store: Devices, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        code = cli.main(["devices", *arguments, "--home", str(store.path.parent)])
        said = capsys.readouterr()
        return code, said.out + said.err

    assert run() == (0, "No machine has been let in, blocked or followed yet.\n")
    store.decide(ONE, "one", "known")
    store.decide(TWO, "two", "blocked")
    one, two = short_id(ONE), short_id(TWO)
    code, listed = run("list")
    assert code == 0
    assert [line.split() for line in listed.splitlines()] == [
        [one, "known", "let", "in", "1", "times", "one"],
        [two, "blocked", "let", "in", "0", "times", "two"],
    ]
    assert run("block", one)[0] == 0
    assert store.blocked() == {ONE, TWO}
    assert run("allow", two.upper())[0] == 0
    assert store.known() == {TWO}
    assert run("forget", two)[0] == 0
    assert run()[1].startswith(one)
    for wrong in (("forget", two), ("block",), ("forget", "zzzz"), ("list", one)):
        code, said = run(*wrong)
        assert code == 2, wrong
        assert said.startswith("error: ")
    store.decide(TWO, "two", "known")
    common = next(n for n in range(9) if one[:n] != two[:n]) - 1
    if common:
        assert "2 devices have" in run("forget", one[:common])[1]
