"""Files that come through the signaling server while their own source does not work."""

import dataclasses
import time

import pytest

from p2pnode.errors import DataError, SourceAwayError
from p2pnode.sources import proxied as proxy_module
from p2pnode.sources.proxied import DataProxy, Offer, ProxiedFile, list_either
from p2pnode.sources.retry import Patience
from tests.harness.range_server import RangeServer

BRIEF = Patience(attempts=2, pause=0.01, longest_pause=0.01, asked_pause=0.01)
TEXT = bytes(range(256)) * 40
NAME = "a.bin"
SIZES = {NAME: len(TEXT)}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / NAME).write_bytes(TEXT)
    return tmp_path


@pytest.fixture
def own(folder):
    with RangeServer(folder) as running:
        yield running


@pytest.fixture
def server(folder):
    """In the signaling server's place."""
    with RangeServer(folder) as running:
        yield running


def url(server, mode="ok"):
    return server.url(mode, NAME)


def offer(server, mode="ok", sources=1):
    return Offer(server.url(mode, ""), "token", sources)


@pytest.fixture
def proxy(server):
    said = []
    made = DataProxy(said.append)
    made.said = said
    made.offer = offer(server)
    return made


def file_of(spec, proxy, sizes=None):
    listing = list_either(spec, sizes or SIZES, proxy, patience=BRIEF)
    ((_, path),) = listing.files
    return listing.ranges(path)


def test_a_source_that_works_is_read_itself(own, server, proxy):
    file = file_of(url(own), proxy)
    assert file.read(10, 20) == TEXT[10:30]
    assert file.size == len(TEXT)
    assert (server.requests, proxy.said) == ([], [])


@pytest.mark.parametrize("mode", ["busy-99", "norange", "html", "wrong", "nothing", "deny-9"])
def test_one_that_does_not_is_read_through_the_server(own, server, proxy, mode):
    """Firewalls answer in many ways; whatever it is, the manifest tells."""
    if mode == "norange":
        (own.folder / "other").mkdir()
        (own.folder / "other" / NAME).write_bytes(b"Access denied")
        own.folder = own.folder / "other"
    elif mode == "nothing":
        own.away = True
    file = file_of(url(own, mode), proxy)
    assert file.read(10, 20) == TEXT[10:30]
    assert file.read(0, 10**6) == TEXT
    assert file.size == len(TEXT)
    asked = len(own.requests)
    assert file.read(0, 5) == TEXT[:5]
    assert len(own.requests) == asked, "it is left alone for a while"
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer token"}
    assert all("Authorization" not in headers for headers in own.headers)
    (sentence,) = proxy.said
    assert "read through the signaling server" in sentence


def test_a_source_that_comes_back_is_read_itself_again(own, server, proxy, monkeypatch):
    own.away = True
    file = file_of(url(own), proxy)
    file.read(0, 5)
    own.away = False
    file.read(0, 5)
    assert len(proxy.said) == 1
    later = time.monotonic() + proxy_module.OWN_AGAIN_SECONDS
    monkeypatch.setattr(proxy_module.time, "monotonic", lambda: later)
    asked = len(server.requests)
    assert file.read(5, 5) == TEXT[5:10]
    assert len(server.requests) == asked
    assert proxy.said[1:] == ["The text's own source answers again."]


def test_without_an_offer_everything_is_as_before(own, proxy):
    proxy.offer = None
    own.away = True
    with pytest.raises(SourceAwayError, match=r"status 503 \(2 tries\)"):
        file_of(url(own), proxy).read(0, 5)
    assert list_either(None, SIZES, proxy).files == ()
    assert proxy.said == []


def test_who_has_no_source_reads_through_the_server(proxy):
    assert file_of(None, proxy).read(0, 9) == TEXT[:9]
    assert proxy.said == [
        "There is no other source of the text here. It is read through the signaling server "
        "instead, and checked as ever."
    ]


def test_when_both_fail_both_are_told(own, server, proxy):
    own.away = server.away = True
    with pytest.raises(SourceAwayError, match=r"tries.*does not help.*through the sig"):
        file_of(url(own), proxy).read(0, 5)
    own.away = False
    assert file_of(url(own), proxy).read(0, 5) == TEXT[:5], "it is tried again at once"


@pytest.mark.parametrize(
    ("own", "server_away", "kind"),
    [
        (SourceAwayError, True, SourceAwayError),
        (SourceAwayError, False, SourceAwayError),
        (DataError, True, SourceAwayError),
        (DataError, False, DataError),
    ],
)
def test_what_may_come_yet_is_told_apart(server, proxy, monkeypatch, own, server_away, kind):
    """Who waits for a source, or takes the text of others meanwhile, has to know."""

    def refuse(*_):
        raise own("The list is refused.")

    monkeypatch.setattr(proxy_module, "list_files", refuse)
    server.away = server_away
    with pytest.raises(DataError, match=r"refused. The signaling server does not help: ") as caught:
        file_of("https://example.org/a/*.bin", proxy, {"none.bin": 5}).read(0, 5)
    assert caught.type is kind
    server.away = False
    assert file_of("https://example.org/a/*.bin", proxy).read(0, 5) == TEXT[:5]


def test_the_right_source_is_found_by_size(server, proxy):
    for number, content in enumerate((b"another file", TEXT + b"longer", TEXT)):
        (server.folder / str(number)).mkdir()
        (server.folder / str(number) / NAME).write_bytes(content)
    proxy.offer = offer(server, sources=3)
    assert file_of(None, proxy).read(0, 10**6) == TEXT
    assert file_of(None, proxy, {NAME: 12}).read(0, 99) == b"another file"
    assert file_of(None, proxy, {NAME: None}).read(0, 99) == b"another file"
    with pytest.raises(DataError, match=r"serves no 'a.bin' of that size"):
        file_of(None, proxy, {NAME: 5}).read(0, 5)
    with pytest.raises(DataError, match=r"serves no 'none' of that size"):
        file_of(None, proxy, {"none": 5}).read(0, 5)


def test_a_redirect_of_the_server_leads_nowhere(own, server, proxy):
    """It could make nodes ask machines of their own networks."""
    server.elsewhere = url(own)
    proxy.offer = offer(server, "elsewhere")
    with pytest.raises(DataError):
        file_of(None, proxy).read(0, 5)
    assert len(server.requests) > 0
    assert own.requests == []


def test_a_server_that_sends_whole_files_is_not_listened_to(server, proxy):
    proxy.offer = offer(server, "norange")
    file = ProxiedFile(proxy, 0, NAME, BRIEF)
    with pytest.raises(DataError, match="whole files"):
        file.read(0, 5)


def test_signs_in_names_are_quoted(server, proxy):
    with pytest.raises(DataError, match="There is no"):
        ProxiedFile(proxy, 0, "x/a b#?.bin", BRIEF).read(0, 5)
    assert server.requests[-1][1] == "0/x/a%20b%23%3F.bin"


def test_no_proxy_of_the_environment_stands_between(proxy, monkeypatch):
    """As with the connection to the same server."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert file_of(None, proxy).read(0, 9) == TEXT[:9]


def test_a_new_connection_has_a_new_token(server, proxy):
    """Until it is there the server knows nobody, which passes."""
    proxy.offer = offer(server, "deny-1")
    file = file_of(None, proxy)
    assert file.read(0, 5) == TEXT[:5]
    proxy.offer = dataclasses.replace(proxy.offer, token="another")
    assert file.read(5, 5) == TEXT[5:10]
    assert server.headers[-1]["Authorization"] == "Bearer another"
    proxy.offer = None
    with pytest.raises(SourceAwayError, match="no connection to the signaling server"):
        file.read(5, 5)


def test_files_that_only_the_server_has_are_added(own, proxy, tmp_path):
    listing = list_either(url(own), {"0": 5, NAME: len(TEXT), "z": 5}, proxy, patience=BRIEF)
    assert [name for name, _ in listing.files] == ["0", NAME, "z"]


def test_a_folder_of_this_machine_is_what_it_is(proxy, tmp_path):
    """A path that is mistyped shall be told, not be replaced."""
    with pytest.raises(DataError, match="check --data"):
        list_either(str(tmp_path / "none"), SIZES, proxy)
    (tmp_path / "texts").mkdir()
    assert list_either(str(tmp_path / "texts"), SIZES, proxy).local


def test_a_list_that_cannot_be_had_comes_from_the_manifest(own, proxy):
    own.away = True
    listing = list_either(own.url("ok", "") + "*.bin", SIZES, proxy, patience=BRIEF)
    ((name, path),) = listing.files
    assert (name, listing.ranges(path).read(0, 9)) == (NAME, TEXT[:9])
    assert "through the signaling server" in proxy.said[0]
    with listing.open(path) as file:
        assert file.read() == TEXT
