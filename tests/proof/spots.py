"""What spot checks find, against uniform choice with the same budget, and what they cost.

May import: kernels, p2pnode.config, p2pnode.train, siblings.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import kernels
from kernels import jit, spot_products
from kernels.jit.floatmode import pin
from kernels.reference import FORMS
from kernels.spot import EVERY, WHOLE, SpotChecks
from kernels.spot_attention import chosen_head
from kernels.spot_products import CELLS, Index, chosen_cells
from p2pnode.config import RunOptions
from p2pnode.train.open_data import open_dataset
from p2pnode.train.trainer import Trainer

from .properties import normal

Fault = Callable[[np.random.Generator, int, int], tuple[slice, slice]]
"""(randomness, rows, columns) -> the block of wrong cells."""

SHAPES = ((256, 256, 256), (1024, 672, 256), (1023, 250, 97))
"""Height, width and inner length of products."""
HEADS = ((2, 3), (4, 8))
"""Sequences and heads."""
PRESETS = ("nano", "tiny", "small")


def _tile(rng: np.random.Generator, height: int, width: int) -> tuple[slice, slice]:
    row, col = 6 * int(rng.integers(-(-height // 6))), 16 * int(rng.integers(-(-width // 16)))
    return slice(row, row + 6), slice(col, col + 16)


def _cell(rng: np.random.Generator, height: int, width: int) -> tuple[slice, slice]:
    row, col = int(rng.integers(height)), int(rng.integers(width))
    return slice(row, row + 1), slice(col, col + 1)


FAULTS: dict[str, Fault] = {
    "last column": lambda rng, height, width: (slice(None), slice(width - 1, width)),
    "last row": lambda rng, height, width: (slice(height - 1, height), slice(None)),
    "one tile": _tile,
    "one cell": _cell,
}


def uniform_cells(rng: np.random.Generator, height: int, width: int) -> tuple[Index, Index]:
    """As many cells as a spot check looks at, anywhere."""
    return rng.integers(height, size=CELLS), rng.integers(width, size=CELLS)


def rate(fault: str, height: int, width: int, looks: int, *, strata: bool) -> float:
    """Share of looks at cells of a product of that shape that see a fault, drawn anew for each."""
    rng = np.random.default_rng(1)
    hits = 0
    for turn in range(looks):
        wrong = np.zeros((height, width), bool)
        wrong[FAULTS[fault](rng, height, width)] = True
        choose = chosen_cells(turn, height, width) if strata else uniform_cells(rng, height, width)
        hits += bool(wrong[choose].any())
    return hits / looks


@dataclasses.dataclass(frozen=True)
class Whole:
    """What checks of a whole product find of one flipped bit, and what uniform choice would."""

    found: float
    seconds: float
    """For one check."""
    cells: int
    """That can be computed again in this time, chosen uniformly."""
    uniform: float
    """Share that these find: cells / (height * width)."""


def whole(name: str, height: int, width: int, inner: int, looks: int) -> Whole:
    """Flip a bit of a cell, both drawn anew, and check the whole product, `looks` times."""
    ops = kernels.load(reference=True)
    left, right = normal(1, height, inner), normal(2, width, inner)
    operands = {
        "linear": lambda: (left, ops.quantise_rows(right)),
        "linear_dx": lambda: (left, ops.quantise_cols(np.ascontiguousarray(right.T))),
        "linear_dw": lambda: (
            np.ascontiguousarray(left.T),
            ops.quantise_cols(np.ascontiguousarray(right.T)),
        ),
    }[name]()
    y = FORMS[name](*operands)
    rng = np.random.default_rng(1)
    found, spent = 0, 0.0
    with np.errstate(all="ignore"):
        for turn in range(looks):
            row, col, bit = (int(rng.integers(n)) for n in (height, width, 32))
            y.view(np.uint32)[row, col] ^= np.uint32(1 << bit)
            start = time.thread_time()
            try:
                spot_products.check_whole(turn, y, name, *operands)
            except kernels.UnsoundError:
                found += 1
            spent += time.thread_time() - start
            y.view(np.uint32)[row, col] ^= np.uint32(1 << bit)
        many = 4096
        start = time.thread_time()
        for _ in range(5):
            cells = rng.integers(height, size=many), rng.integers(width, size=many)
            spot_products.product_cells(name, *operands, *cells)
        each = (time.thread_time() - start) / (5 * many)
    seconds = spent / looks
    affordable = int(seconds / each)
    return Whole(found / looks, seconds, affordable, affordable / (height * width))


def head_rate(batch: int, heads: int, looks: int) -> tuple[float, float]:
    """Share of looks at attention that are at the last head; at one head drawn anew for each."""
    rng = np.random.default_rng(1)
    last = (batch - 1, heads - 1)
    looked = [chosen_head(turn, batch, heads) for turn in range(looks)]
    drawn = [(int(rng.integers(batch)), int(rng.integers(heads))) for _ in range(looks)]
    hits = sum(at == wrong for at, wrong in zip(looked, drawn, strict=True))
    return looked.count(last) / looks, hits / looks


class _Timed(SpotChecks):
    """Looks at everything; counts, and what it took is in `seconds`."""

    turns = 0
    seconds = 0.0

    def look(self, name: str, args: tuple[Any, ...], result: Any) -> int:
        self.turns += 1
        start = time.thread_time()
        try:
            return super().look(name, args, result)
        finally:
            self.seconds += time.thread_time() - start


def costs(presets: tuple[str, ...] = PRESETS) -> Iterator[tuple[str, float, float, float]]:
    """(preset, milliseconds of a slot, of its spot checks on average, looks in a step)."""
    data = open_dataset("builtin")
    kernels.use_threads(1)
    for preset in presets:
        run = RunOptions(preset=preset).config(
            arithmetic_version=kernels.ARITHMETIC_VERSION,
            gates_digest=kernels.gates_digest(),
            data=data.manifest.hash(),
        )
        trainer = Trainer(run, data)
        timed = _Timed(every=1)
        trainer.kernels = kernels.Kernels("numba", jit.FORMS, pin, spots=timed)
        trainer.compute_slot(0, 0)
        slots, looks = [], []
        for slot in range(1, 2 * WHOLE):
            timed.seconds, start = 0.0, time.thread_time()
            trainer.compute_slot(0, slot % run.slots)
            slots.append(time.thread_time() - start - timed.seconds)
            looks.append(timed.seconds / EVERY)
        each = timed.turns / (2 * WHOLE * EVERY)
        yield preset, 1e3 * float(np.median(slots)), 1e3 * float(np.mean(looks)), each * run.slots
