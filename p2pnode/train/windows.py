"""Texts cut into windows, and in which order they are read.

A window is `length` = seq_len + 1 token ids in a row. Some are held out for good; the others have
numbers 0..n-1, and `place` is a keyed permutation of these. May import: permute, limits,
tokenizer, corpus, manifest, sources.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pnode.limits import MIB
from p2pnode.sources.units import Units
from p2pnode.train import corpus
from p2pnode.train.permute import mix64, permute

Tokens = NDArray[np.int32]
"""Token ids; [length] of a window, [B, T] of a slot."""

_HELDOUT_ONE_IN = 20
_HELDOUT_TOKENS = 1 * MIB

TOGETHER = 8
"""Units whose windows are shuffled together: a node then needs these and no others for many steps.
Documents of one unit are neighbours in the source; eight of a thousand pages mix well enough."""
TOGETHER_BYTES = 64 * MIB
"""The same in bytes of ids: large units stand alone."""


class Text(Protocol):
    """A text cut into windows, some of them held out."""

    def counts(self, length: int) -> tuple[int, int]:
        """Numbers of training and of held-out windows."""

    def place(self, position: int, length: int, key: int) -> int:
        """Which training window comes at `position` of the epoch with this key."""

    def training(self, index: int, length: int) -> Tokens: ...

    def heldout(self, index: int, length: int) -> Tokens: ...

    def intact(self) -> bool:
        """Whether what is in memory is what was read. Hashes all of it."""


def token_hash(inputs: Tokens, targets: Tokens) -> bytes:
    """Of a slot: SHA-256 of its input and target ids [B, T] as little-endian int32."""
    digest = hashlib.sha256(np.ascontiguousarray(inputs, "<i4").data)
    digest.update(np.ascontiguousarray(targets, "<i4").data)
    return digest.digest()


def compact_dtype(id_bytes: int) -> np.dtype[np.unsignedinteger]:
    """How ids of a large text are held and hashed: little-endian, 1, 2 or 4 bytes each."""
    return np.dtype({1: "<u1", 2: "<u2", 4: "<u4"}[id_bytes])


def id_bytes_of(vocabulary: int) -> Literal[1, 2, 4]:
    """Bytes of an id of this vocabulary."""
    return 1 if vocabulary <= 2**8 else 2 if vocabulary <= 2**16 else 4


class BuiltinText:
    """The procedural corpus; held-out passages have the numbers after the training ones."""

    def counts(self, length: int) -> tuple[int, int]:
        return corpus.PASSAGES, max(1, _HELDOUT_TOKENS // length)

    def place(self, position: int, length: int, key: int) -> int:
        return permute(position, corpus.PASSAGES, key)

    def training(self, index: int, length: int) -> Tokens:
        return np.frombuffer(corpus.passage(index, length), np.uint8).astype(np.int32)

    def heldout(self, index: int, length: int) -> Tokens:
        return self.training(corpus.PASSAGES + index, length)

    def intact(self) -> bool:
        return True  # nothing is held


class HeldText:
    """Ids in memory. Windows come in equal groups and the last of each is held out."""

    def __init__(self, ids: NDArray[np.unsignedinteger]) -> None:
        """`ids`: [n], of a `compact_dtype`."""
        self._ids = ids
        self._sha256 = hashlib.sha256(ids.data).digest()

    def counts(self, length: int) -> tuple[int, int]:
        windows = len(self._ids) // length
        heldout = min(windows // _HELDOUT_ONE_IN, _HELDOUT_TOKENS // length)
        return windows - heldout, heldout

    def place(self, position: int, length: int, key: int) -> int:
        return permute(position, self.counts(length)[0], key)

    def training(self, index: int, length: int) -> Tokens:
        total, heldout, group = self._groups(length)
        if index >= total - heldout:
            raise IndexError(index)
        skipped = min(index // (group - 1), heldout) if heldout else 0
        return self._window(index + skipped, length)

    def heldout(self, index: int, length: int) -> Tokens:
        _, heldout, group = self._groups(length)
        if index >= heldout:
            raise IndexError(index)
        return self._window((index + 1) * group - 1, length)

    def intact(self) -> bool:
        return hashlib.sha256(self._ids.data).digest() == self._sha256

    def _groups(self, length: int) -> tuple[int, int, int]:
        """All windows, held-out windows, windows of a group."""
        training, heldout = self.counts(length)
        total = training + heldout
        return total, heldout, total // heldout if heldout else total

    def _window(self, index: int, length: int) -> Tokens:
        return self._ids[index * length : (index + 1) * length].astype(np.int32)


class UnitText:
    """Ids in units that are fetched when they are needed.

    Every unit is cut by itself; the ids after its last whole window are not read. Held out are the
    last windows of the first units, at most half of each. An epoch goes through the units in a
    keyed order, TOGETHER of them at a time, and through the windows of these in a keyed order.
    """

    def __init__(self, tokens: Sequence[int], id_bytes: int, units: Units) -> None:
        """`tokens`: how many each unit has."""
        self._tokens = tokens
        self._id_bytes = id_bytes
        self._dtype = compact_dtype(id_bytes)
        self.units = units
        self._layouts: dict[int, _Layout] = {}
        self._orders: dict[tuple[int, int], list[_Block]] = {}

    def layout(self, length: int) -> _Layout:
        """The windows of this length."""
        if length not in self._layouts:
            self._layouts[length] = _Layout(self._tokens, length)
        return self._layouts[length]

    def counts(self, length: int) -> tuple[int, int]:
        layout = self.layout(length)
        return layout.training[-1], layout.heldout[-1]

    def place(self, position: int, length: int, key: int) -> int:
        layout, blocks = self.layout(length), self._order(length, key)
        block = blocks[bisect.bisect_right(blocks, position, key=lambda block: block.first) - 1]
        offset = permute(position - block.first, block.windows, mix64(key ^ block.first))
        for unit in block.units:
            count = layout.training[unit + 1] - layout.training[unit]
            if offset < count:
                return layout.training[unit] + offset
            offset -= count
        raise IndexError(position)

    def training(self, index: int, length: int) -> Tokens:
        unit = self.unit_of(index, length)
        return self._window(unit, index - self.layout(length).training[unit], length)

    def heldout(self, index: int, length: int) -> Tokens:
        layout = self.layout(length)
        unit = bisect.bisect_right(layout.heldout, index) - 1
        first = layout.training[unit + 1] - layout.training[unit]
        return self._window(unit, first + index - layout.heldout[unit], length)

    def intact(self) -> bool:
        return self.units.intact()

    def unit_of(self, index: int, length: int) -> int:
        """The unit that holds a training window."""
        ends = self.layout(length).training
        if not 0 <= index < ends[-1]:
            raise IndexError(index)
        return bisect.bisect_right(ends, index) - 1

    def heldout_units(self, windows: int, length: int) -> range:
        """The units that hold the first `windows` held-out windows."""
        ends = self.layout(length).heldout
        last = min(windows, ends[-1]) - 1
        return range(bisect.bisect_right(ends, last))

    def units_of(self, first: int, last: int, length: int, key: int) -> list[int]:
        """All units that the positions first..last of an epoch may need, soonest first."""
        blocks = self._order(length, key)
        start = bisect.bisect_right(blocks, first, key=lambda block: block.first) - 1
        stop = bisect.bisect_right(blocks, last, key=lambda block: block.first)
        return [unit for block in blocks[start:stop] for unit in block.units]

    def _order(self, length: int, key: int) -> list[_Block]:
        if (length, key) not in self._orders:
            while len(self._orders) >= 4:  # this epoch, the next one, and those of a resume
                self._orders.pop(next(iter(self._orders)))
            self._orders[length, key] = self._make_order(length, key)
        return self._orders[length, key]

    def _make_order(self, length: int, key: int) -> list[_Block]:
        ends = self.layout(length).training
        blocks: list[_Block] = []
        units: list[int] = []
        first = held = 0
        for i in range(len(self._tokens)):
            unit = permute(i, len(self._tokens), key)
            size = self._tokens[unit] * self._id_bytes
            if units and (len(units) == TOGETHER or held + size > TOGETHER_BYTES):
                blocks.append(_Block(first, tuple(units), ends))
                first += blocks[-1].windows
                units, held = [], 0
            units.append(unit)
            held += size
        blocks.append(_Block(first, tuple(units), ends))
        return blocks

    def _window(self, unit: int, index: int, length: int) -> Tokens:
        ids = np.frombuffer(self.units.get(unit), self._dtype)
        return ids[index * length : (index + 1) * length].astype(np.int32)


class _Layout:
    """How many windows of one length come before each unit, and in all (last entry)."""

    def __init__(self, tokens: Sequence[int], length: int) -> None:
        windows = [count // length for count in tokens]
        left = min(sum(windows) // _HELDOUT_ONE_IN, _HELDOUT_TOKENS // length)
        heldout = []
        for count in windows:
            heldout.append(min(left, (count + 1) // 2))
            left -= heldout[-1]
        training = [count - held for count, held in zip(windows, heldout, strict=True)]
        self.training = list(itertools.accumulate(training, initial=0))
        self.heldout = list(itertools.accumulate(heldout, initial=0))


class _Block:
    """Units whose windows are shuffled together; `first`: position of the first in the epoch."""

    def __init__(self, first: int, units: tuple[int, ...], ends: Sequence[int]) -> None:
        self.first = first
        self.units = units
        self.windows = sum(ends[unit + 1] - ends[unit] for unit in units)
