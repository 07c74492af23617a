"""Many seeds, and what they add up to.

May import: faults, scenario.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from p2pnode.rehearse.faults import ALL, Kind
from p2pnode.rehearse.scenario import Outcome, attempt, write


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
    first: int, seeds: int, nodes: int | None = None, kinds: Sequence[Kind] = ALL, jobs: int = 1
) -> Iterator[Tally]:
    """Run `seeds` seeds from `first` on, in `jobs` processes; yields the same tally after each.
    What it yields does not depend on `jobs`."""
    one = functools.partial(_one, nodes, tuple(kinds))
    wanted = range(first, first + seeds)
    if jobs == 1:
        yield from _add_up(map(one, wanted))
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from _add_up(pool.imap(one, wanted, chunksize=4))


def _one(nodes: int | None, kinds: tuple[Kind, ...], seed: int) -> tuple[int, Outcome | str]:
    return seed, attempt(write(seed, nodes, kinds))


def _add_up(results: Iterable[tuple[int, Outcome | str]]) -> Iterator[Tally]:
    tally = Tally()
    for seed, result in results:
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
