"""Trying again: which faults pass, how long to wait, when to give up.

May import: errors.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from typing import TypeVar

from p2pnode.errors import SourceAwayError

T = TypeVar("T")

_jitter = random.SystemRandom()
"""Many nodes lose a server at one moment; they shall not all come back at one."""


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long a source may take. Times in seconds."""

    attempts: int = 6
    """Tries that got nothing; one that got a part of the bytes starts the count anew."""
    pause: float = 0.5
    """Before the second try; doubled for each one after it."""
    longest_pause: float = 30.0
    asked_pause: float = 120.0
    """A server's own Retry-After is obeyed up to this."""
    stall: float = 30.0
    """A transfer in which nothing comes for this long is given up."""
    least_stall: float = 5.0
    """The same for a source known to be fast."""


PATIENCE = Patience()


class Transient(Exception):
    """A fault that may pass. `after`: seconds that the server asked for; `moved`: whether the try
    has brought the reader forward."""

    def __init__(self, what: str, after: float = 0.0, *, moved: bool = False) -> None:
        super().__init__(what)
        self.after = after
        self.moved = moved


def retried(
    attempt: Callable[[], T],
    name: str,
    patience: Patience = PATIENCE,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """What `attempt` returns, tried again while it raises Transient.

    Raises SourceAwayError, which names `name`, when the patience is at its end.
    """
    failed = 0
    while True:
        try:
            return attempt()
        except Transient as fault:
            failed = 1 if fault.moved else failed + 1
            if failed >= patience.attempts:
                raise SourceAwayError(
                    f"{name} cannot be had at the moment: {fault} ({failed} tries)."
                ) from None
            pause = min(patience.pause * 2 ** (failed - 1), patience.longest_pause)
            pause *= 0.5 + _jitter.random()
            sleep(max(pause, min(fault.after, patience.asked_pause)))
