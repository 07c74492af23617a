"""The ledger: one chain of lines for everybody, which crashes, gaps and liars do not spoil."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import msgspec
import pytest

from p2pnode.errors import CheckpointError, LedgerError
from p2pnode.limits import LIMITS
from p2pnode.train import ledger as module
from p2pnode.train.heldout import LAG, best, stops_after
from p2pnode.train.ledger import Ledger
from p2pnode.train.ledger_lines import NOTHING, entry_digest, file_name, read_lines
from tests.train.helpers import micro_config
from tests.train.ledgers import CONFIG, entry, ledger_of


def steps_in(path: Path) -> list[int]:
    return [line.entry.step for line, _ in read_lines(path)]


def test_it_is_a_function_of_the_run_and_chained(tmp_path: Path) -> None:
    one, two = ledger_of(tmp_path / "a"), ledger_of(tmp_path / "b")
    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.path.name == file_name(CONFIG) == f"run-{CONFIG.run_id().hex()[:8]}.ledger"
    before = NOTHING
    for line, made_by in read_lines(one.path):
        before = entry_digest(before, line.entry)
        assert line.digest == before.hex()
        assert made_by == CONFIG
    assert (one.step, one.digest) == (5, before)
    assert one.digest_at(5) == before
    assert one.digest_at(0) is None
    assert one.digest_at(6) is None


def test_changed_settings_stand_where_they_begin(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, [1, 2])
    changed = CONFIG.changed(2, steps=30, lr=None, warmup=None)
    ledger.record(entry(3), changed)
    ledger.record(entry(4), changed)
    lines = list(read_lines(ledger.path))
    stated = [line.entry.config for line, _ in lines]
    assert stated == [CONFIG, None, changed, None]
    assert [made_by.steps for _, made_by in lines] == [20, 20, 30, 30]
    assert file_name(changed) == file_name(CONFIG), "the run keeps its file"


@pytest.mark.parametrize("lost", [1, 20, 200])
def test_a_torn_last_line_is_repaired(tmp_path: Path, lost: int) -> None:
    ledger = ledger_of(tmp_path)
    whole = ledger.path.read_bytes()
    ledger.close()
    ledger.path.write_bytes(whole[:-lost])
    assert steps_in(ledger.path) == [1, 2, 3, 4], "a reader leaves it out"
    again = Ledger(tmp_path, CONFIG)
    assert (again.step, again.problems) == (4, [])
    again.record(entry(5), CONFIG)
    assert again.path.read_bytes() == whole


def test_any_flipped_bit_is_found_at_its_line(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, range(1, 4))
    whole = ledger.path.read_bytes()
    second = whole.index(b"\n") + 1
    for at in range(second, whole.index(b"\n", second)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        ledger.path.write_bytes(damaged)
        with pytest.raises(LedgerError, match="step 2"):
            steps_in(ledger.path)


def test_damage_in_the_middle_is_put_aside(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    whole = ledger.path.read_bytes()
    damaged = whole.replace(b'"loss":997', b'"loss":907')
    ledger.path.write_bytes(damaged)
    again = Ledger(tmp_path, CONFIG)
    assert again.step == 2
    assert "damaged after step 2" in again.problems[0]
    assert ledger.path.with_name(ledger.path.name + ".damaged").read_bytes() == damaged
    for step in (3, 4, 5):
        again.record(entry(step), CONFIG)
    assert again.path.read_bytes() == whole


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    """A node that resumes from a checkpoint makes steps again that its ledger has."""
    ledger = ledger_of(tmp_path)
    whole = ledger.path.read_bytes()
    ledger.record(entry(3), CONFIG)
    assert ledger.path.read_bytes() == whole
    ledger.record(entry(4, loss=5), CONFIG)
    assert ledger.step == 4
    assert "Step 4 came out otherwise" in ledger.problems[0]
    assert [line.entry.loss for line, _ in read_lines(ledger.path)] == [999, 998, 997, 5]


def test_cut_takes_back_what_a_rewind_takes_back(tmp_path: Path) -> None:
    ledger, shorter = ledger_of(tmp_path / "a"), ledger_of(tmp_path / "b", range(1, 4))
    ledger.cut(3)
    assert ledger.path.read_bytes() == shorter.path.read_bytes()
    ledger.record(entry(4), CONFIG)
    assert steps_in(ledger.path) == [1, 2, 3, 4]


# Gaps


def test_a_gap_is_filled_from_others(tmp_path: Path) -> None:
    whole = ledger_of(tmp_path / "a", range(1, 13))
    late = ledger_of(tmp_path / "b", [1, 2])
    late.anchor(9, entry(9).state)
    for step in (10, 11):
        late.record(entry(step), CONFIG)
    assert late.missing == (3, 9)
    gap: tuple[int, int] | None = late.missing
    messages = 0
    while gap is not None:
        raw = whole.lines(gap[0], 2_000)
        assert 0 < len(raw) <= 2_000
        gap = late.fill(raw)
        messages += 1
    assert messages > 1
    assert (late.step, late.missing) == (11, None)
    late.record(entry(12), CONFIG)
    assert late.path.read_bytes() == whole.path.read_bytes()
    assert [path.name for path in (tmp_path / "b").iterdir()] == [late.path.name]


def test_what_waits_behind_a_gap_survives_a_restart(tmp_path: Path) -> None:
    ledger_of(tmp_path, [1, 2, 7, 8]).close()
    again = Ledger(tmp_path, CONFIG)
    assert again.missing == (3, 6)
    again.fill(ledger_of(tmp_path / "a", range(1, 9)).lines(3, 1 << 20))
    assert (again.step, again.missing) == (8, None)


def test_lines_of_a_liar_are_not_kept(tmp_path: Path) -> None:
    late = ledger_of(tmp_path / "b", [1, 2])
    late.anchor(9, entry(9).state)
    late.record(entry(10), CONFIG)
    before = late.path.read_bytes()
    liar = ledger_of(tmp_path / "liar", [])
    for step in range(1, 10):
        lie = msgspec.structs.replace(entry(step), state="f" * 64) if step > 4 else entry(step)
        liar.record(lie, CONFIG)
    with pytest.raises(LedgerError, match="Step 9 has another state"):
        late.fill(liar.lines(3, 1 << 20))
    assert late.path.read_bytes() == before
    # Also when the lie was told in small pieces.
    late.fill(liar.lines(3, 1_000))
    assert late.step > 2
    with pytest.raises(LedgerError, match="another state"):
        late.fill(liar.lines(late.step + 1, 1 << 20))
    assert late.path.read_bytes() == before
    other = ledger_of(tmp_path / "other", range(1, 10), micro_config(seed=9))
    with pytest.raises(LedgerError, match="digest"):
        late.fill(other.lines(3, 1 << 20))
    assert late.path.read_bytes() == before
    honest = ledger_of(tmp_path / "a", range(1, 11))
    late.fill(honest.lines(3, 1 << 20))
    assert late.path.read_bytes() == honest.path.read_bytes()


def test_a_newer_gap_counts_and_the_older_stretch_is_fetched_with_it(tmp_path: Path) -> None:
    late = ledger_of(tmp_path / "b", [1, 4, 5, 9, 10])
    assert late.missing == (2, 8)
    late.fill(ledger_of(tmp_path / "a", range(1, 11)).lines(2, 1 << 20))
    assert late.step == 10


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMITS", dataclasses.replace(LIMITS, ledger_loose=3))
    late = ledger_of(tmp_path / "b", list(range(5, 15)))
    assert len(late._loose) <= 3
    assert late.missing is not None
    late.fill(ledger_of(tmp_path / "a", range(1, 15)).lines(1, 1 << 20))
    assert late.step == 14


# Hostile and broken files


@pytest.mark.parametrize(
    "raw",
    [
        b"x" * 100_000,
        b"\n",
        b"[" * 20_000 + b"\n",
        b'{"digest":"00","entry":{}}\n',
        b"\xff\xfe\n" * 50,
        b'{"config":' * 1_000 + b"\n",
    ],
)
def test_a_file_that_is_no_ledger_is_a_sentence(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / file_name(CONFIG)
    path.write_bytes(raw)
    with pytest.raises(LedgerError, match="is damaged"):
        steps_in(path)
    ledger = Ledger(tmp_path, CONFIG)
    assert ledger.step == 0
    ledger.record(entry(1), CONFIG)
    assert steps_in(path) == [1]


def test_only_the_canonical_form_counts(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, [1])
    line = json.loads(ledger.path.read_bytes())
    ledger.path.write_bytes(json.dumps(line).encode() + b"\n")
    with pytest.raises(LedgerError, match="canonical"):
        steps_in(ledger.path)


def test_a_line_without_settings_has_no_place(tmp_path: Path) -> None:
    digest = entry_digest(NOTHING, entry(1)).hex()
    raw = msgspec.json.encode(module.Line(digest, entry(1)), order="sorted")
    (tmp_path / "x.ledger").write_bytes(raw + b"\n")
    with pytest.raises(LedgerError, match="no configuration"):
        steps_in(tmp_path / "x.ledger")


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of(tmp_path, [1, 2])
    write = os.write

    def full(file: int, raw: memoryview) -> int:
        if len(raw) < 100:
            raise OSError(28, "No space left on device")
        return write(file, raw[: len(raw) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError, match="No space left"):
        ledger.record(entry(3), CONFIG)
    monkeypatch.undo()
    assert steps_in(ledger.path) == [1, 2]
    ledger.record(entry(4), CONFIG)
    assert ledger.missing == (3, 3), "others have it"
    ledger.record(entry(3), CONFIG)
    assert steps_in(ledger.path) == [1, 2, 3, 4]


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="Cannot read"):
        steps_in(tmp_path / "none.ledger")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CheckpointError, match="Cannot write"):
        Ledger(tmp_path / "file", CONFIG)


# Held-out losses


def test_best_and_early_stop_are_exact() -> None:
    losses = [(10, 50, 10), (20, 40, 10), (30, 400_000_001, 100_000_000), (40, 41, 10), (50, 8, 2)]
    assert best(losses) == (20, 40, 10), "the first of equal ones"
    assert best([]) is None
    assert stops_after(losses, 2) == 40 + LAG
    assert stops_after(losses, 3) == 50 + LAG
    assert stops_after(losses, 4) is None
    assert stops_after([*losses[:2], (30, 39, 10), *losses[3:]], 2) == 50 + LAG
    assert stops_after([], 1) is None


def test_the_ledger_tells_the_heldout_losses(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, [])
    for step in range(1, 7):
        ledger.record(entry(step, heldout=(100 - step, 10) if step % 2 == 0 else None), CONFIG)
    expected = [(2, 98, 10), (4, 96, 10), (6, 94, 10)]
    assert ledger.heldout == expected
    assert Ledger(tmp_path, CONFIG).heldout == expected
    ledger.cut(4)
    assert ledger.heldout == expected[:2]
