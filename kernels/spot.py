"""Spot checks: parts of live products computed again by the definition, while training.

Gates compare kernels before they are used. What goes wrong later (a processor that overheats,
memory that flips bits, a shape that no gate has) is looked for here: at every `EVERY`-th of the
operations that multiply. Of a product cells are looked at, chosen in strata, and at every
`WHOLE`-th look all of it (`spot_products`); of attention one head of one sequence
(`spot_attention`).
May import: spot_attention, spot_products.
"""

from __future__ import annotations

import threading
from typing import Any

from . import spot_attention, spot_products

OPERATIONS = ("linear", "linear_dx", "linear_dw", "attention", "attention_backward")
EVERY = 127
"""A prime, so that over many slots every operation of a slot has its turn."""
WHOLE = 8
"""A check of a whole product takes about three times as long as the product."""


class SpotChecks:
    """Looks at some of the operations that it is shown."""

    def __init__(self, every: int = EVERY, whole: int = WHOLE) -> None:
        self._every = every
        self._whole = whole
        self._seen = 0
        self._lock = threading.Lock()

    def look(self, name: str, args: tuple[Any, ...], result: Any) -> int:
        """How many cells were checked (mostly none). Raises UnsoundError if one is wrong.

        args: the operands as the form was given them, still unchanged.
        """
        with self._lock:
            self._seen += 1
            turn = self._seen
        if turn % self._every:
            return 0
        if name == "attention":
            return spot_attention.check_forward(turn, result, *args)
        if name == "attention_backward":
            return spot_attention.check_backward(turn, result, *args)
        cells = spot_products.check_cells(turn, result, name, *args[:2])
        if turn // self._every % self._whole == 0:
            cells += spot_products.check_whole(turn, result, name, *args[:2])
        return cells
