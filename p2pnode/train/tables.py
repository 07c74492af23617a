"""Text in tables: which row groups a run reads, counted once by the host, and reading them again.

The manifest names each row group with the number and the hash of its token ids. So where a window
lies is known without reading anything, and who reads other bytes, or encodes them otherwise, finds
out before it computes on them. May import: manifest, permute, tokenizer, windows, sources, limits,
errors.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from p2pnode.errors import DataError
from p2pnode.limits import LIMITS
from p2pnode.sources.listing import Listing, Skipped
from p2pnode.sources.table import SUFFIX, Footer, GroupError, Shape, Table, read_footer
from p2pnode.sources.units import THREADS, UnitFolder, Units
from p2pnode.train.manifest import FileEntry, Group, Manifest
from p2pnode.train.permute import mix64, permute
from p2pnode.train.tokenizer import Tokenizer
from p2pnode.train.windows import UnitText, compact_dtype, id_bytes_of

_OPEN_TABLES = 4
"""Files whose footers a thread keeps."""


@dataclasses.dataclass(frozen=True)
class Need:
    """How much text a run reads: the host counts no more than that."""

    windows: int
    length: int
    """Ids of a window."""
    seed: int


def is_table(listing: Listing) -> bool:
    """Whether a source is tables: then whatever lies beside them is left out."""
    return any(name.lower().endswith(SUFFIX) for name, _ in listing.files)


def encode(texts: Iterator[str], tokenizer: Tokenizer) -> bytes:
    """Ids of documents, each ended by the separator, in their compact form."""
    dtype = compact_dtype(id_bytes_of(tokenizer.vocabulary))
    end = dtype.type(tokenizer.separator).tobytes()
    return b"".join(
        part for text in texts for part in (tokenizer.encode(text).astype(dtype).tobytes(), end)
    )


class TableReader:
    """Row groups of named files. Thread-safe: every thread has its own open files."""

    def __init__(self, listing: Listing, column: str, expected: dict[str, Shape]) -> None:
        """`expected`: what the files must be, by name; files not in it may be anything."""
        self._listing = listing
        self._paths = dict(listing.files)
        self._column = column
        self._expected = expected
        self._footers: dict[str, Footer] = {}
        self._local = threading.local()

    def table(self, name: str) -> Table:
        """An open file. Raises DataError, also if it is not the expected one."""
        opened: OrderedDict[str, Table] = self._local.__dict__.setdefault("tables", OrderedDict())
        if name not in opened:
            file = self._listing.ranges(self._paths[name])
            footer = self._footers.get(name) or read_footer(file, self._expected.get(name))
            self._footers[name] = footer
            opened[name] = Table(file, footer, self._column)
            while len(opened) > _OPEN_TABLES:
                opened.popitem(last=False)
        opened.move_to_end(name)
        return opened[name]

    def forget(self, name: str) -> None:
        """Open the file anew next time: what is kept of it may have arrived damaged."""
        self._footers.pop(name, None)
        self._local.__dict__.get("tables", {}).pop(name, None)


def count(
    listing: Listing, column: str, tokenizer: Tokenizer, need: Need, folder: UnitFolder | None
) -> tuple[Manifest, Skipped]:
    """The manifest of a new run: row groups in an order drawn from the seed, until there are
    enough. Reads and encodes them once, and leaves them in `folder`.

    A row group that cannot be decoded is left out and counted. Raises DataError.
    """
    names = _tables(listing)
    skipped = dataclasses.replace(listing.skipped)
    skipped.other += len(listing.files) - len(names)
    if len(names) > LIMITS.data_files:
        raise DataError(f"{listing.spec!r} has more than {LIMITS.data_files} files.")
    reader = TableReader(listing, column, {})
    id_bytes = id_bytes_of(tokenizer.vocabulary)

    def read(place: tuple[str, int]) -> tuple[Group | None, Skipped]:
        name, index = place
        left_out = Skipped()
        for attempt in (1, 2):  # what was damaged on its way is read once more
            left_out = Skipped()
            try:
                table = reader.table(name)
                raw = encode(table.texts(index, left_out), tokenizer)
                break
            except GroupError:
                reader.forget(name)
                if attempt == 2:
                    return None, Skipped(broken=1)
        if not raw:
            return None, left_out
        digest = hashlib.sha256(raw).hexdigest()
        if folder is not None:
            folder.save(digest, raw)
        return Group(0, index, table.rows(index), len(raw) // id_bytes, digest), left_out

    found: dict[tuple[str, int], Group] = {}
    for place, (group, left_out) in _ahead(read, places(reader, listing, need.seed)):
        for field in dataclasses.fields(Skipped):
            total = getattr(skipped, field.name) + getattr(left_out, field.name)
            setattr(skipped, field.name, total)
        if group is None:
            continue
        found[place] = group
        if _enough(list(found.values()), need) or len(found) == LIMITS.data_groups:
            break
    if not found:
        raise DataError(f"{listing.spec!r} has no text in {column!a} (left out: {skipped}).")
    used = sorted({name for name, _ in found}, key=lambda name: name.encode())
    files = []
    for name in used:
        shape = reader.table(name).shape
        files.append(FileEntry(name, shape.size, shape.footer))
    ordered = sorted(
        (used.index(name), index, g.rows, g.tokens, g.sha256) for (name, index), g in found.items()
    )
    manifest = Manifest(
        "table",
        tuple(files),
        column=column,
        groups=tuple(Group(*facts) for facts in ordered),
        id_bytes=id_bytes,
        source=listing.spec if listing.spec.startswith("hf://") else "",
        tokenizer_bytes=len(tokenizer.file),
    )
    manifest.check()
    return manifest, skipped


def _reader(manifest: Manifest, listing: Listing) -> TableReader:
    shapes = {entry.name: Shape(entry.size, entry.sha256) for entry in manifest.files}
    return TableReader(listing, manifest.column, shapes)


def check_files(manifest: Manifest, listing: Listing) -> None:
    """Read the footers of the manifest's files. Raises DataError if the source has others,
    SourceAwayError."""
    reader = _reader(manifest, listing)
    for entry in manifest.files:
        reader.table(entry.name)


def documents(listing: Listing, column: str, skipped: Skipped) -> Iterator[str]:
    """All texts of a source's tables in order, a row group at a time; nothing is kept. What is left
    out is counted. Raises DataError."""
    reader = TableReader(listing, column, {})
    for name in _tables(listing):
        for group in range(reader.table(name).groups):
            left_out = Skipped()
            try:
                texts = list(reader.table(name).texts(group, left_out))
            except GroupError:
                skipped.broken += 1
                continue
            skipped.nulls += left_out.nulls
            skipped.binary += left_out.binary
            yield from texts
        reader.forget(name)


def _tables(listing: Listing) -> list[str]:
    return [name for name, _ in listing.files if name.lower().endswith(SUFFIX)]


def places(reader: TableReader, listing: Listing, seed: int) -> Iterator[tuple[str, int]]:
    """Row groups, file by file, both in a keyed order: few footers are read for a short run."""
    names = _tables(listing)
    for i in range(len(names)):
        number = permute(i, len(names), mix64(seed))
        groups = reader.table(names[number]).groups
        for j in range(groups):
            yield names[number], permute(j, groups, mix64(seed ^ mix64(number)))


def _ahead(
    read: Callable[[tuple[str, int]], tuple[Group | None, Skipped]],
    places: Iterator[tuple[str, int]],
) -> Iterator[tuple[tuple[str, int], tuple[Group | None, Skipped]]]:
    """Results in order, with a few of the next under way in threads."""
    pool = concurrent.futures.ThreadPoolExecutor(THREADS, "count")
    try:
        queue = [
            (place, pool.submit(read, place)) for place in itertools.islice(places, 2 * THREADS)
        ]
        while queue:
            place, future = queue.pop(0)
            result = future.result()
            queue += [(place, pool.submit(read, place)) for place in itertools.islice(places, 1)]
            yield place, result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _enough(groups: list[Group], need: Need) -> bool:
    windows = sum(group.tokens // need.length for group in groups)
    return windows - windows // 20 >= need.windows


def open_units(
    manifest: Manifest, fetch: Callable[[int], bytes], folder: UnitFolder | None
) -> UnitText:
    """The text of a manifest whose row groups `fetch` gets in their compact form."""
    digests = [group.sha256 for group in manifest.groups]
    tokens = [group.tokens for group in manifest.groups]
    return UnitText(tokens, manifest.id_bytes, Units(digests, fetch, folder))


def fetcher(manifest: Manifest, listing: Listing, tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """Reads a row group of the manifest from this machine's own source. Raises DataError now if
    the source lacks a file."""
    here = {name for name, _ in listing.files}
    lacking = [entry.name for entry in manifest.files if entry.name not in here]
    if lacking:
        raise DataError(
            f"{listing.spec!r} lacks {len(lacking)} of the run's {len(manifest.files)} files, "
            f"the first is {lacking[0]!r}."
        )
    reader = _reader(manifest, listing)

    def fetch(unit: int) -> bytes:
        group = manifest.groups[unit]
        name = manifest.files[group.file].name
        for _ in range(2):  # what was damaged on its way is read once more
            try:
                raw = encode(reader.table(name).texts(group.index, Skipped()), tokenizer)
            except DataError:
                reader.forget(name)
                raise
            if hashlib.sha256(raw).hexdigest() == group.sha256:
                return raw
            reader.forget(name)
        raise DataError(_other_tokens(name, group, tokenizer))

    return fetch


def _other_tokens(name: str, group: Group, tokenizer: Tokenizer) -> str:
    encoded = (
        ", or the versions of the package `tokenizers` differ: install the host's"
        if tokenizer.file
        else ""
    )
    return (
        f"Row group {group.index} of {name} gives other tokens here than at the host. The file was "
        f"replaced or damaged: give --data a right copy{encoded}. Then start this machine again; "
        "until then it takes no work that needs this row group."
    )


def split_units(manifest: Manifest, blob: bytes) -> list[bytes]:
    """The row groups' ids from their concatenation; their hashes are checked when they are used.
    Raises DataError if the length is wrong."""
    if len(blob) != manifest.size:
        raise DataError(
            f"The transferred text has {len(blob)} bytes; its manifest says {manifest.size}."
        )
    ends = itertools.accumulate(
        (group.tokens * manifest.id_bytes for group in manifest.groups), initial=0
    )
    return [blob[a:b] for a, b in itertools.pairwise(ends)]
