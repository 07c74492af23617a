"""The lines of a ledger: what a step gave, chained by digests so that none can be changed alone.

A line is `{"digest": ..., "entry": {...}}` in canonical JSON; its digest is SHA-256 over a label,
the digest before (zeros at first) and the canonical entry. May import: below, config, errors,
limits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pnode.config import Hex64, RunConfig
from p2pnode.errors import ConfigError, LedgerError, UsageError
from p2pnode.limits import LIMITS
from p2pnode.train.below import found_below

NOTHING = bytes(32)
"""The digest before the first line."""
_LABEL = b"p2pnode ledger 1\0"

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One committed step."""

    step: Annotated[int, Meta(ge=1, le=10_000_000)]
    state: Hex64
    """Hash of the state that the step made."""
    loss: Natural
    """Summed token losses of all slots in units of 2**-24 nats."""
    tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    evidence: Hex64
    """SHA-256 over what all slots' gradients are (protocol.evidence.summarise)."""
    parts: Annotated[str, Meta(max_length=24 * 1024)]
    """Short checks of each tensor, to tell which one differs (train.parts)."""
    heldout: tuple[Natural, Annotated[int, Meta(ge=1, le=2**63 - 1)]] | None = None
    """Held-out loss as `loss` and its tokens, where the run measures it."""
    config: RunConfig | None = None
    """The settings from this step on; in the first entry, and where they were changed."""


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry with the digest of the chain up to it."""

    digest: Hex64
    entry: Entry


def entry_digest(before: bytes, entry: Entry) -> bytes:
    """The chain's digest (32 bytes) after `entry`."""
    raw = msgspec.json.encode(entry, order="sorted")
    return hashlib.sha256(_LABEL + before + raw).digest()


def file_name(config: RunConfig) -> str:
    """A run keeps its ledger when settings change: it is named by those it began with."""
    return f"run-{config.at(0).run_id().hex()[:8]}.ledger"


def the_ledger(run: Path) -> Path:
    """The one ledger of a folder, or `run` itself if it is a file. Raises LedgerError."""
    if not run.is_dir():
        return run
    found = sorted(run.glob("run-*.ledger"))
    if not found:
        below = found_below(run, "run-*.ledger")
        raise LedgerError(f"{run} holds no ledger (run-….ledger){below}.")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UsageError(f"{run} holds the ledgers of {len(found)} runs; name one: {names}")
    return found[0]


def parse_line(raw: bytes) -> Line:
    """One line without its newline. Raises LedgerError unless it is in its one canonical form."""
    try:
        line = msgspec.json.decode(raw, type=Line)
        if line.entry.config is not None:
            line.entry.config.check()
    except (msgspec.MsgspecError, RecursionError, ConfigError):
        raise LedgerError("is not a line of a ledger") from None
    if msgspec.json.encode(line, order="sorted") != raw:
        raise LedgerError("is not in its one canonical form")
    return line


Measured = tuple[int, int, int]
"""(step, summed held-out loss, tokens)."""


class Reader:
    """Checks lines one after the other. `digest`, `step`, `config`: after the last good one."""

    def __init__(self) -> None:
        self.digest = NOTHING
        self.step = 0
        self.config: RunConfig | None = None

    def take(self, raw: bytes) -> Line:
        """The next line, if it follows. Raises LedgerError, which leaves the reader as it was."""
        step = self.step + 1
        try:
            line = parse_line(raw)
        except LedgerError as error:
            raise LedgerError(f"The ledger is damaged: the line of step {step} {error}.") from None
        entry = line.entry
        if entry.step != step:
            raise LedgerError(
                f"The ledger is damaged at step {step}: its line is one of step {entry.step}."
            )
        if line.digest != entry_digest(self.digest, entry).hex():
            raise LedgerError(
                f"The ledger is damaged at step {step}: the digest of its line is not that of its "
                "content and of the line before."
            )
        if entry.config is None and self.config is None:
            raise LedgerError("The ledger is damaged: its first line has no configuration.")
        self.digest, self.step = bytes.fromhex(line.digest), step
        self.config = entry.config or self.config
        return line


def read_lines(path: Path) -> Iterator[tuple[Line, RunConfig]]:
    """The lines of a ledger file, each checked, with the settings that made its step.

    An unfinished last line, as a crash leaves it, is left out. Raises LedgerError at the first line
    that is wrong. Memory: one line.
    """
    reader = Reader()
    try:
        with open(path, "rb") as file:
            while raw := file.readline(LIMITS.ledger_line_bytes + 1):
                if not raw.endswith(b"\n"):
                    if len(raw) > LIMITS.ledger_line_bytes:
                        step = reader.step + 1
                        raise LedgerError(
                            f"The ledger is damaged: the line of step {step} is too long."
                        )
                    return
                line = reader.take(raw[:-1])
                assert reader.config is not None  # else `take` refuses
                yield line, reader.config
    except OSError as error:
        raise LedgerError(f"Cannot read {path}: {error.strerror}.") from None
