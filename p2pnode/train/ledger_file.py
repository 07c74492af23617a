"""A finished ledger, to be looked into: checked whole once, then read line by line from its file.

May import: config, errors, ledger_lines.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from p2pnode.config import RunConfig
from p2pnode.errors import LedgerError
from p2pnode.train.ledger_lines import Line, parse_line, read_lines


class LedgerFile:
    """The lines of a ledger by their steps, from 1. Memory: 8 bytes a step, and the settings."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerError if the file cannot be read, is damaged or contradicts itself."""
        self.path = path
        self._starts = array("q", [0])
        stated: list[tuple[int, RunConfig]] = []
        last: RunConfig | None = None
        for line, config in read_lines(path):
            # A line has one form only, which a reader checks: so its length is known.
            size = len(msgspec.json.encode(line, order="sorted")) + 1
            self._starts.append(self._starts[-1] + size)
            if line.entry.config is not None:
                stated.append((line.entry.step, line.entry.config))
            last = config
        if last is None:
            raise LedgerError(f"{path} holds no step.")
        self.config = last
        """The settings of the last line, which tell those of the others."""
        for step, config in stated:
            if config != last.at(step):
                raise LedgerError(
                    f"The ledger contradicts itself: step {step} was made with other settings than "
                    "its later lines say."
                )

    @property
    def steps(self) -> int:
        return len(self._starts) - 1

    def line(self, step: int) -> Line:
        """Raises LedgerError if the file has changed since."""
        start, stop = self._starts[step - 1], self._starts[step]
        try:
            with open(self.path, "rb") as file:
                file.seek(start)
                line = parse_line(file.read(stop - start)[:-1])
        except OSError as error:
            raise LedgerError(f"Cannot read {self.path}: {error.strerror}.") from None
        except LedgerError as error:
            raise LedgerError(
                f"The ledger has changed meanwhile: what was step {step} {error}."
            ) from None
        if line.entry.step != step:
            raise LedgerError(f"The ledger has changed meanwhile: step {step} is another one now.")
        return line

    def lines(self, first: int, last: int) -> Iterator[Line]:
        """Those of steps `first` to `last`."""
        return (self.line(step) for step in range(first, last + 1))
