"""Tables: what is read of them, in which order, and what happens to the rest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from p2pnode.errors import DataError, SourceAwayError
from p2pnode.limits import LIMITS
from p2pnode.sources import blocks
from p2pnode.sources import table as tables_module
from p2pnode.sources import units as units_module
from p2pnode.sources.proxied import DataProxy, Offer
from p2pnode.sources.retry import Patience
from p2pnode.sources.units import UnitFolder, Units
from p2pnode.train.data import Dataset
from p2pnode.train.manifest import Manifest, parse_manifest
from p2pnode.train.open_data import Source, dataset_of_blob, open_dataset
from p2pnode.train.tables import Need
from p2pnode.train.tokenizer import from_json
from p2pnode.train.windows import UnitText
from tests.harness.range_server import RangeServer
from tests.train.helpers import micro_config
from tests.train.tokenizers import bpe

TEXTS = [f"document {i:05d}, which is not like the others ({i * i})." for i in range(1_000)]
RUN = micro_config()
LENGTH = RUN.model.seq_len + 1
BRIEF = Patience(attempts=3, pause=0.01, stall=0.5, least_stall=0.5)


def write(path: Path, texts: Any, rows: int = 50, column: str = "text", **options: Any) -> str:
    table = pyarrow.table({column: texts, "score": list(range(len(texts)))})
    pyarrow.parquet.write_table(table, path, row_group_size=rows, **options)
    return str(path)


def read(spec: str, **options: Any) -> Dataset:
    return open_dataset(Source(spec, patience=BRIEF, **options))


def content(dataset: Dataset) -> list[str]:
    """All documents of a table, in the order of its row groups."""
    raw = dataset.blob()[len(dataset.tokenizer.file) :]
    return raw.decode().removesuffix("\0").split("\0")


def test_every_window_comes_once_in_an_epoch(tmp_path: Path) -> None:
    dataset = read(write(tmp_path / "t.parquet", TEXTS))
    run = msgspec.structs.replace(RUN, data=dataset.manifest.hash())
    dataset.check(run)
    text = dataset._text
    training, heldout = text.counts(LENGTH)
    groups = dataset.manifest.groups
    assert training + heldout == sum(group.tokens // LENGTH for group in groups)
    for epoch in (1, 2):
        places = [text.place(i, LENGTH, epoch) for i in range(training)]
        assert sorted(places) == list(range(training))
    assert places != [text.place(i, LENGTH, 1) for i in range(training)]
    windows = [text.training(i, LENGTH).tolist() for i in range(training)]
    windows += [text.heldout(i, LENGTH).tolist() for i in range(heldout)]
    cut = [
        list(raw[start : start + LENGTH])
        for raw in _ids(dataset)
        for start in range(0, len(raw) - LENGTH + 1, LENGTH)
    ]
    assert sorted(windows) == sorted(cut)


def _ids(dataset: Dataset) -> list[bytes]:
    text = dataset._text
    assert isinstance(text, UnitText)
    return [text.units.get(i) for i in range(len(dataset.manifest.groups))]


def test_steps_in_a_row_need_few_row_groups(tmp_path: Path) -> None:
    """Else every node would read everything at once."""
    dataset = read(write(tmp_path / "t.parquet", TEXTS, rows=10))
    run = msgspec.structs.replace(RUN, data=dataset.manifest.hash())
    text = dataset._text
    for step in range(10):
        units = dataset._units(step, step, run)
        needed = {
            text.unit_of(index, LENGTH)
            for slot in range(run.slots)
            for index in dataset._windows(step, slot, run)
        }
        assert needed <= set(units)
        assert len(units) <= 16


def test_a_run_reads_no_more_than_it_needs(tmp_path: Path) -> None:
    spec = write(tmp_path / "t.parquet", TEXTS)
    some = open_dataset(spec, need=Need(40, LENGTH, 5))
    assert 1 <= len(some.manifest.groups) < 10
    assert some._text.counts(LENGTH)[0] >= 40
    assert open_dataset(spec, need=Need(40, LENGTH, 5)).matches(some.manifest)
    chosen = {open_dataset(spec, need=Need(40, LENGTH, seed)).manifest.groups for seed in range(8)}
    assert len(chosen) > 1, "which ones is drawn from the seed"


def test_a_tokenizer_makes_other_units_of_the_same_table(tmp_path: Path) -> None:
    spec = write(tmp_path / "t.parquet", TEXTS[:100])
    tokenizer = from_json(bpe(400, TEXTS))
    dataset = open_dataset(spec, None, tokenizer)
    assert dataset.manifest.id_bytes == 2
    ids = np.frombuffer(b"".join(_ids(dataset)), "<u2")
    assert tokenizer.decode(ids.tolist()).decode() == "".join(TEXTS[:100])
    assert np.count_nonzero(ids == tokenizer.separator) == 100
    copy = dataset_of_blob(dataset.manifest, dataset.blob()[len(tokenizer.file) :], tokenizer)
    run = msgspec.structs.replace(RUN, data=dataset.manifest.hash())
    assert np.array_equal(copy.slot(1, 2, run)[0], dataset.slot(1, 2, run)[0])
    with pytest.raises(DataError, match="gives other tokens here"):
        open_dataset(spec, dataset.manifest, from_json(bpe(300, TEXTS))).slot(0, 0, run)


@pytest.mark.parametrize(
    ("texts", "left_out", "kept"),
    [
        ([None, "a", None, "b"], "2 nulls", ["a", "b"]),
        (["", " \n\t", "a", "\0"], "3 nulls", ["a"]),
        ([b"good", b"bad\xff"], "1 binary", ["good"]),
        (["a\0b", "c"], "none", ["ab", "c"]),
        (["<|endoftext|> </s>", "\x1b[2J\u202e"], "none", ["<|endoftext|> </s>", "\x1b[2J\u202e"]),
        (pyarrow.array(["a", "b"], pyarrow.large_string()), "none", ["a", "b"]),
        (pyarrow.array(["a", "b", "a"]).dictionary_encode(), "none", ["a", "b", "a"]),
    ],
)
def test_rows(tmp_path: Path, texts: Any, left_out: str, kept: list[str]) -> None:
    dataset = read(write(tmp_path / "t.parquet", texts))
    assert f"(left out: {left_out})" in dataset.description
    assert content(dataset) == kept


def test_files_that_are_no_use(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'text'; name one with --column: body, score"):
        read(write(tmp_path / "a.parquet", TEXTS[:5], column="body"))
    assert content(read(str(tmp_path / "a.parquet"), column="body")) == TEXTS[:5]
    with pytest.raises(DataError, match="holds int64, not text"):
        read(write(tmp_path / "b.parquet", TEXTS[:5]), column="score")
    with pytest.raises(DataError, match=r"has no text in 'text' \(left out: 1 nulls"):
        read(write(tmp_path / "c.parquet", pyarrow.array([None], pyarrow.string())))
    whole = Path(write(tmp_path / "d.parquet", TEXTS)).read_bytes()
    for broken in (
        b"",
        whole[:-100],
        whole[: len(whole) // 2],
        b"<html>" * 99,
        b"x" * 8 + whole[-8:],
    ):
        (tmp_path / "e.parquet").write_bytes(broken)
        with pytest.raises(DataError, match="is not a whole Parquet file"):
            read(str(tmp_path / "e.parquet"))


def test_a_row_group_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "t.parquet", TEXTS, write_page_checksum=True))
    raw = bytearray(path.read_bytes())
    chunk = pyarrow.parquet.ParquetFile(path).metadata.row_group(3).column(0)
    raw[chunk.dictionary_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(raw)
    dataset = read(str(path))
    assert "left out: 1 broken" in dataset.description
    assert 3 not in {group.index for group in dataset.manifest.groups}
    assert len(content(dataset)) == 950


def test_a_row_group_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write(tmp_path / "t.parquet", TEXTS, rows=1_000)
    monkeypatch.setattr(tables_module, "LIMITS", dataclasses.replace(LIMITS, group_bytes=10_000))
    with pytest.raises(DataError, match="Write the file with smaller row groups"):
        read(spec)


def test_a_folder_of_tables_leaves_everything_else_out(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", TEXTS[:100])
    write(tmp_path / "a.parquet", TEXTS[100:200])
    (tmp_path / "README.md").write_text("not data")
    dataset = read(str(tmp_path))
    assert [entry.name for entry in dataset.manifest.files] == ["a.parquet", "b.parquet"]
    assert content(dataset) == TEXTS[100:200] + TEXTS[:100]
    assert "1 other" in dataset.description
    assert content(read(f"{tmp_path}/b*.parquet")) == TEXTS[:100]
    with pytest.raises(DataError, match="No file fits"):
        read(f"{tmp_path}/c*.parquet")


def test_another_file_than_the_runs(tmp_path: Path) -> None:
    spec = write(tmp_path / "t.parquet", TEXTS)
    manifest = read(spec).manifest
    run = msgspec.structs.replace(RUN, data=manifest.hash())
    write(tmp_path / "t.parquet", TEXTS[::-1])
    with pytest.raises(DataError, match="not the file that the run was started with"):
        open_dataset(spec, manifest).slot(0, 0, run)
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other" / "u.parquet", TEXTS)
    with pytest.raises(DataError, match="lacks 1 of the run's 1 files"):
        open_dataset(other, manifest)


@pytest.mark.parametrize(("statistics", "what"), [(True, "not the file"), (False, "replaced")])
def test_a_file_that_is_replaced_by_one_of_its_size(
    tmp_path: Path, statistics: bool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its footer tells, or what its row groups give; never its size or its name."""
    monkeypatch.setattr(blocks, "BLOCK", 2_048)  # else the whole file is held
    monkeypatch.setattr(blocks, "READ_BYTES", 2_048)
    form = {"compression": "none", "use_dictionary": False, "write_statistics": statistics}
    path = Path(write(tmp_path / "t.parquet", TEXTS, **form))
    manifest = read(str(path)).manifest
    size = path.stat().st_size
    with RangeServer(tmp_path) as web:
        source = Source(web.url("ok", "t.parquet"), patience=BRIEF)
        units = open_dataset(source, manifest)._text.units  # type: ignore[attr-defined]
        units.get(0)
        write(path, [text.replace("like", "lake") for text in TEXTS], **form)
        assert path.stat().st_size == size
        with pytest.raises(DataError, match=what):
            units.get(19)
        write(path, TEXTS, **form)
        assert len(units.get(19)) == manifest.groups[19].tokens, "it is right again"


def test_one_document_that_is_encoded_otherwise_by_one_token(tmp_path: Path) -> None:
    spec = write(tmp_path / "t.parquet", TEXTS)
    right = from_json(bpe())
    manifest = open_dataset(spec, None, right).manifest

    class Other:
        """As another version of the library."""

        def __getattr__(self, name: str) -> Any:
            return getattr(right, name)

        def encode(self, text: str) -> Any:
            ids = right.encode(text)
            if "document 00510" in text:
                ids[3] ^= 1
            return ids

    assert open_dataset(spec, None, Other()).manifest.size == manifest.size  # type: ignore[arg-type]
    units, whole = (
        open_dataset(spec, manifest, tokenizer)._text.units  # type: ignore[arg-type, attr-defined]
        for tokenizer in (Other(), right)
    )
    with pytest.raises(DataError, match=r"Row group 10 of .*package `tokenizers` differ"):
        units.get(10)
    assert [units.get(unit) for unit in (9, 11)] == [whole.get(unit) for unit in (9, 11)]


def test_text_that_has_changed_in_memory_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text of some length. " * 200)
    for spec in (None, str(tmp_path / "a.txt"), write(tmp_path / "t.parquet", TEXTS)):
        dataset = open_dataset(spec)
        run = msgspec.structs.replace(RUN, data=dataset.manifest.hash())
        dataset.slot(0, 0, run)
        dataset.check_intact()
        text: Any = dataset._text
        if spec is None:
            continue
        if isinstance(text, UnitText):
            unit, raw = next(iter(text.units._held.items()))
            text.units._held[unit] = b"?" + raw[1:]
        else:
            text._ids = text._ids.copy()
            text._ids[-1] ^= 1
        with pytest.raises(DataError, match="has changed in this machine's memory"):
            dataset.check_intact()


@pytest.mark.parametrize("mode", ["ok", "norange", "trunc", "short", "busy-2", "expire", "mixed"])
def test_tables_behind_faulty_servers(tmp_path: Path, mode: str) -> None:
    manifest = read(write(tmp_path / "t.parquet", TEXTS)).manifest
    with RangeServer(tmp_path, stall=0.7) as web:
        assert read(web.url(mode, "t.parquet")).manifest == manifest


@pytest.mark.parametrize("mode", ["liar", "html", "flip"])
def test_wrong_bytes_are_found(tmp_path: Path, mode: str) -> None:
    manifest = read(write(tmp_path / "t.parquet", TEXTS)).manifest
    run = msgspec.structs.replace(RUN, data=manifest.hash())
    with RangeServer(tmp_path) as web:
        source = Source(web.url(mode, "t.parquet"), patience=BRIEF)
        with pytest.raises(DataError):
            open_dataset(source, manifest).slot(0, 0, run)


def through(server: RangeServer, mode: str) -> DataProxy:
    proxy = DataProxy()
    proxy.offer = Offer(server.url(mode, ""), "token", 1)
    return proxy


def test_text_through_the_signaling_server(tmp_path: Path) -> None:
    """Without a source, and with one that is away; what comes is compared with the manifest."""
    dataset = read(write(tmp_path / "t.parquet", TEXTS))
    manifest = dataset.manifest
    with RangeServer(tmp_path) as web, RangeServer(tmp_path) as own:
        own.away = True
        for spec in (None, own.url("ok", "t.parquet")):
            source = Source(spec, patience=BRIEF, proxy=through(web, "ok"))
            assert content(open_dataset(source, manifest)) == TEXTS
        with pytest.raises(DataError, match="give them with --data"):
            open_dataset(Source(None, proxy=DataProxy()), manifest)


@pytest.mark.parametrize("mode", ["flip", "liar", "html", "norange", "elsewhere"])
def test_a_signaling_server_that_lies_is_found_out(tmp_path: Path, mode: str) -> None:
    manifest = read(write(tmp_path / "t.parquet", TEXTS)).manifest
    run = msgspec.structs.replace(RUN, data=manifest.hash())
    with RangeServer(tmp_path) as web:
        web.elsewhere = web.url("ok", "t.parquet")
        source = Source(None, patience=BRIEF, proxy=through(web, mode))
        with pytest.raises(DataError):
            open_dataset(source, manifest).slot(0, 0, run)


def test_a_footer_of_others_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hash stands in the manifest: the decoder, a library in C++, sees no other."""
    manifest = read(write(tmp_path / "t.parquet", TEXTS)).manifest
    run = msgspec.structs.replace(RUN, data=manifest.hash())
    raw = bytearray((tmp_path / "t.parquet").read_bytes())
    raw[-30] ^= 1
    (tmp_path / "t.parquet").write_bytes(raw)
    monkeypatch.setattr(pyarrow.parquet, "read_metadata", None)
    with RangeServer(tmp_path) as web:
        source = Source(None, patience=BRIEF, proxy=through(web, "ok"))
        with pytest.raises(DataError, match="not the file that the run was started with"):
            open_dataset(source, manifest).slot(0, 0, run)


def test_who_makes_the_manifest_reads_nothing_from_the_signaling_server(tmp_path: Path) -> None:
    """It would choose the text of the run."""
    write(tmp_path / "t.parquet", TEXTS)
    with RangeServer(tmp_path) as web, RangeServer(tmp_path) as own:
        own.away = True
        source = Source(own.url("ok", "t.parquet"), patience=BRIEF, proxy=through(web, "ok"))
        with pytest.raises(SourceAwayError):
            open_dataset(source)
        assert web.requests == []


def test_plain_text_through_the_signaling_server(tmp_path: Path) -> None:
    """Of files in memory too; a changed one is told apart."""
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    (tmp_path / "b.jsonl").write_bytes(
        b"\n".join(msgspec.json.encode({"text": text}) for text in TEXTS)
    )
    manifest = read(str(tmp_path)).manifest
    with RangeServer(tmp_path) as web:
        source = Source(None, patience=BRIEF, proxy=through(web, "ok"))
        assert open_dataset(source, manifest).matches(manifest)
        (tmp_path / "b.jsonl").write_bytes(b'{"text": "something else"}')
        with pytest.raises(DataError, match="1 differ"):
            open_dataset(source, manifest)


def test_units_come_from_disk_if_they_are_whole(tmp_path: Path) -> None:
    spec = write(tmp_path / "t.parquet", TEXTS)
    manifest = open_dataset(Source(spec, cache=tmp_path / "cache")).manifest
    calls: list[int] = []

    def fetch(unit: int) -> bytes:
        calls.append(unit)
        raise DataError("away")

    digests = [group.sha256 for group in manifest.groups]
    folder = UnitFolder(tmp_path / "cache")
    assert len(Units(digests, fetch, folder).get(2)) == manifest.groups[2].tokens
    assert calls == []
    path = folder._path(digests[2])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match="away"):
        Units(digests, fetch, folder).get(2)
    assert not path.exists(), "a damaged file is removed"


def test_the_folder_of_units_is_bounded(tmp_path: Path) -> None:
    folder = UnitFolder(tmp_path, most=250)
    for i in range(4):
        folder.save(f"{i:x}" * 64, bytes(100))
    assert len(list(tmp_path.iterdir())) == 2


def test_memory_for_units_is_bounded_and_wanted_ones_stay() -> None:
    raw = [bytes([i]) * 100 for i in range(9)]
    digests = [units_module.hashlib.sha256(part).hexdigest() for part in raw]
    limits = dataclasses.replace(LIMITS, token_memory_bytes=300)
    units = Units(digests, raw.__getitem__, None, limits)
    units.keep([0])
    for i in range(9):
        units.get(i)
    assert [i for i in range(9) if units.has(i)] == [0, 7, 8]


def test_manifests_of_strangers(tmp_path: Path) -> None:
    manifest = read(write(tmp_path / "t.parquet", TEXTS)).manifest
    assert parse_manifest(manifest.canonical()) == manifest

    def changed(**parts: Any) -> Manifest:
        return msgspec.structs.replace(manifest, **parts)

    groups = manifest.groups
    for wrong, reason in (
        (changed(groups=groups[::-1]), "out of order"),
        (changed(groups=(groups[0], groups[0])), "twice"),
        (changed(groups=()), "that its files do not have"),
        (changed(kind="files"), "that its files do not have"),
        (changed(groups=(msgspec.structs.replace(groups[0], file=1),)), "files do not have"),
        (changed(source="http://192.168.1.1/"), "Not a data manifest"),
        (changed(id_bytes=3), "Not a data manifest"),
    ):
        with pytest.raises(DataError, match=reason):
            parse_manifest(wrong.canonical())
