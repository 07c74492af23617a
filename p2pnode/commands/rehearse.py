"""`rehearse`: run the step protocol through seeded disasters, and say what came of it.

May import: rehearse, errors. The clock here only paces the progress line.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from p2pnode.errors import RehearsalError, UsageError
from p2pnode.rehearse.campaign import Tally, campaign
from p2pnode.rehearse.faults import ALL, Kind
from p2pnode.rehearse.scenario import Scenario, Script, attempt, write
from p2pnode.rehearse.shrink import shrink

MOST_NODES = 16
"""Machines at the start; newcomers come on top."""
PROGRESS = 2.0
"""Seconds between two progress lines."""
SHRUNK = 10
"""Failing seeds that are reduced to the faults that matter; of more, the seed is told."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What was asked for. `nodes`: machines at the start, None: one to five, by the seed."""

    first: int
    seeds: int
    nodes: int | None
    kinds: tuple[Kind, ...]
    trace: bool = False
    only: tuple[int, ...] | None = None
    """Numbers of the faults to keep (with one seed)."""
    jobs: int = 1
    """Processes."""

    def replay(self, seed: int, kept: Sequence[int] | None = None) -> str:
        """The command that runs a seed again."""
        parts = [f"python -m p2pnode rehearse --seed {seed}"]
        if self.nodes is not None:
            parts.append(f"--nodes {self.nodes}")
        if set(self.kinds) != set(ALL):
            parts.append("--faults " + (",".join(kind.value for kind in self.kinds) or "none"))
        if kept is not None:
            parts.append("--only " + (",".join(map(str, kept)) or "none"))
        return " ".join([*parts, "--trace"])


def rehearse(options: Options, say: Callable[[str], object] = print) -> int:
    """Run what was asked for and print it. Raises RehearsalError if a run broke the promise."""
    if options.seeds == 1 and (options.trace or options.only is not None):
        _replay(options, say)
        return 0
    if options.trace or options.only is not None:
        raise UsageError("--trace and --only show one run: give them with --seed.")
    began = told = time.monotonic()
    tally = Tally()
    runs = campaign(options.first, options.seeds, options.nodes, options.kinds, options.jobs)
    reported = 0
    try:
        for tally in runs:
            if len(tally.failures) > reported:
                seed = next(reversed(tally.failures))
                _failure(options, seed, tally.failures[seed], reported < SHRUNK, say)
                reported += 1
            now = time.monotonic()
            if now - told >= PROGRESS and tally.seeds < options.seeds:
                told = now
                say(
                    f"{tally.seeds} of {options.seeds} seeds, {tally.steps} steps, "
                    f"{len(tally.failures)} failures, {tally.seeds / (now - began):.0f} seeds/s"
                )
    finally:  # also if the user has seen enough
        _summary(options, tally, time.monotonic() - began, say)
    if tally.failures:
        raise RehearsalError(
            f"{len(tally.failures)} of {tally.seeds} runs broke the promise; each one's command "
            "to run it again is above. This is a fault of the protocol: please report it."
        )
    return 0


def _replay(options: Options, say: Callable[[str], object]) -> None:
    """One run, told in full."""
    script = write(options.first, options.nodes, options.kinds)
    if options.only is not None:
        if not set(options.only) <= set(range(len(script.faults))):
            raise UsageError(
                f"--only names faults of seed {options.first} by number: it has "
                f"{len(script.faults)}, numbered from 0."
            )
        script = script.only(options.only)
    say(
        f"seed {options.first}: {len(script.slot_times)} nodes, {script.slots} slots, "
        f"{script.steps} steps"
    )
    _tell_faults(script, range(len(script.faults)), say)
    result = attempt(script) if not options.trace else None
    if options.trace:
        scenario = Scenario(script, trace=say)
        try:
            result = scenario.run()
        except Exception as error:  # the trace is for this
            world = scenario.world
            for name, report in world.reports:
                say(f"{name} {world.show(report)}")
            for machine in world.machines.values():
                say(world.summary(machine))
            result = f"{type(error).__name__}: {error}"
    if isinstance(result, str):
        raise RehearsalError(f"Seed {options.first} broke the promise: {result}")
    if result is not None:
        say(f"good after {result.took:.1f} simulated seconds, {result.events} events")
        for excuse, count in result.excuses.items():
            say(f"  excused: {excuse} ({count})")


def _failure(
    options: Options, seed: int, what: str, reduce: bool, say: Callable[[str], object]
) -> None:
    say(f"seed {seed} FAILED: {what}")
    script = write(seed, options.nodes, options.kinds)
    kept = shrink(script) if reduce else None
    if kept is not None:
        say(f"  it needs {len(kept)} of its {len(script.faults)} faults:")
        _tell_faults(script, kept, say)
    say(f"  replay: {options.replay(seed, kept)}")


def _tell_faults(script: Script, numbers: Sequence[int], say: Callable[[str], object]) -> None:
    for number in numbers:
        say(f"  [{number}] {script.faults[number]}")


def _summary(options: Options, tally: Tally, took: float, say: Callable[[str], object]) -> None:
    last = options.first + tally.seeds - 1
    say(
        f"{tally.seeds} seeds ({options.first} to {last}), {tally.steps} steps, "
        f"{tally.simulated / 3600:.1f} simulated hours, {tally.events} events in {took:.0f} s: "
        f"{len(tally.failures)} failures"
    )
    faults = ", ".join(f"{name} {count}" for name, count in sorted(tally.happened.items()))
    say(f"faults that took effect: {faults or 'none'}")
    for excuse, count in sorted(tally.excuses.items()):
        say(f"excused: {excuse} ({count})")
