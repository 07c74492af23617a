"""Files that come through the signaling server while their own source does not work."""

import dataclasses
import time

import pytest

from p2pnode.errors import DataError, SourceAwayError
from p2pnode.sources import door as door_module
from p2pnode.sources.door import Door, DoorFile, Offer, list_either
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
def door(server):
    said = []
    made = Door(said.append)
    made.said = said
    made.offer = offer(server)
    return made


def file_of(spec, door, sizes=None):
    listing = list_either(spec, sizes or SIZES, door, patience=BRIEF)
    ((_, path),) = listing.files
    return listing.ranges(path)


def test_a_source_that_works_is_read_itself(own, server, door):
    file = file_of(url(own), door)
    assert file.read(10, 20) == TEXT[10:30]
    assert file.size == len(TEXT)
    assert (server.requests, door.said) == ([], [])


@pytest.mark.parametrize("mode", ["busy-99", "norange", "html", "wrong", "nothing", "deny-9"])
def test_one_that_does_not_is_read_through_the_server(own, server, door, mode):
    """Firewalls answer in many ways; whatever it is, the manifest tells."""
    if mode == "norange":
        (own.folder / "other").mkdir()
        (own.folder / "other" / NAME).write_bytes(b"Access denied")
        own.folder = own.folder / "other"
    elif mode == "nothing":
        own.away = True
    file = file_of(url(own, mode), door)
    assert file.read(10, 20) == TEXT[10:30]
    assert file.read(0, 10**6) == TEXT
    assert file.size == len(TEXT)
    asked = len(own.requests)
    assert file.read(0, 5) == TEXT[:5]
    assert len(own.requests) == asked, "it is left alone for a while"
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer token"}
    assert all("Authorization" not in headers for headers in own.headers)
    (sentence,) = door.said
    assert "read through the signaling server" in sentence


def test_a_source_that_comes_back_is_read_itself_again(own, server, door, monkeypatch):
    own.away = True
    file = file_of(url(own), door)
    file.read(0, 5)
    own.away = False
    file.read(0, 5)
    assert len(door.said) == 1
    later = time.monotonic() + door_module.OWN_AGAIN_SECONDS
    monkeypatch.setattr(door_module.time, "monotonic", lambda: later)
    asked = len(server.requests)
    assert file.read(5, 5) == TEXT[5:10]
    assert len(server.requests) == asked
    assert door.said[1:] == ["The text's own source answers again."]


def test_without_an_offer_everything_is_as_before(own, door):
    door.offer = None
    own.away = True
    with pytest.raises(SourceAwayError, match=r"status 503 \(2 tries\)"):
        file_of(url(own), door).read(0, 5)
    assert list_either(None, SIZES, door).files == ()
    assert door.said == []


def test_who_has_no_source_reads_through_the_server(door):
    assert file_of(None, door).read(0, 9) == TEXT[:9]
    assert door.said == [
        "There is no other source of the text here. It is read through the signaling server "
        "instead, and checked as ever."
    ]


def test_when_both_fail_both_are_told(own, server, door):
    own.away = server.away = True
    with pytest.raises(SourceAwayError, match=r"tries.*does not help.*through the sig"):
        file_of(url(own), door).read(0, 5)
    own.away = False
    assert file_of(url(own), door).read(0, 5) == TEXT[:5], "it is tried again at once"


@pytest.mark.parametrize(
    ("own", "server_away", "kind"),
    [
        (SourceAwayError, True, SourceAwayError),
        (SourceAwayError, False, SourceAwayError),
        (DataError, True, SourceAwayError),
        (DataError, False, DataError),
    ],
)
def test_what_may_come_yet_is_told_apart(server, door, monkeypatch, own, server_away, kind):
    """Who waits for a source, or takes the text of others meanwhile, has to know."""

    def refuse(*_):
        raise own("The list is refused.")

    monkeypatch.setattr(door_module, "list_files", refuse)
    server.away = server_away
    with pytest.raises(DataError, match=r"refused. The signaling server does not help: ") as caught:
        file_of("https://example.org/a/*.bin", door, {"none.bin": 5}).read(0, 5)
    assert caught.type is kind
    server.away = False
    assert file_of("https://example.org/a/*.bin", door).read(0, 5) == TEXT[:5]


def test_the_right_source_is_found_by_size(server, door):
    for number, content in enumerate((b"another file", TEXT + b"longer", TEXT)):
        (server.folder / str(number)).mkdir()
        (server.folder / str(number) / NAME).write_bytes(content)
    door.offer = offer(server, sources=3)
    assert file_of(None, door).read(0, 10**6) == TEXT
    assert file_of(None, door, {NAME: 12}).read(0, 99) == b"another file"
    assert file_of(None, door, {NAME: None}).read(0, 99) == b"another file"
    with pytest.raises(DataError, match=r"serves no 'a.bin' of that size"):
        file_of(None, door, {NAME: 5}).read(0, 5)
    with pytest.raises(DataError, match=r"serves no 'none' of that size"):
        file_of(None, door, {"none": 5}).read(0, 5)


def test_a_redirect_of_the_server_leads_nowhere(own, server, door):
    """It could make nodes ask machines of their own networks."""
    server.elsewhere = url(own)
    door.offer = offer(server, "elsewhere")
    with pytest.raises(DataError):
        file_of(None, door).read(0, 5)
    assert len(server.requests) > 0
    assert own.requests == []


def test_a_server_that_sends_whole_files_is_not_listened_to(server, door):
    door.offer = offer(server, "norange")
    file = DoorFile(door, 0, NAME, BRIEF)
    with pytest.raises(DataError, match="whole files"):
        file.read(0, 5)


def test_signs_in_names_are_quoted(server, door):
    with pytest.raises(DataError, match="There is no"):
        DoorFile(door, 0, "x/a b#?.bin", BRIEF).read(0, 5)
    assert server.requests[-1][1] == "0/x/a%20b%23%3F.bin"


def test_no_proxy_of_the_environment_stands_between(door, monkeypatch):
    """As with the connection to the same server."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert file_of(None, door).read(0, 9) == TEXT[:9]


def test_a_new_connection_has_a_new_token(server, door):
    """Until it is there the server knows nobody, which passes."""
    door.offer = offer(server, "deny-1")
    file = file_of(None, door)
    assert file.read(0, 5) == TEXT[:5]
    door.offer = dataclasses.replace(door.offer, token="another")
    assert file.read(5, 5) == TEXT[5:10]
    assert server.headers[-1]["Authorization"] == "Bearer another"
    door.offer = None
    with pytest.raises(SourceAwayError, match="no connection to the signaling server"):
        file.read(5, 5)


def test_files_that_only_the_server_has_are_added(own, door, tmp_path):
    listing = list_either(url(own), {"0": 5, NAME: len(TEXT), "z": 5}, door, patience=BRIEF)
    assert [name for name, _ in listing.files] == ["0", NAME, "z"]


def test_a_folder_of_this_machine_is_what_it_is(door, tmp_path):
    """A path that is mistyped shall be told, not be replaced."""
    with pytest.raises(DataError, match="check --data"):
        list_either(str(tmp_path / "none"), SIZES, door)
    (tmp_path / "texts").mkdir()
    assert list_either(str(tmp_path / "texts"), SIZES, door).local


def test_a_list_that_cannot_be_had_comes_from_the_manifest(own, door):
    own.away = True
    listing = list_either(own.url("ok", "") + "*.bin", SIZES, door, patience=BRIEF)
    ((name, path),) = listing.files
    assert (name, listing.ranges(path).read(0, 9)) == (NAME, TEXT[:9])
    assert "through the signaling server" in door.said[0]
    with listing.open(path) as file:
        assert file.read() == TEXT
