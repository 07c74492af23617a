"""What a node remembers of its rooms, on a real disk."""

import os
import stat
from pathlib import Path

import pytest

from p2pnode import memberships
from p2pnode.memberships import MAX_BYTES, ROOMS, Memberships
from p2pnode.private_file import write_private

ROOM = b"r" * 32


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    kept = Memberships(tmp_path / "home")
    assert kept.load(ROOM) is None
    kept.save(ROOM, b"one")
    kept.save(ROOM, b"two")
    kept.save(b"s" * 32, b"other room")
    assert Memberships(tmp_path / "home").load(ROOM) == b"two"
    kept.forget(ROOM)
    kept.forget(ROOM)
    assert kept.load(ROOM) is None
    assert kept.load(b"s" * 32) == b"other room"


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    kept = Memberships(tmp_path / "home")
    kept.save(ROOM, b"one")
    assert stat.S_IMODE(kept.path(ROOM).stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.path(ROOM).parent.stat().st_mode) == 0o700


def test_a_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Memberships(tmp_path)
    kept.save(ROOM, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        kept.save(ROOM, b"new")
    assert kept.load(ROOM) == b"old"
    assert len(list(kept.path(ROOM).parent.iterdir())) == 1


def test_a_file_too_long_to_be_a_roster_is_nothing(tmp_path: Path) -> None:
    kept = Memberships(tmp_path)
    write_private(kept.path(ROOM), b"x" * MAX_BYTES)
    assert kept.load(ROOM) == b"x" * MAX_BYTES
    write_private(kept.path(ROOM), b"x" * (MAX_BYTES + 1))
    assert kept.load(ROOM) is None


def test_the_rooms_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memberships, "ROOMS", 3)
    assert ROOMS > 3
    kept = Memberships(tmp_path)
    rooms = [bytes([n]) * 32 for n in range(5)]
    for age, room in enumerate(rooms):
        kept.save(room, b"x")
        os.utime(kept.path(room), (1_000 + age, 1_000 + age))
    kept.save(rooms[4], b"y")
    assert [kept.load(room) for room in rooms] == [None, None, b"x", b"x", b"y"]
