"""Blobs by name: fetching one in parts from several donors, and serving one.

May import: errors, messages. Used for the state of a late joiner and for data files.

A blob's name (root) is the SHA-256 of its size and its parts' hashes, so every part can be checked
when it arrives, whoever sent it. A donor that goes away costs the parts asked of it, no more.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from p2pnode.errors import PeerError
from p2pnode.protocol.messages import (
    MAX_PARTS,
    PART_BYTES,
    BlobIndex,
    BlobPart,
    BlobWant,
    Buffer,
    Message,
    PeerId,
)

PER_DONOR = 4
"""Parts asked of one donor at a time: enough to keep its line busy."""


def part_count(size: int) -> int:
    return (size + PART_BYTES - 1) // PART_BYTES


def part_hashes(blob: Buffer) -> bytes:
    """SHA-256 of every part, one after the other (32 bytes each)."""
    view = memoryview(blob)
    return b"".join(
        hashlib.sha256(view[start : start + PART_BYTES]).digest()
        for start in range(0, len(view), PART_BYTES)
    )


def right_parts(hashes: bytes, blob: Buffer) -> frozenset[int]:
    """Numbers of the parts of a blob that match their hashes."""
    found = part_hashes(blob)
    return frozenset(
        start // 32
        for start in range(0, len(hashes), 32)
        if found[start : start + 32] == hashes[start : start + 32]
    )


def root_of(size: int, hashes: Buffer) -> bytes:
    """Name of the blob with this size in bytes and these part hashes."""
    digest = hashlib.sha256(b"p2pnode blob")
    digest.update(size.to_bytes(8, "little"))
    digest.update(hashes)
    return digest.digest()


class Blob:
    """A blob this node can serve."""

    def __init__(self, payload: Buffer, hashes: bytes) -> None:
        self._payload = memoryview(payload)
        self._hashes = hashes
        self.root = root_of(len(payload), hashes)

    def answer(self, run: bytes, want: BlobWant) -> tuple[Message, Buffer] | None:
        """Message and payload that answer a request for this blob; None if it has no such part."""
        if want.part < 0:
            return BlobIndex(run, self.root, len(self._payload)), self._hashes
        start = want.part * PART_BYTES
        if start >= len(self._payload):
            return None
        return BlobPart(run, self.root, want.part), self._payload[start : start + PART_BYTES]


class Fetcher:
    """Fetches one blob. `requests` says what to ask of whom; answers go into `index` and `part`."""

    def __init__(self, run: bytes, root: bytes, max_size: int, pause: float = 2.0) -> None:
        """`max_size`: largest size believed, in bytes. `pause`: seconds without a byte from a
        donor after which what was asked of it may be asked of another."""
        self._run = run
        self.root = root
        self._max_size = max_size
        self._pause = pause
        self._donors: dict[PeerId, float] = {}
        self._bad: set[PeerId] = set()
        self._silences: Counter[PeerId] = Counter()
        """Requests that each donor let pass since it last gave something."""
        self._hashes: bytes | None = None
        self._blob = bytearray()
        self._missing: dict[int, None] = {}
        self._asked: dict[int, tuple[PeerId, float]] = {}
        self.size = 0

    @property
    def hashes(self) -> bytes:
        """SHA-256 of every part; empty until known."""
        return self._hashes or b""

    def restore(self, size: int, hashes: bytes, blob: bytearray, parts: frozenset[int]) -> None:
        """Go on from parts that were fetched before. All was checked against the blob's name."""
        self._begin(size, hashes, blob)
        for part in parts:
            del self._missing[part]

    def _begin(self, size: int, hashes: bytes, blob: bytearray) -> None:
        self._hashes, self.size, self._blob = hashes, size, blob
        self._missing = dict.fromkeys(range(part_count(size)))
        self._asked.clear()

    def set_donors(self, donors: Iterable[PeerId]) -> None:
        """Peers that have the blob now; what was asked of others is free to be asked again."""
        names = [peer for peer in donors if peer not in self._bad]
        self._donors = {peer: self._donors.get(peer, float("-inf")) for peer in names}
        self._asked = {part: asked for part, asked in self._asked.items() if asked[0] in names}

    @property
    def donors(self) -> tuple[PeerId, ...]:
        return tuple(self._donors)

    @property
    def done(self) -> bool:
        return self._hashes is not None and not self._missing

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes here and bytes in all (0 until known)."""
        return max(0, self.size - PART_BYTES * len(self._missing)), self.size

    def blob(self) -> bytearray:
        """The whole blob, once `done`; every part matched its hash."""
        if not self.done:
            raise ValueError("the blob is not complete")
        return self._blob

    def heard(self, peer: PeerId, now: float) -> None:
        """Bytes of some part came from a donor: it is not asked twice for what is under way."""
        if peer in self._donors:
            self._donors[peer] = now

    def forget_requests(self, peer: PeerId) -> None:
        """The link to a donor broke: what was under way is lost."""
        self._asked = {part: asked for part, asked in self._asked.items() if asked[0] != peer}

    def requests(self, now: float) -> list[tuple[PeerId, BlobWant]]:
        """What to ask now."""
        for part, (peer, at) in list(self._asked.items()):
            if now - max(at, self._donors.get(peer, at)) >= self._pause:
                del self._asked[part]
                self._silences[peer] += 1
        load = dict.fromkeys(self._donors, 0)
        for peer, _ in self._asked.values():
            load[peer] += 1
        wanted = [-1] if self._hashes is None else list(self._missing)
        result = []
        for part in wanted:
            if part in self._asked:
                continue
            # The least silent (it may not have the blob, or be gone), then the least loaded, then
            # the one heard of last.
            free = [peer for peer in load if load[peer] < PER_DONOR]
            if not free:
                break
            peer = min(
                free, key=lambda name: (self._silences[name], load[name], -self._donors[name])
            )
            load[peer] += 1
            self._asked[part] = (peer, now)
            result.append((peer, BlobWant(self._run, self.root, part)))
        return result

    def index(self, peer: PeerId, message: BlobIndex, payload: Buffer) -> None:
        """The part hashes came. PeerError if they do not give the blob's name."""
        if message.root != self.root or self._hashes is not None:
            return
        count = part_count(message.size)
        if (
            not 0 < count <= MAX_PARTS
            or message.size > self._max_size
            or len(payload) != 32 * count
            or root_of(message.size, payload) != self.root
        ):
            self._spurn(peer)
            raise PeerError("the index of a blob does not match the blob's name")
        del self._silences[peer]
        self._begin(message.size, bytes(payload), bytearray(message.size))

    def part(self, peer: PeerId, message: BlobPart, payload: Buffer) -> bool:
        """A part came; says whether it was missing. PeerError if its bytes are wrong; nothing wrong
        is ever kept."""
        if message.root != self.root or self._hashes is None or message.part not in self._missing:
            return False
        start = message.part * PART_BYTES
        digest = self._hashes[32 * message.part : 32 * message.part + 32]
        expected = min(PART_BYTES, self.size - start)
        if len(payload) != expected or hashlib.sha256(payload).digest() != digest:
            self._spurn(peer)
            raise PeerError(f"part {message.part} of a blob is not what its index promises")
        del self._silences[peer]
        self._blob[start : start + expected] = payload
        del self._missing[message.part]
        self._asked.pop(message.part, None)
        return True

    def _spurn(self, peer: PeerId) -> None:
        self._bad.add(peer)
        self._donors.pop(peer, None)
        self.forget_requests(peer)
