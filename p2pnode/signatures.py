"""Who signed a run's ledger, up to where: a file of signatures beside it.

The ledger is the same at every node; signatures are not part of it, since who was there is chance.
A node signs with each checkpoint and at the end. May import: protocol, errors, limits.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pnode.errors import LedgerError
from p2pnode.limits import LIMITS
from p2pnode.protocol.identity import Identity, verify

Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
_LABEL = b"ledger"


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That the owner of a key computed or checked the ledger up to a step."""

    step: Annotated[int, Meta(ge=1, le=10_000_000)]
    digest: Hex32
    """The ledger's digest after that step."""
    key: Hex32
    """Ed25519 public key."""
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}$")]

    def is_genuine(self, run: bytes) -> bool:
        """Whether the key's owner signed this of the run whose first settings have id `run`."""
        key, digest = bytes.fromhex(self.key), bytes.fromhex(self.digest)
        text = (run, self.step.to_bytes(8, "big"), digest)
        return verify(key, bytes.fromhex(self.signature), _LABEL, *text)


def sign(identity: Identity, run: bytes, step: int, digest: bytes) -> Signed:
    """This node's signature under its ledger."""
    signature = identity.sign(_LABEL, run, step.to_bytes(8, "big"), digest)
    return Signed(step, digest.hex(), identity.key.hex(), signature.hex())


def file_of(ledger: Path) -> Path:
    """The signatures of a ledger file."""
    return ledger.with_suffix(".signatures")


def read(path: Path) -> list[Signed]:
    """All lines of a file, unchecked, oldest first; none without a file. Raises LedgerError."""
    try:
        with open(path, "rb") as file:
            raw = file.read(LIMITS.ledger_signature_bytes + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LedgerError(f"Cannot read {path}: {error.strerror}.") from None
    if len(raw) > LIMITS.ledger_signature_bytes:
        raise LedgerError(f"{path} is larger than any file of signatures.")
    try:
        return [msgspec.json.decode(line, type=Signed) for line in raw.split(b"\n")[:-1]]
    except (msgspec.MsgspecError, RecursionError):
        raise LedgerError(f"{path} is damaged: it has lines that are no signatures.") from None


class Signatures:
    """The file at one node. It is only for later; what cannot be read or written is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._all = read(path)
        except LedgerError:
            self._all = []
            self._rewrite()

    def add(self, signed: Signed) -> None:
        """Keep one that was checked. Of a file that grows too long, the newest of each key."""
        if signed in self._all[-LIMITS.peers :]:
            return
        self._all.append(signed)
        raw = msgspec.json.encode(signed) + b"\n"
        if len(raw) * len(self._all) > LIMITS.ledger_signature_bytes:
            self._all = list({one.key: one for one in self._all}.values())
            self._rewrite()
            return
        with contextlib.suppress(OSError), open(self.path, "ab") as file:
            file.write(raw)

    def cut(self, after: int) -> None:
        """Forget signatures of later steps, which are not the run's any more."""
        kept = [one for one in self._all if one.step <= after]
        if len(kept) < len(self._all):
            self._all = kept
            self._rewrite()

    def _rewrite(self) -> None:
        unfinished = self.path.with_name(self.path.name + ".tmp")
        with contextlib.suppress(OSError):
            unfinished.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in self._all))
            os.replace(unfinished, self.path)
