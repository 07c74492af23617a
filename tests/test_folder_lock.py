"""One node a folder, one process a key in a room; a lock goes with whoever held it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from p2pnode.errors import CheckpointError, IdentityError
from p2pnode.folder_lock import FolderLock, PlaceLock

ROOM = bytes(32)


def test_a_folder_has_one_node(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "out"):
        with pytest.raises(CheckpointError, match="with --out"), FolderLock(tmp_path / "out"):
            pass
        with FolderLock(tmp_path / "other"):
            pass
    with FolderLock(tmp_path / "out"):
        pass


def test_a_key_has_one_place_in_a_room(tmp_path: Path) -> None:
    """A second process would be taken for the first come back, which would lose its place."""
    with PlaceLock(tmp_path, ROOM):
        with pytest.raises(IdentityError, match="with --home"), PlaceLock(tmp_path, ROOM):
            pass
        with PlaceLock(tmp_path, b"\1" * 32), PlaceLock(tmp_path / "other", ROOM):
            pass
    with PlaceLock(tmp_path, ROOM):
        pass
    assert list((tmp_path / "rooms").iterdir()) == []


def test_a_killed_process_gives_its_place_back(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys; from p2pnode.folder_lock import PlaceLock\n"
        "with PlaceLock(pathlib.Path(sys.argv[1]), bytes(32)): os._exit(9)"
    )
    assert (
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 9
    )
    with PlaceLock(tmp_path, ROOM):
        pass


def test_where_nothing_can_be_locked_the_server_has_to_notice(tmp_path: Path) -> None:
    (tmp_path / "rooms").touch()  # no folder
    with PlaceLock(tmp_path, ROOM), PlaceLock(tmp_path, ROOM):
        pass
