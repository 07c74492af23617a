"""Real processes of which one reads one document otherwise: as many tokens, one of them another.

The hash of the undisturbed run can only come out if nothing it computed on that text counts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.harness.real_text import passages
from tests.integration.commands import Demo
from tests.integration.processes import Node, Pace, Server, free_port, hooked
from tests.train.tokenizers import bpe

STEPS = 30
RUN = ("--preset", "nano", "--steps", str(STEPS), "--slots", "6")

_SLOT = """
from p2pnode.train.data import Dataset

slot_as_it_is = Dataset.slot

def other(self, step, slot, run):
    inputs, targets = slot_as_it_is(self, step, slot, run)
    if step >= 5 and slot == 2:
        inputs = inputs.copy()
        inputs[0, 7] ^= 1
    return inputs, targets

Dataset.slot = other
"""
"""Text from another version of this program: it is what this machine holds to be right."""

_ENCODE = """
from p2pnode.train import tokenizer

encode_as_it_is = tokenizer._Library.encode

def other(self, text):
    ids = encode_as_it_is(self, text)
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
    pace, sick = Pace(tmp_path, latecomer="b"), Pace(tmp_path, _SLOT, latecomer="b")
    host = (*RUN, "--start-when", "3", "--audit", "0")
    async with (
        Server(free_port()) as server,
        Node(server.url, tmp_path, "a", *host, env=pace.env) as a,
    ):
        await a.until("invite")
        quiet = ("--guest", "--audit", "0")
        async with (
            Node(server.url, tmp_path, "b", *quiet, env=sick.env) as b,
            Node(server.url, tmp_path, "c", *quiet, env=pace.env) as c,
        ):
            ends = [await node.until("finished") for node in (a, c)]
            assert await b.end() == 9
            assert {end["hash"] for end in ends} == {right}
            assert [await a.end(), await c.end()] == [0, 0]
    said = capfd.readouterr().err
    assert re.search(r"The tokens of slot 2 of step \d+ are others here", said), said
    assert "Install what the host has" in said
    assert not list((tmp_path / "b").glob(f"*-step-*{STEPS}.safetensors"))
    assert list((tmp_path / "c").glob(f"*-step-*{STEPS}.safetensors"))


async def test_who_encodes_otherwise_computes_nothing_on_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = passages()[:400]
    texts[200] = "The odd one out. " + texts[200] * 2
    data = tmp_path / "pages.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = tmp_path / "words.json"
    words.write_bytes(bpe(600, texts))
    own = ("--data", str(data), "--tokenizer", str(words))
    run = (*RUN, *own)
    right = Demo(tmp_path / "one", "--nodes", "1", *run).hashes["node-1"]
    async with (
        Server(free_port()) as server,
        Node(server.url, tmp_path, "a", *run, "--start-when", "2", "--audit", "0") as a,
    ):
        await a.until("invite")
        sick = hooked(tmp_path, _ENCODE)
        async with Node(server.url, tmp_path, "b", "--guest", *own, env=sick) as b:
            assert await b.end() == 9
            end = await a.until("finished")
            assert end["hash"] == right
            assert await a.end() == 0
    assert "package `tokenizers` differ" in capfd.readouterr().err
