"""What can happen to a simulated group: the kinds of faults, and one fault as a plain value.

May import: limits, protocol, defects, machine, world. `draw` takes a fault from a seeded generator,
`arrange` puts it into a world's future. A fault names everything about itself, so any subset of a
run's faults is a run as well (see shrink).
"""

from __future__ import annotations

import dataclasses
import enum
import random

from p2pnode.limits import LIMITS
from p2pnode.protocol import events as ev
from p2pnode.rehearse.defects import Defects
from p2pnode.rehearse.machine import Machine
from p2pnode.rehearse.world import World


class Kind(enum.Enum):
    """Kinds of faults; the value is its name on the command line."""

    CRASH = "crash"
    """A machine goes down for good, without a word."""
    RESTART = "restart"
    """A machine crashes and comes back with its last checkpoint."""
    WIPE = "wipe"
    """A machine crashes and comes back without its disk."""
    FREEZE = "freeze"
    """A process is stopped for a while; its clock runs on."""
    CLOCK = "clock"
    """A machine is suspended: its clock stands still, and may then leap by up to an hour."""
    SLOW = "slow"
    """A machine computes twenty times as slowly from now on."""
    FLAP = "flap"
    """A link breaks and comes back."""
    ONEWAY = "oneway"
    """Frames of one direction vanish."""
    STALL = "stall"
    """Bulk frames of one direction vanish while control frames pass."""
    MISSING = "missing"
    """Two machines can never link."""
    PARTITION = "partition"
    """Some machines are cut off from the others, and come back."""
    SIGNALING = "signaling"
    """The signaling server is away: no new links, no newcomers."""
    DELAY = "delay"
    """Frames take up to three seconds longer for a while."""
    REORDER = "reorder"
    """Messages of one channel overtake each other for a while."""
    DUPLICATE = "duplicate"
    """Every third message comes twice for a while."""
    JOIN = "join"
    """A newcomer is let in while the run goes on."""
    LEAVE = "leave"
    """A machine's owner takes it back, in good order."""
    STOP = "stop"
    """The host, or who stands in for it, ends the run, maybe while it is cut off."""
    CHANGE = "change"
    """The host, or who stands in for it, changes the settings, maybe while it is cut off."""
    FULL = "full"
    """A machine's disk is full for a while: nothing is saved or spooled."""
    DATA = "data"
    """A machine's training text goes away: the next set it should compute ends its process."""
    LACK = "lack"
    """A machine's text does not come for a while: it keeps its place, and computes nothing."""
    TEXT = "text"
    """A machine reads other text than the others in one slot."""
    WRONG = "wrong"
    """A machine computes, adds or claims something wrong at one step."""


ALL = tuple(Kind)
MILD = (Kind.DELAY, Kind.REORDER, Kind.DUPLICATE, Kind.SLOW, Kind.MISSING)
"""What leaves everybody in one group. With a machine that applies wrongly, or reads other text, or
whose gradient only an audit finds wrong, nothing else is drawn: alone with it nobody could
tell."""
WRONGS = (
    *("bad_probe_at", "no_probe_at", "strips_probe_at", "false_claim_at"),
    *("wrong_apply_at", "wrong_apply_at"),
    "wrong_gradient_at",
    *("adds_wrongly_at", "corrupts_sums_at", "two_faced_at", "wrong_summary_at"),
    *("corrupts_parts_at", "contradicts_evidence_at", "two_faced_work_at"),
    *("forges_sums_at", "forges_some_at", "lies_in_check_at", "withholds_at"),
)
"""Defects that the protocol finds; `wrong_gradient_at` by audits alone."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that happens. `nodes` are numbers of machines: the victim, a pair, a group."""

    kind: Kind
    at: float
    """Simulated seconds after the start."""
    nodes: tuple[int, ...] = ()
    lasts: float = 0.0
    """Seconds until it is over, 0 for good."""
    amount: float = 0.0
    """clock: seconds that the clock leaps by; join: seconds per slot; change: steps more."""
    wrong: Defects | None = None

    @property
    def end(self) -> float:
        return self.at + self.lasts

    def __str__(self) -> str:
        names = ", ".join(f"n{node}" for node in self.nodes)
        span = f" for {self.lasts:g} s" if self.lasts else ""
        told = {
            Kind.CLOCK: f", then its clock leaps by {self.amount:g} s",
            Kind.WRONG: f": {self.wrong}",
            Kind.TEXT: f": {self.wrong}",
        }.get(self.kind, "")
        return f"{self.at:7.2f} {self.kind.value} {names}{span}{told}".rstrip()


def draw(
    kind: Kind, at: float, nodes: int, safe: int, steps: int, source: random.Random
) -> list[Fault]:
    """A fault of this kind among `nodes` machines, or none if it cannot be. `safe` is the machine
    that lives to the end. A stop order may bring a partition of its own."""
    every = range(nodes)
    victims = [node for node in every if node != safe]
    pair = tuple(source.sample(every, 2)) if nodes > 1 else ()
    match kind:
        case Kind.CRASH | Kind.LEAVE | Kind.DATA:
            return [Fault(kind, at, (source.choice(victims),))] if victims else []
        case Kind.RESTART | Kind.WIPE:
            lasts = source.choice([0.1, 1.0, 5.0, 15.0])
            return [Fault(kind, at, (source.choice(every),), lasts)]
        case Kind.FREEZE:
            lasts = source.choice([1.0, 6.0, 12.0, 40.0])
            return [Fault(kind, at, (source.choice(every),), lasts)]
        case Kind.CLOCK:
            lasts = source.choice([0.1, 1.0, 12.0, 40.0])
            return [
                Fault(kind, at, (source.choice(every),), lasts, source.choice([0, 9, 60, 3600]))
            ]
        case Kind.LACK:
            lasts = source.choice([1.0, 5.0, 20.0, 60.0])
            return [Fault(kind, at, (source.choice(every),), lasts)]
        case Kind.FULL:
            return [Fault(kind, at, (source.choice(every),), source.choice([2.0, 20.0]))]
        case Kind.SLOW:
            return [Fault(kind, at, (source.choice(every),))]
        case Kind.FLAP:
            return [Fault(kind, at, pair, source.choice([0.1, 1.0, 5.0, 20.0]))] if pair else []
        case Kind.ONEWAY:
            return [Fault(kind, at, pair, source.choice([3.0, 15.0, 60.0]))] if pair else []
        case Kind.STALL:
            return [Fault(kind, at, pair, LIMITS.stall)] if pair else []
        case Kind.MISSING:
            # With two machines there would be no group at all.
            return [Fault(kind, 0.0, pair)] if nodes > 2 else []
        case Kind.PARTITION:
            return _partition(at, every, source) if nodes > 1 else []
        case Kind.SIGNALING:
            return [Fault(kind, at, (), source.choice([5.0, 20.0, 60.0]))]
        case Kind.DELAY | Kind.REORDER | Kind.DUPLICATE:
            return [Fault(kind, at, (), source.choice([1.0, 4.0, 12.0]))]
        case Kind.JOIN:
            return [Fault(kind, at, (nodes,), amount=source.choice([0.05, 0.1]))]
        case Kind.STOP | Kind.CHANGE:
            cut = nodes > 1 and source.random() < 0.4
            before = _partition(max(at - 1.0, 0.0), every, source) if cut else []
            orders = [Fault(kind, at, (0,), amount=source.choice([0.0, -3.0, 5.0]))]
            if source.random() < 0.3:  # the other side, if there is one, gives an order too
                other = source.choice([Kind.STOP, Kind.CHANGE])
                at += source.uniform(0.0, 5.0)
                amount = source.choice([0.0, -3.0, 5.0])
                orders.append(Fault(other, at, (source.choice(every),), amount=amount))
            return [*before, *orders]
        case Kind.WRONG:
            wrong = Defects()
            setattr(wrong, source.choice(WRONGS), source.randint(1, steps))
            wrong.denies = wrong.wrong_state and source.random() < 0.3
            return [Fault(kind, 0.0, (source.choice(victims),), wrong=wrong)] if victims else []
        case Kind.TEXT:
            wrong = Defects(misreads_at=source.randint(1, steps), denies=source.random() < 0.3)
            return [Fault(kind, 0.0, (source.choice(victims),), wrong=wrong)] if victims else []


def _partition(at: float, every: range, source: random.Random) -> list[Fault]:
    group = tuple(source.sample(every, source.randint(1, len(every) - 1)))
    return [Fault(Kind.PARTITION, at, group, source.choice([2.0, 12.0, 40.0]))]


def arrange(world: World, fault: Fault) -> None:
    """Have the fault happen in the world when its time comes. Call before the world starts."""
    machines = list(world.machines.values())
    chosen = [machines[node] for node in fault.nodes]
    if fault.kind is Kind.MISSING:
        world.net.never_link(*chosen)
        world.happened[fault.kind.value] += 1
    elif fault.kind in (Kind.WRONG, Kind.TEXT):
        assert fault.wrong is not None
        chosen[0].defects = fault.wrong
        world.happened[fault.kind.value] += 1
    else:
        world.at(fault.at, lambda: _happen(world, fault, chosen))


def _happen(world: World, fault: Fault, chosen: list[Machine]) -> None:
    """The moment of a fault. One that finds its machine down already does nothing."""
    kind, lasts = fault.kind, fault.lasts
    alive = [machine for machine in chosen if machine.up and not machine.released]
    needed = 0 if kind is Kind.JOIN else min(len(chosen), 1 if kind is Kind.PARTITION else 2)
    if len(alive) < needed:
        return
    match kind:
        case Kind.CRASH:
            world.crash(chosen[0])
        case Kind.RESTART | Kind.WIPE:
            world.crash(chosen[0])
            world.at(fault.end, lambda: _return(world, chosen[0], kind is Kind.WIPE))
        case Kind.FREEZE:
            chosen[0].freeze(fault.end)
        case Kind.CLOCK:
            chosen[0].freeze(fault.end, fault.amount)
        case Kind.FULL:
            chosen[0].full_until = max(chosen[0].full_until, fault.end)
        case Kind.SLOW:
            chosen[0].slot_time = max(chosen[0].slot_time, SLOW_SLOT)
        case Kind.FLAP:
            world.net.flap(chosen[0], chosen[1], lasts)
        case Kind.ONEWAY:
            world.net.block(chosen[0], chosen[1], lasts)
        case Kind.STALL:
            world.net.stall(chosen[0], chosen[1])
        case Kind.PARTITION:
            world.net.partition(alive, lasts)
        case Kind.SIGNALING:
            world.net.signaling_back = max(world.net.signaling_back, fault.end)
        case Kind.DELAY:
            world.net.delayed_until = max(world.net.delayed_until, fault.end)
        case Kind.REORDER:
            world.net.reordered_until = max(world.net.reordered_until, fault.end)
        case Kind.DUPLICATE:
            world.net.repeated_until = max(world.net.repeated_until, fault.end)
        case Kind.JOIN:
            if not _join(world, chosen[0]):
                return
        case Kind.LEAVE:
            chosen[0].feed(ev.LeaveRequested())
        case Kind.DATA:
            chosen[0].no_data = True
        case Kind.LACK:
            chosen[0].lack(fault.end)
        case Kind.STOP | Kind.CHANGE:
            if not _order(world, chosen[0], fault):
                return
        case Kind.MISSING | Kind.WRONG | Kind.TEXT:
            raise AssertionError("these are there from the start")
    world.happened[kind.value] += 1


SLOW_SLOT = 2.0
"""Seconds per slot of a machine that has become slow."""


def _return(world: World, machine: Machine, wiped: bool) -> None:
    """A member that crashed comes back, if the room still is there."""
    if machine.me in world.members and not machine.up:
        world.restart(machine, wiped)


def _join(world: World, machine: Machine) -> bool:
    """Let a newcomer in, if there is a run to join and a server that introduces it."""
    running = any(other.up and other.finished is None for other in world.machines.values())
    if world.now < world.net.signaling_back or not running:
        return False
    world.admit(machine)
    return True


def _order(world: World, asked: Machine, fault: Fault) -> bool:
    """An order, if one can be given: by the machine, or by whoever is first in join order among
    those it can reach, as the owners would agree; that one must know how far the run is."""
    reach = [asked, *(world.machines[peer] for peer in world.net.links(asked))]
    members = list(world.members)
    able = [m for m in reach if m.up and m.failed is None and not m.released and m.me in members]
    if not able:
        return False
    signer = min(able, key=lambda machine: members.index(machine.me))
    step = signer.core.horizon()
    if step is None or signer.finished is not None or world.now < signer.paused_until:
        return False
    chain, config = signer.chain, signer.chain.config
    if fault.kind is Kind.STOP:
        if step >= chain.last_step:
            return False
        chain = chain.stop(signer.identity, step)
    else:
        steps = max(config.steps + round(fault.amount), step + 1)
        lr = config.lr + 0.002
        if step < 1:
            return False
        changed = config.changed(step, steps=steps, lr=lr, warmup=None)
        chain = chain.change(signer.identity, step, changed)
    signer.take(chain, here=True)
    return True
