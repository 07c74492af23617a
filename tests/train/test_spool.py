"""Bytes on disk that look like bytes in memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from p2pnode.errors import DiskFullError
from p2pnode.train.spool import spool


def test_the_same_bytes_and_nothing_left_behind(tmp_path: Path) -> None:
    payloads = [b"first", memoryview(b"x" * 100_000), bytearray(b"last")]
    views = spool(tmp_path, payloads)
    assert [bytes(view) for view in views] == [bytes(payload) for payload in payloads]
    assert all(view.readonly for view in views)
    assert not list(tmp_path.iterdir())


def test_a_nearly_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=399))
    with pytest.raises(DiskFullError, match="nearly full"):
        spool(tmp_path, [bytes(100)])
    assert not list(tmp_path.iterdir())


def test_a_folder_that_has_gone(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="No such file"):
        spool(tmp_path / "gone", [b"x"])
