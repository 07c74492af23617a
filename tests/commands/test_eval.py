"""The command `eval`."""

from __future__ import annotations

import dataclasses
import json

import pyarrow
import pyarrow.parquet
import pytest

from p2pnode import cli
from p2pnode.commands import eval as eval_command
from p2pnode.sources import table as tables_module
from p2pnode.train import codec
from p2pnode.train.checkpoint import file_name
from p2pnode.train.open_data import Source, open_dataset
from p2pnode.train.update import initial_state
from tests.harness.range_server import RangeServer
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


def write_tables(folder, texts, rows=50):
    folder.mkdir()
    for name in ("a", "b"):
        table = pyarrow.table({"words": texts, "number": list(range(len(texts)))})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=rows)
    return folder


def test_other_tables_are_read_whole_a_row_group_at_a_time(run, tmp_path, monkeypatch):
    texts = [f"Document {i} of a table. " * 3 for i in range(60)]
    folder = write_tables(tmp_path / "tables", texts, rows=20)
    (tmp_path / "same.jsonl").write_text(
        "".join(json.dumps({"words": text}) + "\n" for text in texts * 2)
    )
    expected = run(None, "--data", tmp_path / "same.jsonl", "--column", "words")
    held = []
    monkeypatch.setattr(
        tables_module.Table,
        "texts",
        lambda self, group, skipped, right=tables_module.Table.texts: (
            held.append(group) or right(self, group, skipped)
        ),
    )
    with RangeServer(tmp_path / "tables") as web:
        for spec in (folder, f"{folder}/*.parquet"):
            told = run(None, "--data", spec, "--column", "words")
            assert told[2:] == expected[2:]
            assert told[1].split(": ")[1] == expected[1].split(": ")[1]
        one = run(None, "--data", web.url("mixed", "a.parquet"), "--column", "words")
    assert int(one[1].split()[-4].replace(",", "")) * 2 == int(
        expected[1].split()[-4].replace(",", "")
    )
    assert held == [*range(3)] * 5
    assert not list(tmp_path.glob("text-cache/*")), "nothing is kept"


def test_tables_may_be_larger_than_what_is_held(run, tmp_path, monkeypatch):
    """Only what the next batches need is asked for."""
    folder = write_tables(tmp_path / "tables", ["word " * 2_000] * 40, rows=2)
    read = []

    def watched(self, group, skipped, right=tables_module.Table.texts):
        read.append(group)
        return right(self, group, skipped)

    monkeypatch.setattr(tables_module.Table, "texts", watched)
    told = run(None, "--data", folder, "--column", "words", "--tokens", "300")
    assert told[1].startswith(f"the beginning of {folder}: 3")
    assert read == [0]
    (said,) = run(None, "--data", folder, code=9)
    assert "name one with --column: words, number" in said


def test_tables_of_the_name_of_the_runs(run, tmp_path):
    """Their footer tells that they are not its text; then they are another one."""
    own = write_tables(tmp_path / "own", [f"Text number {i}. " * 9 for i in range(200)])
    other = write_tables(tmp_path / "other", ["Other text. " * 4] * 60)
    choice = Source(str(own), "words")
    manifest = open_dataset(choice).manifest
    (tmp_path / f"manifest-{manifest.hash()[:16]}.json").write_bytes(manifest.canonical())
    for folder, what in ((own, "held-out text of the run: 48 tokens"), (other, "all of ")):
        assert run(choice, "--data", folder, "--column", "words")[1].startswith(what)


def test_tables_without_any_text(run, tmp_path):
    folder = write_tables(tmp_path / "tables", [" ", ""] * 10)
    (said,) = run(None, "--data", folder, "--column", "words", code=9)
    assert "no text" in said
