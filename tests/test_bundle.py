"""Bundles: what they hold, who may be believed, and the command that reads them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from p2pnode.bundle import CASE, STATE, SUMS, Bundles, SlotCase, read
from p2pnode.cli import main
from p2pnode.errors import CheckpointError, DiskFullError
from p2pnode.limits import LIMITS
from p2pnode.train.arithmetic import kernels
from p2pnode.train.finder import Difference, difference_in_slot
from p2pnode.train.trainer import Trainer
from tests.train.helpers import compute_set, micro_config, new_trainer

PEER = bytes(range(32))
REFERENCE = kernels.load(reference=True)


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return new_trainer(micro_config(), reference=True)


def save_slot(folder: Path, trainer: Trainer, slot: int = 1, **changes: Any) -> Path:
    """A bundle about a slot whose statement is right, unless `changes` say otherwise."""
    inputs, targets = trainer.dataset.slot(0, slot, trainer.config)
    evidence, _ = trainer.compute_slot(0, slot)
    facts: dict[str, Any] = {
        "slot": slot,
        "peer": PEER,
        "stated": evidence,
        "computed": evidence,
        "ops": trainer.kernels,
        "difference": None,
    }
    return Bundles(folder).slot(trainer.committed, inputs, targets, **facts | changes)


def save_apply(folder: Path, trainer: Trainer, stated: bytes) -> Path:
    work = compute_set(trainer)
    return Bundles(folder).apply(
        trainer.committed,
        work.sum,
        tuple(work.max_abs),
        peer=PEER,
        stated=stated,
        computed=stated,
        ops=trainer.kernels,
        difference=None,
    )


def test_a_slot_can_be_computed_from_what_is_read(tmp_path: Path, trainer: Trainer) -> None:
    path = save_slot(tmp_path, trainer, difference=Difference("layers.0.q", "product (int8)"))
    bundle = read(path)
    assert isinstance(bundle.case, SlotCase)
    assert (bundle.case.step, bundle.case.slot, bundle.case.peer) == (1, 1, PEER.hex())
    assert bundle.state.hash() == trainer.committed_hash
    inputs, _ = trainer.dataset.slot(0, 1, trainer.config)
    assert np.array_equal(np.array(bundle.case.inputs), inputs)
    assert bundle.case.difference == Difference("layers.0.q", "product (int8)")
    assert bundle.case.stated == trainer.compute_slot(0, 1)[0]
    assert sorted(os.listdir(path)) == [CASE, STATE]


def test_command_says_that_a_right_statement_is_right(
    tmp_path: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", str(save_slot(tmp_path, trainer))]) == 0
    told = capsys.readouterr().out
    assert "slot 1 of step 1" in told
    assert "the statement is right" in told
    assert "agree with the reference" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"digest": bytes(32)}, "the statement is wrong\n"),
        ({"max_abs": (0,) * 20}, "the largest gradient differs first in tensor embed"),
        ({"token_hash": bytes(32)}, "it is about other text"),
    ],
)
def test_command_says_that_a_wrong_statement_is_wrong(
    tmp_path: Path,
    trainer: Trainer,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    told: str,
) -> None:
    right, _ = trainer.compute_slot(0, 1)
    stated = msgspec.structs.replace(right, **change)
    assert main(["reproduce", str(save_slot(tmp_path, trainer, stated=stated))]) == 0
    assert told in capsys.readouterr().out


def test_command_judges_an_apply(
    tmp_path: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_apply(tmp_path, trainer, bytes(32))
    assert sorted(os.listdir(path)) == [CASE, STATE, SUMS]
    assert main(["reproduce", str(path)]) == 0
    told = capsys.readouterr().out
    assert "the apply of step 1" in told
    assert "the statement is wrong" in told
    work = compute_set(trainer)
    other = new_trainer(micro_config(), reference=True)
    right = other.apply(0, work.sum, work.max_abs).state_hash
    assert main(["reproduce", str(save_apply(tmp_path, trainer, right))]) == 0
    assert "the statement is right" in capsys.readouterr().out


def test_command_finds_the_fault_of_the_machine_it_runs_on(
    tmp_path: Path,
    trainer: Trainer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spoil(name: str, args: tuple[Any, ...], result: Any) -> None:
        if name == "rope":
            result[0, 0] += 1

    faulty = REFERENCE.observed(spoil)
    monkeypatch.setattr(kernels, "load", lambda reference=False: REFERENCE if reference else faulty)
    assert main(["reproduce", str(save_slot(tmp_path, trainer))]) == 12
    assert "first in layers.0, rotary embedding" in capsys.readouterr().err
    inputs, targets = trainer.dataset.slot(0, 1, trainer.config)
    found = difference_in_slot(faulty, REFERENCE, trainer.committed, 1, inputs, targets)
    path = save_slot(tmp_path, trainer, difference=found)
    monkeypatch.undo()
    assert main(["reproduce", str(path)]) == 0
    assert "differed first in layers.0, rotary embedding" in capsys.readouterr().out


def test_names_do_not_clash_and_their_number_is_bounded(tmp_path: Path, trainer: Trainer) -> None:
    paths = {save_slot(tmp_path, trainer) for _ in range(LIMITS.bundles)}
    assert len(paths) == LIMITS.bundles
    with pytest.raises(CheckpointError, match="holds 8 already"):
        save_slot(tmp_path, trainer)
    shutil.rmtree(paths.pop())
    save_slot(tmp_path, trainer)


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(DiskFullError):
        save_slot(tmp_path, trainer)
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match="Input/output error"):
        save_slot(tmp_path, trainer)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path: Path, trainer: Trainer) -> None:
    path = save_slot(tmp_path, trainer)
    path.rename(path.with_name(path.name + ".tmp"))
    assert read(save_slot(tmp_path, trainer)).case.step == 1
    assert not path.with_name(path.name + ".tmp").exists()


def edit(path: Path, **changes: Any) -> None:
    case = json.loads((path / CASE).read_text())
    (path / CASE).write_text(json.dumps(case | changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 2}, "format 2"),
        ({"step": 5}, "its state is of step 0"),
        ({"slot": 4}, "no slot 4"),
        ({"slot": -1}, "no slot -1"),
        ({"inputs": [[1]]}, "not one micro-batch"),
        ({"targets": [[256] * 12] * 2}, "outside the vocabulary"),
        ({"type": "other"}, "is not a bundle's"),
        ({"extra": 1}, "is not a bundle's"),
    ],
)
def test_what_is_no_bundle_is_refused(
    tmp_path: Path, trainer: Trainer, changes: dict[str, Any], why: str
) -> None:
    path = save_slot(tmp_path, trainer)
    edit(path, **changes)
    with pytest.raises(CheckpointError, match=why):
        read(path)


def test_damaged_files_are_refused(tmp_path: Path, trainer: Trainer) -> None:
    path = save_apply(tmp_path, trainer, bytes(32))
    whole = (path / SUMS).read_bytes()
    for damaged in (whole[:-1], whole + b"\0"):
        (path / SUMS).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="one sum for each parameter"):
            read(path)
    (path / SUMS).write_bytes(whole)
    edit(path, max_abs=[1])
    with pytest.raises(CheckpointError, match="largest gradients"):
        read(path)
    (path / CASE).write_bytes(b" " * (LIMITS.bundle_case_bytes + 1))
    with pytest.raises(CheckpointError, match="larger than any"):
        read(path)
    (path / CASE).unlink()
    with pytest.raises(CheckpointError, match="it lacks case"):
        read(path)


def test_command_refuses_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", str(tmp_path / "nothing")]) == 10
    assert "error: Cannot read the bundle" in capsys.readouterr().err
