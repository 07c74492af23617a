"""Names of sources: hub addresses, sources known by name, web addresses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from p2pnode.errors import DataError
from p2pnode.sources import listing
from p2pnode.sources.http import HttpFile
from p2pnode.train.open_data import open_dataset
from tests.harness.range_server import RangeServer
from tests.harness.real_text import passages, write_parquet


class Hub(MemoryFileSystem):
    """Lists as the hub's file system does, and names the web address of a file."""

    protocol = "hf"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    web: ClassVar[RangeServer]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("hf://", "memory://"))

    def url(self, path: str) -> str:
        return self.web.url("redirect", path.rsplit("/", 1)[-1])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for i in range(2):
        write_parquet(tmp_path / f"{i}.parquet", passages()[100 * i : 100 * i + 60], 20)
    known = dict(fsspec.registry)
    fsspec.register_implementation("hf", Hub, clobber=True)
    files = Hub()
    for i in range(2):  # no contents: they come from the web
        files.pipe(f"/datasets/some/texts/{i}.parquet", b"")
    with RangeServer(tmp_path) as web:
        monkeypatch.setattr(Hub, "web", web, raising=False)
        yield files
    Hub.store.clear()
    if "hf" in known:
        fsspec.register_implementation("hf", known["hf"], clobber=True)


def test_files_of_the_hub_are_read_over_the_web_and_members_need_no_data(hub: Hub) -> None:
    spec = "hf://datasets/some/texts/*.parquet"
    host = open_dataset(spec)
    assert [entry.name for entry in host.manifest.files] == ["0.parquet", "1.parquet"]
    assert host.manifest.source == spec
    assert {mode for mode, _, _ in hub.web.requests} == {"redirect", "ok"}
    member = open_dataset(None, host.manifest)
    assert member.blob() == host.blob()


def test_a_source_with_a_name(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(listing.KNOWN, "known", "hf://datasets/some/texts")
    found = listing.list_files("known")
    assert [name for name, _ in found.files] == ["0.parquet", "1.parquet"]
    assert isinstance(found.ranges(found.files[0][1]), HttpFile)
    assert listing.KNOWN["fineweb-edu"].startswith("hf://datasets/HuggingFaceFW/fineweb-edu/")


def test_a_file_system_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(spec: str) -> Any:
        raise ImportError("no module named huggingface_hub")

    monkeypatch.setattr(fsspec.core, "url_to_fs", lacking)
    with pytest.raises(DataError, match=r"pip install 'p2pnode\[hf\]'"):
        listing.list_files("hf://datasets/some/texts")
    with pytest.raises(DataError, match="Cannot open 's3://x/y'"):
        listing.list_files("s3://x/y")


def test_a_web_address_is_named_by_its_last_part() -> None:
    found = listing.list_files("https://host.example/a/b%20c.txt?download=true")
    assert found.files == (("b c.txt", "https://host.example/a/b%20c.txt?download=true"),)
