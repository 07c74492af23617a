"""Reading files and folders: what counts as text, what is left out, what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import os
import threading
import unicodedata

import fsspec
import pytest

from p2pnode.errors import DataError, SourceAwayError
from p2pnode.limits import LIMITS
from p2pnode.sources.retry import Patience
from p2pnode.train.files import split_blob
from p2pnode.train.manifest import FileEntry, Manifest, parse_manifest
from tests.train.helpers import read_texts


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder)


def small(**changes):
    return dataclasses.replace(LIMITS, **changes)


def test_a_folder_is_read_sorted_and_hashed(tmp_path):
    spec = write(tmp_path, {"b.txt": "two", "a/z.md": "one", "Z.py": "x = 1\n", "ä.rst": "drei"})
    texts = read_texts(spec)
    names = [entry.name for entry in texts.manifest.files]
    assert names == ["Z.py", "a/z.md", "b.txt", "ä.rst"]
    assert texts.contents == (b"x = 1\n", b"one", b"two", b"drei")
    assert texts.manifest.files[1].sha256 == hashlib.sha256(b"one").hexdigest()
    assert texts.manifest.size == 16
    assert read_texts(spec + "/").manifest == texts.manifest


def test_one_file_and_an_url(tmp_path):
    write(tmp_path, {"a.txt": "text"})
    plain = read_texts(str(tmp_path / "a.txt"))
    assert plain.manifest.files == (FileEntry("a.txt", 4, hashlib.sha256(b"text").hexdigest()),)
    assert read_texts(f"file://{tmp_path}/a.txt").manifest == plain.manifest


def test_what_is_left_out_is_counted(tmp_path):
    spec = write(
        tmp_path,
        {
            "good.txt": "text",
            "late.bin": b"a" * 20_000 + b"\xff",
            "early.bin": b"\x89PNG\r\n",
            "cut.txt": "half a character ä".encode()[:-1],
            "empty.txt": "",
            ".hidden.txt": "secret",
            ".git/config": "secret",
            "odd\u202ename.txt": "text",
        },
    )
    os.symlink(tmp_path / "gone", tmp_path / "broken.txt")
    os.mkfifo(tmp_path / "pipe")
    texts = read_texts(spec)
    assert [entry.name for entry in texts.manifest.files] == ["good.txt"]
    skipped = {reason: n for reason, n in dataclasses.asdict(texts.skipped).items() if n}
    assert skipped == {"binary": 3, "empty": 1, "hidden": 2, "other": 3}
    assert "3 binary" in str(texts.skipped)


def test_links_to_folders_cannot_loop_and_links_to_files_are_read(tmp_path):
    spec = write(tmp_path / "data", {"sub/a.txt": "text"})
    os.symlink(tmp_path / "data", tmp_path / "data" / "sub" / "up")
    write(tmp_path, {"elsewhere.txt": "linked"})
    os.symlink(tmp_path / "elsewhere.txt", tmp_path / "data" / "link.txt")
    texts = read_texts(spec)
    assert [entry.name for entry in texts.manifest.files] == ["link.txt", "sub/a.txt"]
    assert texts.skipped.other == 1


def test_names_do_not_depend_on_the_system_that_wrote_them(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "é.txt") for form in ("NFC", "NFD"))
    one = read_texts(write(tmp_path / "one", {composed: "text"}))
    two = read_texts(write(tmp_path / "two", {decomposed: "text"}))
    assert one.manifest == two.manifest
    with pytest.raises(DataError, match="twice"):
        read_texts(write(tmp_path / "both", {composed: "text", decomposed: "text"}))


def test_missing(tmp_path):
    with pytest.raises(DataError, match="no file or folder"):
        read_texts(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("spec", ["nosuchscheme://x", "http+bad://[", "\0"])
def test_an_unusable_name_is_a_sentence(spec):
    with pytest.raises(DataError, match=r"no file|Cannot open"):
        read_texts(spec)


@pytest.fixture
def web():
    """URL of a server whose answers are as bad as the path says."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status = {"/busy": 503, "/throttled": 429, "/missing": 404}.get(self.path, 200)
            self.send_response(status)
            self.send_header("Content-Length", "100")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(b"x" * (50 if self.path == "/cut" else 100))

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_web_server_that_fails_is_a_sentence_that_does_not_call_the_text_missing(web):
    brief = Patience(attempts=2, pause=0.01)
    assert read_texts(f"{web}/good").contents == (b"x" * 100,)
    for path in ("busy", "throttled", "cut"):
        with pytest.raises(SourceAwayError, match=f"{path} cannot be had at the moment"):
            read_texts(f"{web}/{path}", patience=brief)
    with pytest.raises(DataError, match=r"There is no .*missing \(status 404\)"):
        read_texts(f"{web}/missing", patience=brief)


def test_nothing_is_left_out_because_a_server_did_not_give_it(monkeypatch):
    """Of a link whose target is gone that is right; here the machines would read different text."""
    memory = fsspec.filesystem("memory")
    memory.pipe({"/texts/a.txt": b"text", "/texts/b.txt": b"more"})
    real = type(memory).cat_file

    def gone(self, path, *args, **kwargs):
        if path.endswith("b.txt"):
            raise FileNotFoundError(path)
        return real(self, path, *args, **kwargs)

    monkeypatch.setattr(type(memory), "cat_file", gone)
    with pytest.raises(DataError, match=r"Cannot get '/texts/b\.txt'"):
        read_texts("memory://texts")
    memory.rm("/texts", recursive=True)


def test_neither_file_nor_folder(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        read_texts(str(tmp_path / "pipe"))


def test_nothing_to_read(tmp_path):
    with pytest.raises(DataError, match=r"no text in it .left out: 1 binary"):
        read_texts(write(tmp_path, {"x.bin": b"\xff\xfe"}))


def test_unreadable(tmp_path, monkeypatch):
    """A file that cannot be read is not left out: the machines would train on different text."""
    spec = write(tmp_path, {"a.txt": "text", "b.txt": "text"})
    from fsspec.implementations.local import LocalFileSystem

    real = LocalFileSystem.open

    def refuse(self, path, *args, **kwargs):
        if path.endswith("b.txt"):
            raise PermissionError(13, "Permission denied")
        return real(self, path, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "open", refuse)
    with pytest.raises(DataError, match=r"Cannot read .*b\.txt.*Permission denied"):
        read_texts(spec)


def test_limits_hold(tmp_path):
    spec = write(tmp_path, {f"{i}.txt": "0123456789" for i in range(5)})
    assert len(read_texts(spec, small(data_bytes=50)).contents) == 5
    with pytest.raises(DataError, match="at most 49 fit"):
        read_texts(spec, small(data_bytes=49))
    with pytest.raises(DataError, match="more than 4 text files"):
        read_texts(spec, small(data_files=4))
    with pytest.raises(DataError, match="more than 4 entries"):
        read_texts(spec, small(data_entries=4))


def test_a_large_file_is_not_read_whole_to_be_refused(tmp_path):
    write(tmp_path, {"big.txt": "ä" * 50_000})
    for limit in (9_999, 10_000, 50_001):  # also where the cut falls inside a character
        with pytest.raises(DataError, match="at most"):
            read_texts(str(tmp_path / "big.txt"), small(data_bytes=limit))


def test_blob_is_checked_by_length_and_hash(tmp_path):
    texts = read_texts(write(tmp_path, {"a.txt": "first", "b.txt": "second"}))
    blob = b"".join(texts.contents)
    assert split_blob(texts.manifest, blob) == texts.contents
    with pytest.raises(DataError, match="12 bytes; its manifest says 11"):
        split_blob(texts.manifest, blob + b"x")
    with pytest.raises(DataError, match=r"'b\.txt' does not match"):
        split_blob(texts.manifest, blob[:-1] + b"X")


def entry(name="a.txt", size=1, sha256="0" * 64):
    return FileEntry(name, size, sha256)


def test_manifest_round_trip_and_hash():
    manifest = Manifest("files", (entry("a"), entry("b")))
    assert parse_manifest(manifest.canonical()) == manifest
    assert manifest.hash() == hashlib.sha256(manifest.canonical()).hexdigest()
    assert manifest.hash() != Manifest("files", (entry("a"), entry("c"))).hash()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"kind":"files","files":[]}',
        b'{"kind":"other","files":[{"name":"a","size":1,"sha256":"' + b"0" * 64 + b'"}]}',
        Manifest("files", (entry("b"), entry("a"))).canonical(),
        Manifest("files", (entry("a"), entry("a"))).canonical(),
        Manifest("files", (entry("../a"),)).canonical(),
        Manifest("files", (entry("/a"),)).canonical(),
        Manifest("files", (entry("a\nb"),)).canonical(),
        Manifest("files", (entry(size=-1),)).canonical(),
        Manifest("files", (entry(sha256="xyz"),)).canonical(),
        b" " * (LIMITS.manifest_bytes + 1),
    ],
)
def test_a_strangers_manifest_is_checked(raw):
    with pytest.raises(DataError):
        parse_manifest(raw)
