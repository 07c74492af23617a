"""Many seeds, one after the other, and what they add up to.

May import: faults, scenario, shrink.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from p2pnode.rehearse.faults import ALL, Kind
from p2pnode.rehearse.scenario import attempt, write


@dataclasses.dataclass
class Tally:
    """What the seeds so far add up to."""

    seeds: int = 0
    steps: int = 0
    simulated: float = 0.0
    """Seconds."""
    events: int = 0
    failures: dict[int, str] = dataclasses.field(default_factory=dict)
    """What went wrong, by seed."""
    happened: Counter[str] = dataclasses.field(default_factory=Counter)
    excuses: Counter[str] = dataclasses.field(default_factory=Counter)


def campaign(
    first: int, seeds: int, nodes: int | None = None, kinds: Sequence[Kind] = ALL
) -> Iterator[Tally]:
    """Run `seeds` seeds from `first` on; yields the same tally after each."""
    tally = Tally()
    for seed in range(first, first + seeds):
        result = attempt(write(seed, nodes, kinds))
        tally.seeds += 1
        if isinstance(result, str):
            tally.failures[seed] = result
        else:
            tally.steps += result.steps
            tally.simulated += result.took
            tally.events += result.events
            tally.happened += result.happened
            tally.excuses += result.excuses
        yield tally
