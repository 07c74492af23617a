"""What the measurements are held to: a figure to reach for each, and whether all of them reach it.

May import: nothing of ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

HEAD = ("what", "against", "to reach", "measured", "reached")


@dataclasses.dataclass(frozen=True)
class Goal:
    """Every figure must be at least `bound`, or at most if `upper`."""

    what: str
    against: str
    bound: float
    upper: bool = False

    def row(self, figures: Sequence[tuple[str, float]]) -> Sequence[str]:
        """A row under `HEAD`: the range of the figures, and the ones that miss, by their names."""
        values = [value for _, value in figures]
        lowest, highest = f"{min(values):.2f}", f"{max(values):.2f}"
        missed = [
            f"{name}: {value:.2f}"
            for name, value in figures
            if (value > self.bound if self.upper else value < self.bound)
        ]
        return (
            self.what,
            self.against,
            f"{'at most' if self.upper else 'at least'} {self.bound:g}",
            lowest if lowest == highest else f"{lowest} to {highest}",
            "no: " + "; ".join(missed) if missed else "yes",
        )


@dataclasses.dataclass(frozen=True)
class Product:
    """What was measured of one kind of product at one shape."""

    kind: str
    shape: tuple[int, int, int]
    """Rows and columns of the result, inner length."""
    seconds: float
    numpy: float
    """Seconds of numpy's float32 product."""
    times: float
    """How many times as fast as that one."""
    share: float
    """Speed over that of the register-only loop; 0 where there is none."""

    @property
    def work(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.shape)

    @property
    def name(self) -> str:
        return ", ".join(map(str, self.shape))


PACKED, FRESH, TILE = "weights packed", "both operands packed in the call", "tile and epilogue"
INT8, DX, DW = "int8", "12-bit dX", "12-bit dW"
ALL_IN = "all in the call"
LARGE = 300_000_000
"""Operations from which on a product is large."""
FLOAT = "numpy float32"
LOOP = "register-only loop"


def of_products(
    products: Sequence[Product], *, sse: bool, logits: int, cube: int
) -> Iterator[Sequence[str]]:
    """Rows under `HEAD`. logits: the vocabulary, a side of the products that are logits' ones;
    cube: the side of the one small product."""

    def chosen(kind: str, only: Iterable[Product]) -> list[tuple[str, float]]:
        return [(p.name, p.times) for p in only if p.kind == kind]

    int8 = [p for p in products if p.kind.startswith(INT8)]
    if sse:
        yield Goal("int8, weights packed", f"{FLOAT} with SSE", 1.8).row(
            chosen(f"{INT8}, {PACKED}", int8)
        )
        return
    linear = [p for p in products if logits not in p.shape]
    output = [p for p in products if logits in p.shape]
    dw = chosen(f"{DW}, {ALL_IN}", products)
    mean = math.exp(sum(math.log(times) for _, times in dw) / len(dw))
    tiles = [(f"{kind}, {TILE}", kind) for kind in (DX, DW)]
    yield Goal("int8, weights packed", FLOAT, 1.5).row(chosen(f"{INT8}, {PACKED}", int8))
    yield Goal(f"int8, {FRESH}", FLOAT, 1.35).row(chosen(f"{INT8}, {FRESH}", int8))
    yield Goal("int8, fused float32 epilogue", FLOAT, 1.3).row(chosen(f"{INT8}, {TILE}", int8))
    for bound, place, where in ((1.45, "linear", linear), (1.3, "logits", output)):
        figures = [(f"{kind} {n}", x) for name, kind in tiles for n, x in chosen(name, where)]
        yield Goal(f"12-bit, tile alone, {place}", FLOAT, bound).row(figures)
    for bound, place, where in ((1.3, "linear", linear), (1.1, "logits", output)):
        yield Goal(f"{DX}, {PACKED}, {place}", FLOAT, bound).row(chosen(f"{DX}, {PACKED}", where))
    yield Goal(f"{DW}, {ALL_IN}, geometric mean", FLOAT, 1.2).row([("mean", mean)])
    yield Goal(f"{DW}, {ALL_IN}, worst shape", FLOAT, 1.05).row(dw)
    measured = [p for p in int8 if p.kind == f"{INT8}, {TILE}" and p.share]
    large = [(p.name, p.share) for p in measured if p.work > LARGE]
    small = [(p.name, p.share) for p in measured if p.shape == (cube, cube, cube)]
    if large:
        yield Goal("int8 tile, above 0.3 GOP", LOOP, 0.75).row(large)
    if small:
        yield Goal(f"int8 tile, {cube} cubed", LOOP, 0.7).row(small)


VECTORS = Goal("vectors of the optimizer", "their bytes' share of a copy", 1.5, upper=True)
QUANTISE = Goal("quantise and pack", "a copy of the input", 2.5, upper=True)
EXP = Goal("exp, time", "numpy's exp", 0.7, upper=True)
EAGER, COMPILED = (1.7, 1.35, 1.5), (1.5, 1.25, 1.25)
"""Of the models of `bench step`, in their order."""
