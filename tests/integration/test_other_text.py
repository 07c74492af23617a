"""Real processes of which one reads one document otherwise: as many tokens, one of them another.

The hash of the undisturbed run can only come out if nothing it computed on that text counts.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.real_text import passages, write_parquet
from tests.integration.conftest import Demo
from tests.integration.processes import Node, Server, free_port, hooked
from tests.train.tokenizers import bpe

RUN = ("--preset", "nano", "--steps", "16", "--slots", "6")

_SLOT = """
from p2pnode.train.data import Dataset

right = Dataset.slot

def other(self, step, slot, run):
    inputs, targets = right(self, step, slot, run)
    if (step, slot) == (5, 2):
        inputs = inputs.copy()
        inputs[0, 7] ^= 1
    return inputs, targets

Dataset.slot = other
"""
"""Text from another version of this program: it is what this machine holds to be right."""

_ENCODE = """
from p2pnode.train import tokenizer

right = tokenizer._Library.encode

def other(self, text):
    ids = right(self, text)
    if "The odd one out" in text:
        ids[40] = ids[40] % 100 + 100
    return ids

tokenizer._Library.encode = other
"""
"""A version of `tokenizers` that encodes some documents otherwise, but not the probe text."""


async def test_a_machine_with_other_text_leaves_before_its_work_counts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    right = Demo(tmp_path / "one", "--nodes", "1", *RUN).hashes["node-1"]
    async with (
        Server(free_port()) as server,
        Node(server.url, tmp_path, "a", *RUN, "--start-when", "3", "--audit", "0") as a,
    ):
        await a.until("invite")
        quiet = ("--guest", "--audit", "0")
        sick = hooked(tmp_path, _SLOT)
        async with (
            Node(server.url, tmp_path, "b", *quiet, env=sick) as b,
            Node(server.url, tmp_path, "c", *quiet) as c,
        ):
            ends = [await node.until("finished") for node in (a, c)]
            assert await b.end() == 9
            assert {end["hash"] for end in ends} == {right}
            assert [await a.end(), await c.end()] == [0, 0]
    said = capfd.readouterr().err
    assert "The tokens of slot 2 of step 6 are others here" in said
    assert "Install what the host has" in said
    assert not list((tmp_path / "b").glob("*-step-16.safetensors"))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
async def test_who_encodes_otherwise_computes_nothing_on_it(
    form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Plain text is encoded before the run begins, tables while it goes on."""
    texts = passages()[:400]
    for i in range(20, 400, 40):  # one in each row group
        texts[i] = "The odd one out. " + texts[i] * 2
    if form == "jsonl":
        data = tmp_path / "pages.jsonl"
        data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        data = write_parquet(tmp_path / "pages.parquet", texts, 40)
    words = tmp_path / "words.json"
    words.write_bytes(bpe(600, texts))
    own = ("--data", str(data), "--tokenizer", str(words))
    run = (*RUN, *own, "--eval-every", "0")
    right = Demo(tmp_path / "one", "--nodes", "1", *run).hashes["node-1"]
    async with (
        Server(free_port()) as server,
        Node(server.url, tmp_path, "a", *run, "--start-when", "2", "--audit", "0") as a,
    ):
        await a.until("invite")
        sick = hooked(tmp_path, _ENCODE)
        async with Node(server.url, tmp_path, "b", "--guest", *own, env=sick) as b:
            if form == "jsonl":
                assert await b.end() == 9
            end = await a.until("finished")
            assert end["hash"] == right
            assert await a.end() == 0
            if form == "parquet":
                assert (await b.until("finished"))["hash"] == right
    said = "".join(b.lines) + capfd.readouterr().err
    assert "package `tokenizers` differ" in said
