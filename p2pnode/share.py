"""The run's text for members that lack it: served by those who have it, fetched in hashed parts.

May import: net, protocol. Used before a member has a step core; the blob's name stands in
the run's record, signed by the host, so whoever serves it cannot change it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from p2pnode.net import events as wire
from p2pnode.net.mesh import Mesh
from p2pnode.protocol.fetch import Blob, Fetcher, part_hashes
from p2pnode.protocol.messages import (
    BlobIndex,
    BlobPart,
    BlobWant,
    Buffer,
    Message,
    PeerId,
    encode,
)

LOOK_SECONDS = 0.5
"""How often an unfinished transfer looks for silent donors."""


def share(payload: bytes) -> Blob:
    """The blob of a text, ready to be served. Hashes it: in the computing thread."""
    return Blob(payload, part_hashes(payload))


class DataShare:
    """One run's text as a blob, named `root`. All methods are called on the event loop."""

    def __init__(self, mesh: Mesh, run: bytes, root: bytes) -> None:
        """`run`: first 16 bytes of the run's id; `root`: 32 bytes."""
        self._mesh = mesh
        self._run = run
        self._root = root
        self._blob: Blob | None = None
        self._fetcher: Fetcher | None = None
        self._changed = asyncio.Event()

    def serve(self, blob: Blob) -> None:
        """Answer requests from now on, if this is the blob of that name."""
        if blob.root == self._root:
            self._blob = blob

    def takes(self, peer: PeerId, message: Message, payload: Buffer) -> bool:
        """True if the message is about this blob; it is then dealt with.

        Raises PeerError if it breaks a rule.
        """
        match message:
            case BlobWant(root=self._root):
                answer = self._blob.answer(self._run, message) if self._blob else None
                if answer is not None:
                    self._send(peer, *answer, wire.Priority.STATE)
            case BlobIndex(root=self._root):
                self._take(lambda fetcher: fetcher.index(peer, message, payload))
            case BlobPart(root=self._root):
                self._take(lambda fetcher: fetcher.part(peer, message, payload))
            case _:
                return False
        return True

    def heard(self, peer: PeerId, now: float) -> None:
        """Something came from a peer: its transfer moves."""
        if self._fetcher is not None:
            self._fetcher.heard(peer, now)

    def link_down(self, peer: PeerId) -> None:
        """What was on its way from this peer is lost."""
        if self._fetcher is not None:
            self._fetcher.forget_requests(peer)
            self._changed.set()

    async def fetch(
        self,
        size: int,
        donors: Callable[[], Iterable[PeerId]],
        progress: Callable[[int, int], None],
    ) -> bytes:
        """The blob of at most `size` bytes; waits until it is whole.

        donors: who may have it now. progress: called with bytes here and bytes in all, when they
        change.
        """
        loop = asyncio.get_running_loop()
        self._fetcher = fetcher = Fetcher(self._run, self._root, size)
        shown = (0, 0)
        try:
            while not fetcher.done:
                fetcher.set_donors(donors())
                for peer, want in fetcher.requests(loop.time()):
                    self._send(peer, want, b"", wire.Priority.CONTROL)
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)
                if fetcher.progress != shown:
                    shown = fetcher.progress
                    progress(*shown)
        finally:
            self._fetcher = None
        return bytes(fetcher.blob())

    def _take(self, give: Callable[[Fetcher], object]) -> None:
        if self._fetcher is not None:
            self._changed.set()
            give(self._fetcher)

    def _send(
        self, peer: PeerId, message: Message, payload: Buffer, priority: wire.Priority
    ) -> None:
        key = (type(message).__name__, self._root, getattr(message, "part", -1))
        self._mesh.send(peer, encode(message, payload), priority, key=key)
