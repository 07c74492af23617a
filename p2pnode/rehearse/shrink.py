"""Which of a failing run's faults matter: delta debugging over its list of faults.

May import: scenario.
"""

from __future__ import annotations

from collections.abc import Callable

from p2pnode.rehearse.scenario import Script, attempt


def fails(script: Script) -> bool:
    """Whether the run breaks the promise, in whatever way."""
    return isinstance(attempt(script), str)


def shrink(script: Script, failing: Callable[[Script], bool] = fails) -> tuple[int, ...]:
    """Numbers of faults with which alone the run still fails, and of which none can be left out.

    ddmin (Zeller and Hildebrandt 2002): try ever smaller pieces to leave out, as long as it fails.
    The run with all faults must fail.
    """
    kept = list(range(len(script.faults)))
    pieces = 1
    while kept:
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            if failing(script.only(fewer)):
                kept = fewer
                pieces = max(pieces - 1, 1)
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(kept))
    return tuple(kept)
