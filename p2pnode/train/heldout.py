"""What follows from the held-out losses of a run: its best state, and when to stop early.

Functions of the ledger alone and exact (integers), so that every node decides the same.

May import: ledger_lines.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2pnode.train.ledger_lines import Measured

LAG = 2
"""Steps that an early stop leaves between the measurement that decides it and the last step. The
next step is under way when a loss is known; the one after it is not yet planned by anybody."""


def is_lower(a: Measured, b: Measured) -> bool:
    """Whether `a` has the lower mean loss; exact."""
    return a[1] * b[2] < b[1] * a[2]


def best(measured: Iterable[Measured]) -> Measured | None:
    """The lowest loss, of equal ones the first."""
    lowest: Measured | None = None
    for one in measured:
        if lowest is None or is_lower(one, lowest):
            lowest = one
    return lowest


def stops_after(measured: Iterable[Measured], patience: int) -> int | None:
    """The last step of a run that ends when `patience` measurements in a row are not below the
    best before them; None while that has not happened."""
    lowest: Measured | None = None
    waited = 0
    for one in measured:
        if lowest is None or is_lower(one, lowest):
            lowest, waited = one, 0
        else:
            waited += 1
            if waited >= patience:
                return one[0] + LAG
    return None
