"""One seed's run: its setup and faults as plain values, carried out and judged.

May import: protocol, faults, oracle, world.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Sequence

from p2pnode.protocol.core import StepCore
from p2pnode.rehearse.faults import ALL, MILD, SLOW_SLOT, Fault, Kind, arrange, draw
from p2pnode.rehearse.oracle import OracleError, check, over
from p2pnode.rehearse.world import World

PATIENCE = 200.0
"""Simulated seconds after the last fault within which everybody must have finished, beyond what
the slowest machine would need alone."""
WIRE_BYTES = 30_000
"""What one link may have to carry for a step, much of it pledges and statuses: the narrowest need
longer for that than for everything else."""
FREQUENT = (Kind.CRASH, Kind.JOIN, Kind.JOIN, Kind.FLAP, Kind.PARTITION)
"""Kinds that come more often than others: most rules of the protocol are there for them."""
RARE = (Kind.MISSING, Kind.WRONG, Kind.STOP, Kind.CHANGE)
"""Kinds that come at most once in a run, and not in most."""
READING = (Kind.LACK, Kind.TEXT)
"""Kinds that are drawn last, by a generator of their own: the other faults of a seed stay as they
are, with their numbers."""
ORDERS = {Kind.STOP, Kind.CHANGE}


@dataclasses.dataclass(frozen=True)
class Script:
    """All that decides a run."""

    seed: int
    """Of the delays and of what else the world draws."""
    slots: int
    steps: int
    bandwidth: float
    delay: tuple[float, float]
    duplicates: float
    slot_times: tuple[float, ...]
    """Seconds per slot of each of the first machines; machine 0 is the host."""
    starts_after: float
    audit: float
    """Share of others' sets that every machine computes again."""
    faults: tuple[Fault, ...]

    def only(self, kept: Sequence[int]) -> Script:
        """The same run with the faults of these numbers alone."""
        return dataclasses.replace(self, faults=tuple(self.faults[i] for i in sorted(kept)))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a good run was like."""

    steps: int
    """Steps that were committed."""
    took: float
    """Simulated seconds."""
    events: int
    happened: Counter[str]
    """How many faults of each kind took effect."""
    excuses: Counter[str]
    """How often the oracle had to look away (see oracle)."""


def write(seed: int, nodes: int | None = None, kinds: Sequence[Kind] = ALL) -> Script:
    """The run of a seed: `nodes` machines (None: one to five) and faults of these kinds."""
    source = random.Random(f"rehearsal {seed}")
    steps = source.choice([4, 8, 14, 24, 40])
    count = source.choice([1, 2, 3, 3, 4, 5]) if nodes is None else nodes
    delay = source.choice([(0.001, 0.01), (0.005, 0.08), (0.05, 0.4)])
    safe = source.randrange(count)
    slot_times = tuple(source.choice([0.02, 0.1, 0.1, 0.3]) for _ in range(count))
    faults: list[Fault] = []
    often = [kind for kind in ALL if kind in kinds and kind not in (*RARE, *READING)]
    often += [kind for kind in FREQUENT if kind in kinds]
    troubles = source.choice([0, 1, 2, 3, 4, 6])
    chance = max(0.2, 1.0 / len(kinds)) if kinds else 0.0
    if Kind.WRONG in kinds and source.random() < chance:
        faults += draw(Kind.WRONG, 0.0, count, safe, steps, source)
    unseen = any(fault.wrong and fault.wrong.wrong_gradient_at for fault in faults)
    calm = any(fault.wrong and fault.wrong.grave for fault in faults)
    if calm:
        often = [kind for kind in often if kind in MILD and not (unseen and kind is Kind.MISSING)]
    if Kind.MISSING in kinds and not unseen and source.random() < 3 * chance:
        faults += draw(Kind.MISSING, 0.0, count, safe, steps, source)
    machines = count
    for _ in range(troubles if often else 0):
        at = source.uniform(0.0, 0.3 * steps)
        new = draw(source.choice(often), at, machines, safe, steps, source)
        machines += sum(fault.kind is Kind.JOIN for fault in new)
        faults += new
    for kind in sorted(ORDERS, key=ALL.index):
        if kind in kinds and not calm and source.random() < chance:
            at = source.uniform(0.6, 0.6 + 0.3 * steps)
            faults += draw(kind, at, count, safe, steps, source)
    faults += _reading(seed, count, machines, safe, steps, kinds, faults)
    return Script(
        seed=seed,
        slots=source.choice([3, 6, 8]),
        steps=steps,
        bandwidth=source.choice([3_000.0, 20_000.0, 200_000.0]),
        delay=delay if Kind.DELAY in kinds else (0.001, 0.001),
        duplicates=0.01 if Kind.DUPLICATE in kinds else 0.0,
        slot_times=slot_times,
        starts_after=source.choice([0.0, 0.6, 0.6]),
        # What only an audit finds is found for certain if everything is audited.
        audit=1.0 if unseen else source.choice([0.0, 0.02, 0.5]),
        faults=tuple(faults),
    )


def _reading(
    seed: int,
    count: int,
    machines: int,
    safe: int,
    steps: int,
    kinds: Sequence[Kind],
    others: Sequence[Fault],
) -> list[Fault]:
    """What happens to the text that machines read."""
    source = random.Random(f"reading {seed}")
    found: list[Fault] = []
    calm = all(fault.kind in MILD for fault in others)
    if Kind.TEXT in kinds and calm and source.random() < 0.7:
        return draw(Kind.TEXT, 0.0, count, safe, steps, source)
    if Kind.LACK in kinds and not any(fault.wrong for fault in others):
        for _ in range(source.choice([0, 0, 1, 2, 4])):
            at = source.uniform(0.0, 0.3 * steps)
            found += draw(Kind.LACK, at, machines, safe, steps, source)
    return found


class Scenario:
    """A script in a world of its own, not yet run."""

    def __init__(
        self,
        script: Script,
        *,
        trace: Callable[[str], object] | None = None,
        core_class: type[StepCore] = StepCore,
    ) -> None:
        self.script = script
        world = self.world = World(
            script.seed,
            slots=script.slots,
            steps=script.steps,
            trace=trace,
            core_class=core_class,
        )
        world.net.bandwidth, world.net.delay = script.bandwidth, script.delay
        world.net.duplicates = script.duplicates
        world.audit = script.audit
        first = [world.add(slot_time) for slot_time in script.slot_times]
        # A newcomer's number is in its fault; those of faults that were left out stay unused.
        newcomers = {fault.nodes[0]: fault for fault in script.faults if fault.kind is Kind.JOIN}
        highest = max((node for fault in script.faults for node in fault.nodes), default=0)
        for number in range(len(first), highest + 1):
            world.add(newcomers[number].amount if number in newcomers else 0.1)
        for fault in script.faults:
            arrange(world, fault)
        world.start(first, after=script.starts_after)

    def run(self) -> Outcome:
        """Run to the end and judge. Raises OracleError; any other error is a fault of a core."""
        world, faults = self.world, self.script.faults
        # Whoever is cut off notices, and comes back, up to so much later.
        trouble = max((fault.end + 3.0 for fault in faults), default=0.0)
        slowest = max(m.slot_time for m in world.machines.values())
        if any(fault.kind is Kind.SLOW for fault in faults):
            slowest = max(slowest, SLOW_SLOT)
        most = world.steps + sum(max(fault.amount, 0) for fault in faults if fault.kind in ORDERS)
        alone = 3.0 * slowest * world.slots * most  # a record may have it begin again
        narrow = WIRE_BYTES * most / self.script.bandwidth
        world.run(trouble + PATIENCE + alone + narrow, lambda: world.now >= trouble and over(world))
        kinds = {fault.kind for fault in faults}
        disturbed = not kinds <= {*MILD, *ORDERS, Kind.WRONG, Kind.JOIN} or Kind.MISSING in kinds
        disturbed |= Kind.JOIN in kinds and bool(kinds & ORDERS)  # it may have no link yet
        excuses = check(world, disturbed=disturbed)
        steps = max(world.commits, default=0)
        return Outcome(steps, world.now, world.events, world.happened, excuses)


def attempt(script: Script, core_class: type[StepCore] = StepCore) -> Outcome | str:
    """Run a script; what went wrong, in a sentence, if it did."""
    try:
        return Scenario(script, core_class=core_class).run()
    except OracleError as error:
        return str(error)
    except Exception as error:  # a core must never raise, whatever it is told
        return f"a core raised {type(error).__name__}: {error}"
