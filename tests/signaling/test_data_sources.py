"""Sources of text at the server: names, folders, web servers and where they may redirect to."""

import asyncio
import dataclasses
import os
import threading

import pytest
from yarl import URL

from signaling.data.folder import Folder
from signaling.data.sources import (
    AwayError,
    BeyondError,
    MissingError,
    Piece,
    SourceError,
    parts_of,
)
from signaling.data.web import Web, place_of, redirect_host, web_url
from signaling.limits import LIMITS
from tests.harness.range_server import RangeServer

FEW = dataclasses.replace(LIMITS, data_tries=2)
HASTY = dataclasses.replace(LIMITS, data_tries=5, data_idle_seconds=1.0)
ONCE = dataclasses.replace(LIMITS, data_tries=1, data_idle_seconds=0.3)
TEXT = bytes(range(256)) * 40

OUTSIDE = [
    "../secret.txt",
    "a/../../secret.txt",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a//b",
    "a/",
    "..\\secret.txt",
    ".hidden",
    "sub/.hidden/a",
    "a\0b",
    "a\nb",
    "x" * 2_000,
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret.txt").write_bytes(b"secret")
    inside = tmp_path / "texts"
    (inside / "sub").mkdir(parents=True)
    (inside / "text.bin").write_bytes(TEXT)
    (inside / "sub" / "ä b#?%2e.txt").write_bytes(b"umlaut")
    (inside / ".hidden").write_bytes(b"hidden")
    return inside


@pytest.fixture
def web(folder):
    with RangeServer(folder, stall=5.0) as running:
        yield running


async def read(source, name, start=0, length=1 << 20):
    try:
        return await source.read(name, start, length)
    finally:
        await source.close()


def source_of(web, mode, name="", limits=FEW, **more):
    return Web(web_url(web.url(mode, name)), limits=limits, **more)


def test_a_name_leads_nowhere_else():
    assert parts_of("a/b c/ä.txt") == ("a", "b c", "ä.txt")
    for name in OUTSIDE:
        with pytest.raises(MissingError):
            parts_of(name)


async def test_a_folder_serves_what_is_below_it(folder):
    piece = await read(Folder(folder), "text.bin", 100, 50)
    assert (piece.data, piece.size) == (TEXT[100:150], len(TEXT))
    assert (await read(Folder(folder), "text.bin", len(TEXT) - 1)).data == TEXT[-1:]
    assert (await read(Folder(folder), "sub/ä b#?%2e.txt")).data == b"umlaut"
    with pytest.raises(BeyondError) as beyond:
        await read(Folder(folder), "text.bin", len(TEXT))
    assert beyond.value.size == len(TEXT)


async def test_a_folder_serves_nothing_else(folder):
    (folder / "link").symlink_to(folder.parent / "secret.txt")
    (folder / "links").symlink_to(folder.parent)
    (folder / "round").symlink_to(folder / "round")
    os.mkfifo(folder / "pipe")
    for name in (*OUTSIDE, "link", "links/secret.txt", "round", "pipe", "sub", "none"):
        with pytest.raises(MissingError):
            await asyncio.wait_for(read(Folder(folder), name), 10)


async def test_one_file_is_served_alone(folder):
    (folder / "link.bin").symlink_to(folder / "text.bin")
    for name in ("text.bin", "link.bin"):
        only = Folder(folder / name)
        assert (await read(only, name)).data == TEXT
        for other in ("sub/ä b#?%2e.txt", "other", "x/" + name):
            with pytest.raises(MissingError):
                await read(only, other)


async def test_a_file_that_is_written_anew_has_another_version(folder):
    before = await read(Folder(folder), "text.bin", 0, 9)
    (folder / "new").write_bytes(TEXT)
    os.replace(folder / "new", folder / "text.bin")
    assert (await read(Folder(folder), "text.bin", 0, 9)).version != before.version


async def test_a_web_server_is_read_by_ranges(web):
    piece = await read(source_of(web, "ok"), "text.bin", 100, 50)
    assert (piece.data, piece.size) == (TEXT[100:150], len(TEXT))
    assert (await read(source_of(web, "ok", "text.bin"), "text.bin", 10_000)).data == TEXT[10_000:]
    with pytest.raises(BeyondError):
        await read(source_of(web, "ok"), "text.bin", len(TEXT) + 5)
    for name in (*OUTSIDE, "none"):
        with pytest.raises(MissingError):
            await read(source_of(web, "ok"), name)
    with pytest.raises(MissingError):
        await read(source_of(web, "ok", "text.bin"), "other.bin")


async def test_a_name_cannot_change_the_address(web):
    """Signs that mean something in an address reach the source as a part of the name."""
    for name in ("text.bin?x=1", "text.bin#x", "x@127.0.0.1:1", "%2e%2e", "a;b", "ok:80"):
        with pytest.raises(MissingError):
            await read(source_of(web, "ok"), name)
    assert [name for _, name, _ in web.requests] == [
        *("text.bin%3Fx%3D1", "text.bin%23x", "x%40127.0.0.1%3A1", "%252e%252e", "a%3Bb"),
        "ok%3A80",
    ]


@pytest.mark.parametrize("mode", ["busy-1", "many-1", "hang-1", "redirect", "expire", "slow"])
async def test_faults_that_pass(web, mode):
    assert (await read(source_of(web, mode, limits=HASTY), "text.bin")).data == TEXT


@pytest.mark.parametrize(
    ("mode", "error", "says"),
    [
        ("busy-9", AwayError, "status 503"),
        ("trunc", AwayError, "no connection"),
        ("hang", AwayError, "in time"),
        ("short", SourceError, "breaks off|another range|no connection"),
        ("norange", SourceError, "whole files only"),
        ("html", SourceError, "another range|whole files only|otherwise"),
        ("wrong", SourceError, "another range"),
        ("gzip", SourceError, "otherwise than with a range"),
    ],
)
async def test_faults_that_do_not(web, mode, error, says):
    limits = ONCE if mode == "hang" else FEW
    with pytest.raises(error, match=says):
        await read(source_of(web, mode, limits=limits), "text.bin", 4_000, 2_000)


async def test_a_redirect_leads_to_allowed_hosts_only(web, folder):
    """The other server is on the same machine, at another port: another host all the same."""
    with RangeServer(folder) as other:
        web.elsewhere = other.url("ok", "text.bin")
        with pytest.raises(SourceError, match="has not allowed"):
            await read(source_of(web, "elsewhere"), "text.bin")
        assert other.requests == []
        allowed = [place_of(URL(web.elsewhere))]
        piece = await read(source_of(web, "elsewhere", redirects=allowed), "text.bin")
        assert piece.data == TEXT
        for target in (
            "file:///etc/passwd",
            "ftp://127.0.0.1/x",
            web.elsewhere.replace("//", "//user:word@"),
            "http://[::",
            "",
        ):
            web.elsewhere = target
            with pytest.raises(SourceError):
                await read(source_of(web, "elsewhere", redirects=allowed), "text.bin")


async def test_a_source_is_read_again_after_it_was_closed(web):
    source = source_of(web, "ok")
    await read(source, "text.bin")
    assert (await read(source, "text.bin")).data == TEXT


async def test_a_round_of_redirects_ends(web):
    web.elsewhere = web.url("elsewhere", "text.bin")
    with pytest.raises(SourceError, match="again and again"):
        await read(source_of(web, "elsewhere"), "text.bin")
    assert len(web.requests) < 10


async def test_nothing_of_https_is_read_over_http(web):
    """A redirect must not take away what TLS protects."""
    source = Web(web_url("https://example.org/a/"), [("example.org", 80)])
    with pytest.raises(SourceError, match="has not allowed"):
        source._next(URL("https://example.org/a/x"), "http://example.org/x")
    assert str(source._next(URL("https://example.org/a/x"), "/b")) == "https://example.org/b"


async def test_a_source_that_trickles_comes_to_an_end(web):
    """Something comes all the time, but not enough."""
    limits = dataclasses.replace(FEW, data_tries=1, data_read_seconds=0.1)
    with pytest.raises(AwayError, match="in time"):
        await read(source_of(web, "slow", limits=limits), "text.bin")


async def test_a_source_that_hangs_is_asked_a_few_times_at_once(web):
    """Whatever is asked of it; the rest waits."""
    one = dataclasses.replace(ONCE, data_reads=1)
    source = Web(web_url(web.url("hang", "")), limits=one)
    asked = [asyncio.create_task(source.read("text.bin", i, 10)) for i in range(3)]
    await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert len(web.requests) < 3
    assert {type(error) for error in await asyncio.gather(*asked, return_exceptions=True)} == {
        AwayError
    }
    await source.close()


async def test_no_credentials_go_to_a_source(web, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password word\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    await read(source_of(web, "ok"), "text.bin")
    (headers,) = web.headers
    assert {name.lower() for name in headers} <= {
        *("host", "range", "accept", "accept-encoding", "user-agent"),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("https://user:word@host/a/", "user name"),
        ("https://host/a/?token=1", "a query"),
        ("https://host/a/*.parquet", "with a slash"),
        ("https://host/a/#x", "with a slash"),
        ("https:///a/", "no web address"),
        ("https://host:99999/a", "no web address"),
    ],
)
def test_addresses_that_are_not_served(text, says):
    with pytest.raises(ValueError, match=says):
        web_url(text)


async def test_a_whole_host_and_its_folders():
    assert str(web_url("https://host")) in ("https://host", "https://host/")
    source = Web(web_url("https://host"))
    with pytest.raises(MissingError):
        await source.read("..", 0, 1)


def test_hosts_that_may_be_redirected_to():
    assert redirect_host("CDN.example.org") == ("cdn.example.org", 443)
    assert redirect_host("127.0.0.1:80") == ("127.0.0.1", 80)
    assert redirect_host("[::1]:80") == ("::1", 80)
    for text in ("", "http://host", "host/a", "host:", "host:0", "host:70000", "a b", "*"):
        with pytest.raises(ValueError, match=r"no (host name|such port)"):
            redirect_host(text)


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="no file or folder"):
        Folder(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        Folder(tmp_path / "pipe")


async def test_reading_a_folder_does_not_hold_the_loop(folder, monkeypatch):
    """A file may lie on a slow disk."""
    here = threading.get_ident()
    where = []
    monkeypatch.setattr(
        Folder,
        "_read",
        lambda *_: where.append(threading.get_ident()) or Piece(b"", 0, ""),
    )
    await read(Folder(folder), "text.bin")
    assert where != [here]
