"""The file with the parts of a state under way."""

from __future__ import annotations

from pathlib import Path

from p2pnode.train.partial import PartialFile

ROOT = b"r" * 32
HASHES = bytes(range(64))
SIZE = 15


def count(size: int) -> int:
    return 2


def file(folder: Path) -> PartialFile:
    return PartialFile(folder)


def test_what_was_stored_is_recalled_by_another_life(tmp_path: Path) -> None:
    file(tmp_path).store(ROOT, SIZE, HASHES, 10, memoryview(b"world"))
    assert file(tmp_path).recall(ROOT, count) == (SIZE, HASHES, bytearray(10) + b"world")
    again = file(tmp_path)
    again.recall(ROOT, count)
    again.store(ROOT, SIZE, HASHES, 0, memoryview(b"hello"))
    found = file(tmp_path).recall(ROOT, count)
    assert found is not None
    assert found[2] == b"hello\0\0\0\0\0world"


def test_another_blob_takes_its_place(tmp_path: Path) -> None:
    first = file(tmp_path)
    first.store(ROOT, SIZE, HASHES, 0, memoryview(b"x"))
    first.store(b"n" * 32, SIZE, HASHES, 0, memoryview(b"y"))
    assert file(tmp_path).recall(ROOT, count) is None
    assert len(list(tmp_path.iterdir())) == 1


def test_damaged_and_missing_files_are_nothing(tmp_path: Path) -> None:
    assert file(tmp_path).recall(ROOT, count) is None
    partial = file(tmp_path)
    partial.store(ROOT, SIZE, HASHES, 0, memoryview(b"x"))
    whole = partial.path.read_bytes()
    for damaged in (b"", whole[:39], whole[:-1], whole + b"x", bytes([0]) + whole[1:]):
        partial.path.write_bytes(damaged)
        assert file(tmp_path).recall(ROOT, count) is None
    partial.path.write_bytes(whole[:32] + b"\xff" * 8 + whole[40:])
    assert file(tmp_path).recall(ROOT, count) is None, "no such size is believed"


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    lost = file(tmp_path / "gone")
    lost.store(ROOT, SIZE, HASHES, 0, memoryview(b"x"))
    assert lost.recall(ROOT, count) is None
    lost.discard()
