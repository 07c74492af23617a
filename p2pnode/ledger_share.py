"""The ledger among members: each signs its own, and hands lines to those who lack them.

May import: signatures, worker, protocol, train, ui.events, errors, limits. All methods are called
on the event loop; files are read and written in the computing thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from p2pnode.errors import CheckpointError, LedgerError
from p2pnode.limits import LIMITS
from p2pnode.protocol.identity import Identity, PeerId
from p2pnode.protocol.lobby import (
    LedgerLines,
    LedgerMessage,
    LedgerSigned,
    LedgerWant,
    LobbyMessage,
)
from p2pnode.signatures import Signatures, Signed, sign
from p2pnode.train.ledger import Ledger
from p2pnode.ui.events import Event, Warn
from p2pnode.worker import Urgency, Worker

LOOK_SECONDS = 0.2
"""How often a node that waits for the end looks which peers are still there."""
ASK_AGAIN = 5.0
"""Seconds before lines that did not come are asked of somebody else."""


class LedgerShare:
    """One run's ledger at one node."""

    def __init__(
        self,
        ledger: Ledger,
        signatures: Signatures,
        run: bytes,
        identity: Identity,
        *,
        worker: Worker,
        tell: Callable[[PeerId, LobbyMessage], None],
        links: Callable[[], Iterable[PeerId]],
        key_of: Callable[[PeerId], bytes | None],
        name_of: Callable[[PeerId], str],
        show: Callable[[Event], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`run`: id of the run's first settings. `links`: peers to tell and to ask. `key_of`: a
        member's Ed25519 key."""
        self._ledger = ledger
        self._run = run
        self._identity = identity
        self._worker = worker
        self._tell = tell
        self._links = links
        self._key_of = key_of
        self._name_of = name_of
        self._show = show
        self._spawn = spawn
        self._signatures = signatures
        self._waiting: dict[PeerId, Signed] = {}
        """Newest signatures under steps that are not in the ledger here yet."""
        self._serving: set[PeerId] = set()
        self._asked: PeerId | None = None
        self._asked_at = float("-inf")
        self._liars: set[PeerId] = set()
        self._signed: dict[PeerId, int] = {}
        """The last step that each peer has signed."""
        self._here = 0
        """The last step that was signed here."""
        self._stored = 0
        """The last step whose signature is in the file."""
        self._changed = asyncio.Event()

    def signed_here(self, step: int, digest: bytes) -> None:
        """This node's ledger has come so far: sign it, tell the others, check what they signed."""
        self._here = max(self._here, step)
        self._changed.set()
        signed = sign(self._identity, self._run, step, digest)
        message = LedgerSigned(self._run, step, digest, bytes.fromhex(signed.signature))
        for peer in self._links():
            self._tell(peer, message)
        self._spawn(self._keep(signed))
        for peer, theirs in list(self._waiting.items()):
            if theirs.step <= step:
                del self._waiting[peer]
                self._spawn(self._compare(peer, theirs))

    def lacks(self, gap: tuple[int, int] | None) -> None:
        """Ask for lines that are not here, one peer after the other."""
        now = asyncio.get_running_loop().time()
        if gap is None or now - self._asked_at < ASK_AGAIN:
            return
        peers = sorted(set(self._links()) - self._liars)
        if peers:
            later = [peer for peer in peers if self._asked is None or peer > self._asked]
            self._ask((later or peers)[0], gap)

    async def complete(self, step: int, seconds: float) -> None:
        """Wait until the ledgers here and at all linked peers have come to the last step, so that
        nobody leaves while others lack lines; at most so many seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._me_lacks(step) or any(self._signed.get(p, 0) < step for p in self._links()):
            self._changed.clear()
            try:
                await asyncio.wait_for(
                    self._changed.wait(), min(LOOK_SECONDS, deadline - loop.time())
                )
            except TimeoutError:
                if loop.time() >= deadline:
                    return

    def _me_lacks(self, step: int) -> bool:
        return (self._here < step and bool(self._links())) or self._stored < self._here

    def take(self, peer: PeerId, message: LedgerMessage) -> None:
        """A member's message; one about another run is left aside."""
        if message.run != self._run:
            return
        match message:
            case LedgerSigned():
                key = self._key_of(peer)
                if key is None:
                    return
                signature = message.signature.hex()
                signed = Signed(message.step, message.digest.hex(), key.hex(), signature)
                if signed.is_genuine(self._run):
                    self._signed[peer] = max(message.step, self._signed.get(peer, 0))
                    self._changed.set()
                    self._spawn(self._compare(peer, signed))
            case LedgerWant():
                if peer not in self._serving:
                    self._serving.add(peer)
                    self._spawn(self._serve(peer, message.first))
            case LedgerLines():
                if peer == self._asked:
                    self._spawn(self._fill(peer, message.lines))

    def _ask(self, peer: PeerId, gap: tuple[int, int]) -> None:
        self._asked, self._asked_at = peer, asyncio.get_running_loop().time()
        self._tell(peer, LedgerWant(self._run, gap[0]))

    async def _keep(self, signed: Signed) -> None:
        await self._worker.submit(Urgency.BACKGROUND, self._signatures.add, signed)
        if signed.key == self._identity.key.hex():
            self._stored = max(signed.step, self._stored)
            self._changed.set()

    async def _compare(self, peer: PeerId, signed: Signed) -> None:
        try:
            digest = await self._worker.submit(
                Urgency.BACKGROUND, self._ledger.digest_at, signed.step
            )
        except LedgerError as error:
            self._show(Warn(text=str(error)))
            return
        if digest is None:
            self._waiting[peer] = signed
        elif digest.hex() == signed.digest:
            await self._keep(signed)
        else:
            self._show(
                Warn(
                    text=f"{self._name_of(peer)} signed another ledger of this run up to step "
                    f"{signed.step} than this node has. `p2pnode verify` tells whose is right."
                )
            )

    async def _serve(self, peer: PeerId, first: int) -> None:
        try:
            raw = await self._worker.submit(
                Urgency.BACKGROUND, self._ledger.lines, first, LIMITS.ledger_part_bytes
            )
            if raw:
                self._tell(peer, LedgerLines(self._run, raw))
        except LedgerError as error:
            self._show(Warn(text=str(error)))
        finally:
            self._serving.discard(peer)

    async def _fill(self, peer: PeerId, raw: bytes) -> None:
        try:
            gap = await self._worker.submit(Urgency.BACKGROUND, self._ledger.fill, raw)
        except LedgerError as error:
            self._liars.add(peer)
            self._show(Warn(text=f"Lines of the ledger from {self._name_of(peer)}: {error}"))
            return
        except CheckpointError as error:  # a full disk, here
            self._show(Warn(text=str(error)))
            return
        if gap is not None:
            self._ask(peer, gap)
            return
        newest = await self._worker.submit(Urgency.BACKGROUND, self._ledger.newest)
        if newest is not None:
            self.signed_here(*newest)
