"""The ledger of a run: what every committed step gave, as a chain of lines that is a pure function
of the run, so that every node holds the same bytes.

Whatever depends on a machine, a roster or a clock stands elsewhere (metrics, signatures).
May import: ledger_lines, config, errors, limits.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from pathlib import Path

import msgspec

from p2pnode.config import RunConfig
from p2pnode.errors import CheckpointError, LedgerError
from p2pnode.limits import LIMITS
from p2pnode.train.ledger_lines import (
    NOTHING,
    Entry,
    Line,
    Measured,
    Reader,
    entry_digest,
    file_name,
    parse_line,
)

_GLANCE = 1 << 20
"""Bytes after the last good line in which a newline shows that more than the last line is wrong."""


class Ledger:
    """The ledger file of one run at one node. One thread at a time.

    Steps that this node did not see (it took a later state over) are fetched from others
    (`missing`, `fill`); what comes after the gap waits in a second file, `NAME.loose`.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        """Open or begin the ledger of `config`'s run; what a crash or damage left is repaired, and
        `problems` tells of it. Raises CheckpointError if the folder cannot be written."""
        self.path = folder / file_name(config)
        self._loose_path = self.path.with_name(self.path.name + ".loose")
        self._config = config
        self._reader = Reader()
        self._starts = array("q", [0])
        """Where each line begins in the file, and where the next one will."""
        self._loose: dict[int, Entry] = {}
        self._anchor: tuple[int, str] | None = None
        """A step in the gap, or its end, and the hash of its state, which this node has had."""
        self._own = 0
        """Lines up to this step were not taken from others since the gap opened."""
        self._file = -1
        self.heldout: list[Measured] = []
        """The held-out losses up to `step`, oldest first."""
        self.problems: list[str] = []
        try:
            self._open()
        except OSError as error:
            raise CheckpointError(f"Cannot write {self.path}: {error.strerror}.") from None

    @property
    def step(self) -> int:
        """Steps 1 to this one are here."""
        return self._reader.step

    @property
    def digest(self) -> bytes:
        """Of the chain up to `step`, 32 bytes."""
        return self._reader.digest

    @property
    def missing(self) -> tuple[int, int] | None:
        """First and last step of the gap, if there is one."""
        if self._loose:
            return self.step + 1, min(self._loose) - 1
        return (self.step + 1, self._anchor[0]) if self._anchor is not None else None

    def record(self, entry: Entry, config: RunConfig) -> None:
        """Take note of a committed step, made with `config`. One that is here already is not
        written again; if it came out otherwise, the old lines from there on go. Raises
        CheckpointError if it cannot be written; training can go on."""
        self._config = config
        if entry.step <= self.step:
            if self._stated(entry, config) == self._line(entry.step).entry:
                return
            self.problems.append(
                f"Step {entry.step} came out otherwise than {self.path.name} has it; its lines "
                "from there on are replaced."
            )
            self.cut(entry.step - 1)
        if entry.step == self.step + 1:
            self._append(self._stated(entry, config))
            self._join()
        else:
            self._keep_loose(entry)

    def anchor(self, step: int, state: str) -> None:
        """This node took the state of a step over from others; its hash (hex) is known to be right,
        so lines that say otherwise are not."""
        if step > self.step:
            self._anchor, self._own = (step, state), self.step

    def cut(self, after: int) -> None:
        """Forget steps beyond `after`: they are not the run's any more."""
        if self._loose and max(self._loose) > after:
            self._drop_loose()
        if self._anchor is not None and self._anchor[0] > after:
            self._anchor = None
        self._truncate(after)

    def digest_at(self, step: int) -> bytes | None:
        """The chain's digest after a step; None if it is not here."""
        if not 1 <= step <= self.step:
            return None
        return bytes.fromhex(self._line(step).digest)

    def newest(self) -> tuple[int, bytes] | None:
        """Last step and digest; None if there is a gap, or nothing."""
        whole = self.step > 0 and self.missing is None
        return (self.step, self.digest) if whole else None

    def lines(self, first: int, most: int) -> bytes:
        """Whole lines from step `first` on, at most `most` bytes; empty if there is none."""
        if not 1 <= first <= self.step:
            return b""
        start, last = self._starts[first - 1], first - 1
        while last < self.step and self._starts[last + 1] - start <= most:
            last += 1
        return self._read(start, self._starts[last])

    def fill(self, raw: bytes) -> tuple[int, int] | None:
        """Take lines of another node into the gap; what is missing then, None if nothing is or
        nothing came. Raises LedgerError if they do not fit: whoever sent them has another ledger,
        or lies."""
        gap = self.missing
        if gap is None:
            return None
        reader = Reader()
        reader.digest, reader.step, reader.config = (
            self._reader.digest,
            self._reader.step,
            self._reader.config,
        )
        taken: list[Entry] = []
        for one in raw.split(b"\n")[:-1]:
            if reader.step >= gap[1]:
                break
            entry = reader.take(one).entry
            made_by = self._config.at(entry.step)
            if entry.config not in (None, made_by) or reader.config != made_by:
                raise LedgerError(f"Step {entry.step} has the settings of another run there.")
            if self._anchor is not None and self._anchor[0] == entry.step:
                if self._anchor[1] != entry.state:
                    self._truncate(self._own)
                    raise LedgerError(f"Step {entry.step} has another state there than it has.")
                self._anchor = None
            taken.append(entry)
        for entry in taken:
            self._append(entry)
        self._join()
        return self.missing if taken else None

    def sync(self) -> None:
        """Make what was recorded durable. Raises CheckpointError."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise CheckpointError(f"Cannot write {self.path}: {error.strerror}.") from None

    def close(self) -> None:
        """Close the file; what was recorded stays in it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # The file

    def _open(self) -> None:
        self.path.touch()
        self._load()
        size = self.path.stat().st_size
        if size > self._starts[-1]:
            rest = self._read(self._starts[-1], min(size, self._starts[-1] + _GLANCE))
            if b"\n" in rest:  # not only torn: whole lines are wrong
                aside = self.path.with_name(self.path.name + ".damaged")
                os.replace(self.path, aside)
                self.path.write_bytes(_head(aside, self._starts[-1]))
                self.problems.append(
                    f"{self.path} was damaged after step {self.step}; the good part is kept, the "
                    f"old file is {aside.name}."
                )
            else:
                os.truncate(self.path, self._starts[-1])
        with contextlib.suppress(OSError, LedgerError):
            self._load_loose()
        self._reopen()

    def _reopen(self) -> None:
        self.close()
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))

    def _truncate(self, after: int) -> None:
        if after >= self.step:
            return
        try:
            os.truncate(self.path, self._starts[after])
            self._load()
            self._reopen()
        except OSError as error:
            raise CheckpointError(f"Cannot write {self.path}: {error.strerror}.") from None

    def _load(self) -> None:
        """Read the good lines: where they are, and the chain up to the last."""
        self._reader, self._starts, self.heldout = Reader(), array("q", [0]), []
        with open(self.path, "rb") as file:
            while (raw := file.readline(LIMITS.ledger_line_bytes + 1)).endswith(b"\n"):
                before = self._reader.config
                try:
                    line = self._reader.take(raw[:-1])
                except LedgerError:
                    return
                if before is None and self._reader.config != self._config.at(0):
                    self._reader = Reader()
                    return  # another run's, whose name begins alike
                self._note(line.entry, len(raw))

    def _load_loose(self) -> None:
        if self._loose_path.stat().st_size > LIMITS.ledger_loose * LIMITS.ledger_line_bytes:
            return
        for raw in self._loose_path.read_bytes().split(b"\n")[:-1]:
            entry = parse_line(raw).entry
            if entry.step > self.step + 1 and (not self._loose or entry.step - 1 in self._loose):
                self._loose[entry.step] = entry

    def _stated(self, entry: Entry, config: RunConfig) -> Entry:
        """With the settings, where they begin."""
        made_by = config.at(entry.step)
        begins = entry.step == 1 or config.at(entry.step - 1) != made_by
        return msgspec.structs.replace(entry, config=made_by if begins else None)

    def _append(self, entry: Entry) -> None:
        digest = entry_digest(self._reader.digest, entry)
        raw = msgspec.json.encode(Line(digest.hex(), entry), order="sorted")
        try:
            _write_all(self._file, raw + b"\n")
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, self._starts[-1])  # no half line under what comes next
            raise CheckpointError(f"Cannot write {self.path}: {error.strerror}.") from None
        self._reader.take(raw)
        self._note(entry, len(raw) + 1)

    def _note(self, entry: Entry, size: int) -> None:
        self._starts.append(self._starts[-1] + size)
        if entry.heldout is not None:
            self.heldout.append((entry.step, *entry.heldout))

    def _keep_loose(self, entry: Entry) -> None:
        """Only the newest stretch is kept: what lies before it is fetched with the gap."""
        if self._loose.get(entry.step, entry) != entry or entry.step - 1 not in self._loose:
            self._loose.clear()
        if entry.step in self._loose or len(self._loose) >= LIMITS.ledger_loose:
            return
        begun = bool(self._loose)
        self._loose[entry.step] = entry
        line = Line(NOTHING.hex(), entry)
        with contextlib.suppress(OSError), open(self._loose_path, "ab" if begun else "wb") as file:
            file.write(msgspec.json.encode(line, order="sorted") + b"\n")

    def _join(self) -> None:
        """What waited behind the gap follows now."""
        while (entry := self._loose.get(self.step + 1)) is not None:
            self._append(self._stated(entry, self._config))
            del self._loose[entry.step]
        if not self._loose:
            self._drop_loose()

    def _drop_loose(self) -> None:
        self._loose.clear()
        with contextlib.suppress(OSError):
            self._loose_path.unlink(missing_ok=True)

    def _line(self, step: int) -> Line:
        return parse_line(self._read(self._starts[step - 1], self._starts[step] - 1))

    def _read(self, start: int, stop: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(start)
                return file.read(stop - start)
        except OSError as error:
            raise LedgerError(f"Cannot read {self.path}: {error.strerror}.") from None


def _head(path: Path, size: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


def _write_all(file: int, raw: bytes) -> None:
    """A full disk may take a part of a line."""
    view = memoryview(raw)
    while view:
        view = view[os.write(file, view) :]
