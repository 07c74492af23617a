"""A ledger that is looked into without being held in memory."""

import itertools
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from p2pnode.commands.report import WINDOW, _Losses
from p2pnode.errors import LedgerError
from p2pnode.train.ledger_file import LedgerFile
from p2pnode.train.ledger_lines import read_lines
from tests.train.ledgers import CONFIG, entry, ledger_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = ledger_of(tmp_path)
    for step in range(1, 31):
        ledger.record(entry(step), CONFIG)
    ledger.close()
    return ledger.path


def test_its_lines_are_those_that_are_read_in_order(path: Path) -> None:
    file = LedgerFile(path)
    lines = [line for line, _ in read_lines(path)]
    assert file.steps == len(lines) == 30
    assert list(file.lines(1, 30)) == lines
    assert list(file.lines(7, 9)) == lines[6:9]
    assert file.line(30) == lines[-1]
    assert file.config == CONFIG


def test_an_unfinished_line_does_not_count(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b'{"digest"')
    assert LedgerFile(path).steps == 30


def test_an_empty_one_and_a_damaged_one_are_refused(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="holds no step"):
        LedgerFile(path)
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(LedgerError, match="damaged"):
        LedgerFile(path)


def test_one_that_changes_meanwhile_is_noticed(path: Path) -> None:
    """As a node that goes back does to its own."""
    file = LedgerFile(path)
    raw = path.read_bytes()
    path.write_bytes(raw[10:])
    with pytest.raises(LedgerError, match="changed meanwhile"):
        file.line(3)
    path.write_bytes(raw)
    first = len(raw.split(b"\n")[0]) + 1
    path.write_bytes(raw[:first] * 3 + raw)
    with pytest.raises(LedgerError, match="changed meanwhile"):
        file.line(2)
    path.unlink()
    with pytest.raises(LedgerError, match="Cannot read"):
        file.line(3)


def test_memory_does_not_follow_the_length(tmp_path: Path) -> None:
    """Each line is large; a few hundred of them are ten times what may be held."""
    ledger = ledger_of(tmp_path)
    for step in range(1, 401):
        ledger.record(msgspec.structs.replace(entry(step), parts="0" * 20_000), CONFIG)
    ledger.close()
    size = ledger.path.stat().st_size
    tracemalloc.start()
    try:
        file = LedgerFile(ledger.path)
        assert sum(line.entry.tokens for line in file.lines(1, 400)) > 0
        losses = _Losses()
        for line, _ in read_lines(ledger.path):
            losses.add(line.entry)
        assert tracemalloc.get_traced_memory()[1] < size / 10
    finally:
        tracemalloc.stop()
    assert losses.count == 400


@pytest.mark.parametrize("steps", [1, 5, 2 * WINDOW, 2 * WINDOW + 1, 9 * WINDOW])
def test_as_many_points_are_drawn_as_can_be_told_apart(steps: int) -> None:
    losses = _Losses()
    for step in range(1, steps + 1):
        losses.add(entry(step))
    drawn = [step for step, _ in losses.points]
    assert min(steps, WINDOW) <= len(drawn) <= 2 * WINDOW
    assert len({b - a for a, b in itertools.pairwise(drawn)}) <= 1, "evenly"
    assert drawn[0] == 1
    assert losses.count == steps
    assert losses.tokens == sum(entry(step).tokens for step in range(1, steps + 1))
