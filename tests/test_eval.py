"""The command `eval`."""

from __future__ import annotations

import dataclasses

import pytest

from p2pnode import cli, eval_command
from p2pnode.train import codec
from p2pnode.train.checkpoint import file_name
from p2pnode.train.data import open_dataset
from p2pnode.train.update import initial_state
from tests.train.helpers import micro_config


@pytest.fixture
def run(tmp_path, capsys):
    """Runs `eval` on a checkpoint of a run on `data`; the lines it printed."""

    def run(data, *arguments, code=0):
        config = micro_config(data=open_dataset(data).manifest.hash())
        path = tmp_path / file_name(config.run_id(), 0)
        path.write_bytes(codec.encode(initial_state(config)))
        assert cli.main(["eval", str(path), "--reference", *map(str, arguments)]) == code
        said = capsys.readouterr()
        return (said.out or said.err).splitlines()

    return run


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("A line of text.\n" * 200)
    return path


def test_the_builtin_text(run):
    _, told, loss, bits = run(None)
    assert told == "held-out text of the run: 48 tokens, 48 bytes"
    assert loss.startswith("loss           5.5")
    assert bits.startswith("bits per byte  7.9")


def test_the_texts_of_the_run_are_read_in_their_held_out_part(run, text):
    _, told, *_ = run(str(text), "--data", text)
    assert told.startswith("held-out text of the run: 48 tokens")


def test_another_text_is_read_whole(run, text):
    _, told, _, _, floats = run(None, "--data", text, "--float")
    assert told == f"all of {text}: 3,201 tokens, 3,200 bytes"  # and the end
    assert floats.startswith("float32 loss   5.5")


def test_without_the_text_of_the_run_there_is_nothing_to_read(run, text):
    (said,) = run(str(text), code=9)
    assert "--data" in said


def test_no_text_and_too_much_of_it(run, text, tmp_path, monkeypatch):
    (said,) = run(None, "--data", tmp_path / "none", code=9)
    assert "none" in said
    (tmp_path / "nul").write_bytes(b"\0\0")
    (said,) = run(None, "--data", tmp_path / "nul", code=9)
    assert "no text" in said
    limits = dataclasses.replace(eval_command._TEXT_LIMITS, data_bytes=3_000)
    monkeypatch.setattr(eval_command, "_TEXT_LIMITS", limits)
    (said,) = run(None, "--data", text, code=9)
    assert "at most 3000 fit" in said
