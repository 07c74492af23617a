"""Reading by ranges from servers that do what servers do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from p2pnode.errors import DataError, SourceAwayError
from p2pnode.limits import LIMITS
from p2pnode.sources import http
from p2pnode.sources.http import HttpFile
from p2pnode.sources.retry import Patience, Transient, retried
from tests.harness.range_server import RangeServer

RAW = random.Random(5).randbytes(300_000)
BRIEF = Patience(attempts=3, pause=0.01, stall=0.3, least_stall=0.3)


@pytest.fixture
def server(tmp_path: Path):
    (tmp_path / "file").write_bytes(RAW)
    (tmp_path / "empty").write_bytes(b"")
    with RangeServer(tmp_path, stall=1.0) as running:
        yield running


@pytest.mark.parametrize(
    "mode",
    [
        *("ok", "norange", "trunc", "short", "busy-2", "many-2", "late-2", "hang-2", "slow"),
        *("redirect", "expire", "nohead", "nolength"),
    ],
)
def test_every_byte_arrives(server: RangeServer, mode: str) -> None:
    file = HttpFile(server.url(mode, "file"), BRIEF)
    assert file.read(299_990, 100) == RAW[299_990:]
    assert file.size == len(RAW)
    assert file.read(1_000, 200_000) == RAW[1_000:201_000]
    assert file.read(0, 10) == RAW[:10]
    assert file.read(300_000, 10) == b""


def test_what_has_arrived_is_not_asked_for_again(server: RangeServer) -> None:
    HttpFile(server.url("trunc", "file"), BRIEF).read(0, 200_000)
    starts = [start for _, _, start in server.requests]
    assert starts[:3] == [0, 100_000, 150_000]


def test_the_whole_file_is_loaded_once(server: RangeServer) -> None:
    file = HttpFile(server.url("norange", "file"), BRIEF)
    for start in range(0, 200_000, 50_000):
        assert file.read(start, 5) == RAW[start : start + 5]
    assert len(server.requests) == 2  # the one for a range, the one without


@pytest.mark.parametrize(
    ("mode", "error", "told"),
    [
        ("busy-99", SourceAwayError, "status 503"),
        ("hang", SourceAwayError, "broke off after 0 of"),
        ("wrong", SourceAwayError, "sent bytes 0 to 9"),
        ("gzip", DataError, "compresses"),
        ("none", DataError, "status 404"),
    ],
)
def test_what_cannot_be_had_is_a_sentence(
    server: RangeServer, mode: str, error: type[DataError], told: str
) -> None:
    name = "file" if mode != "none" else "nothing"
    with pytest.raises(DataError, match=told) as caught:
        HttpFile(server.url(mode if mode != "none" else "ok", name), BRIEF).read(50, 10)
    assert type(caught.value) is error


def test_other_outcomes(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="is empty"):
        HttpFile(server.url("ok", "empty"), BRIEF).read(0, 1)
    with pytest.raises(DataError, match="not a web address"):
        HttpFile("file:///etc/passwd")
    monkeypatch.setattr(http, "LIMITS", type(LIMITS)(whole_file_bytes=1_000))
    for mode in ("norange", "nolength"):
        file = HttpFile(server.url(mode, "file"), BRIEF)
        if mode == "norange":
            with pytest.raises(DataError, match="larger than"):
                file.read(0, 10)
        else:
            assert file.read(0, 10) == RAW[:10]


def test_a_file_that_changes_is_noticed(server: RangeServer) -> None:
    file = HttpFile(server.url("ok", "file"), BRIEF)
    file.read(0, 10)
    (server.folder / "file").write_bytes(RAW[:-1])
    with pytest.raises(DataError, match="has changed"):
        file.read(10, 10)


def test_nobody_there() -> None:
    with pytest.raises(SourceAwayError, match="no answer"):
        HttpFile("http://127.0.0.1:9/file", BRIEF).read(0, 1)


def test_pauses_grow_and_a_servers_wish_is_obeyed() -> None:
    slept: list[float] = []
    faults = [Transient("a"), Transient("b", after=7.0), Transient("c", after=1e9), Transient("d")]

    def attempt() -> str:
        if faults:
            raise faults.pop(0)
        return "done"

    assert retried(attempt, "x", Patience(pause=1.0), slept.append) == "done"
    assert 0.5 <= slept[0] <= 1.5
    assert slept[1:3] == [7.0, 120.0]
    assert 4.0 <= slept[3] <= 12.0


def test_a_try_that_moved_starts_the_count_anew() -> None:
    faults = [Transient("broke off", moved=True)] * 9

    def attempt() -> str:
        if faults:
            raise faults.pop()
        return "done"

    assert retried(attempt, "x", Patience(attempts=2), lambda _: None) == "done"
    with pytest.raises(SourceAwayError, match="x cannot be had at the moment: no"):
        retried(lambda: (_ for _ in ()).throw(Transient("no")), "x", BRIEF, lambda _: None)


def test_fast_sources_are_given_up_sooner(server: RangeServer) -> None:
    file = HttpFile(server.url("ok", "file"))
    assert file._timeout() == 30.0
    file.read(0, 200_000)
    assert file._timeout() == 5.0
