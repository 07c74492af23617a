"""Lines of JSON, plain and compressed."""

import dataclasses
import gzip
import json
from pathlib import Path

import pyarrow
import pytest

from p2pnode.errors import DataError
from p2pnode.limits import LIMITS
from tests.train.helpers import read_texts

ROWS = [{"text": "one\ntwo"}, {"text": "  "}, {"text": None}, {"body": "x"}, {"text": "d\0rei"}]
PLAIN = "\n".join(json.dumps(row) for row in ROWS).encode() + b"\nno json\n\n"


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_documents(tmp_path: Path, ending: str) -> None:
    pack = {
        "jsonl": bytes,
        "jsonl.gz": gzip.compress,
        "jsonl.zst": lambda raw: pyarrow.compress(raw, "zstd", asbytes=True),
    }[ending]
    (tmp_path / f"a.{ending}").write_bytes(pack(PLAIN))
    texts = read_texts(str(tmp_path))
    assert texts.contents == (b"one\ntwo\0drei",)
    assert texts.manifest.files[0].form == "documents"
    assert (texts.skipped.nulls, texts.skipped.broken) == (2, 2)
    with pytest.raises(DataError, match=r"with a text in 'title'.* The first object has: text"):
        read_texts(str(tmp_path), column="title")


def test_damaged_and_swollen_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(PLAIN)[:-20])
    with pytest.raises(DataError, match="cannot be decompressed"):
        read_texts(str(tmp_path))
    bomb = json.dumps({"text": "x" * 100_000}).encode() + b"\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(bomb * 20))
    with pytest.raises(DataError, match="more than the 1000000 bytes"):
        read_texts(str(tmp_path), dataclasses.replace(LIMITS, data_bytes=1_000_000))
