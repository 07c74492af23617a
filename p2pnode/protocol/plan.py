"""Plans: checking one that arrived, and making one (pure functions).

May import: errors, messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from p2pnode.errors import PeerError
from p2pnode.protocol.messages import PeerId, Plan, PlanKey, Slots, Work

RANKS = 64
LIVES = 256
"""Terms are ballots: (round * RANKS + RANKS - 1 - rank of the leader in join order) * LIVES + life.
So no two leaders share a term, and of two that rose in the same round the earlier in join order
wins. The life, part of the random number drawn at each start, keeps a leader that has restarted and
remembers nothing from leading in a term of its former life: its plans would look like those."""

TERM_LEAP = 2**16 * RANKS * LIVES
"""Rounds that a peer may be ahead of us: far more than leaders are lost while somebody is away, and
so few that no member can use up the terms there are."""


def next_term(term: int, rank: int, boot: int) -> int:
    """The first term of the next round that belongs to this life of the member with this rank."""
    ballot = (term // LIVES // RANKS + 1) * RANKS + (RANKS - 1 - rank % RANKS)
    return ballot * LIVES + boot % LIVES


def check_plan(plan: Plan, slots: int) -> None:
    """Raise PeerError unless every slot has exactly one set and all positions exist."""
    size = len(plan.roster)
    if len(set(plan.roster)) != size:
        raise PeerError(f"the plan of step {plan.step} names a roster member twice")
    if set(plan.roster) & (set(plan.observers) | set(plan.excluded)):
        raise PeerError(f"the plan of step {plan.step} gives work to a peer that must have none")
    seen: list[int] = []
    for work in plan.work:
        if list(work.slots) != sorted(set(work.slots)):
            raise PeerError(f"the plan of step {plan.step} has a set that is not ascending")
        if max(work.workers) >= size:
            raise PeerError(f"the plan of step {plan.step} names a worker outside its roster")
        seen.extend(work.slots)
    if sorted(seen) != list(range(slots)):
        raise PeerError(f"the plan of step {plan.step} does not hold each of {slots} slots once")
    if max(plan.owners) >= size:
        raise PeerError(f"the plan of step {plan.step} names a shard owner outside its roster")


def divide(slots: Sequence[int], weights: Sequence[float]) -> list[tuple[int, ...]]:
    """Cut `slots` into one run per weight, lengths in proportion (largest remainder)."""
    total = sum(weights)
    shares = [len(slots) * weight / total for weight in weights]
    counts = [int(share) for share in shares]
    order = sorted(range(len(weights)), key=lambda i: (counts[i] - shares[i], i))
    for i in order[: len(slots) - sum(counts)]:
        counts[i] += 1
    pieces = []
    start = 0
    for count in counts:
        pieces.append(tuple(slots[start : start + count]))
        start += count
    return pieces


def assign(
    roster: Sequence[PeerId],
    slots: int,
    speeds: Mapping[PeerId, float],
    kept: Mapping[Slots, tuple[PeerId, ...]],
    lacking: Collection[PeerId] = (),
) -> tuple[Work, ...]:
    """Sets for a step: `kept` ones stay with their workers, the other slots go where most of a
    share in proportion to speed is still open. An unknown speed (0) counts as the mean. Peers that
    are `lacking` the text get none, unless all are."""
    position = {peer: i for i, peer in enumerate(roster)}
    known = [speeds[peer] for peer in roster if speeds.get(peer, 0.0) > 0.0]
    mean = sum(known) / len(known) if known else 1.0
    able = [peer for peer in roster if peer not in lacking] or roster
    weights = [(speeds.get(peer, 0.0) or mean) if peer in able else 0.0 for peer in roster]
    total = sum(weights)
    work = []
    load = [0.0] * len(roster)
    taken: set[int] = set()
    for chosen, workers in kept.items():
        places = tuple(position[peer] for peer in workers if peer in position)
        if places and not taken & set(chosen):
            work.append(Work(chosen, places))
            load[places[0]] += len(chosen)
            taken.update(chosen)
    free = [slot for slot in range(slots) if slot not in taken]
    if free:
        # A little for everybody, so that it can be divided if all have more than their share.
        open_share = [
            max(slots * weight / total - done, 1e-6 * weight / total)
            for weight, done in zip(weights, load, strict=True)
        ]
        for i, piece in enumerate(divide(free, open_share)):
            if piece:
                work.append(Work(piece, (i,)))
    return tuple(sorted(work, key=lambda item: item.slots))


def assign_owners(
    roster: Sequence[PeerId], before: Sequence[PeerId], count: int
) -> tuple[int, ...]:
    """Owner positions for `count` shards: those of `before` that are still there stay, the
    others go to whoever owns least."""
    position = {peer: i for i, peer in enumerate(roster)}
    owners: list[int | None] = [position.get(peer) for peer in before[:count]]
    owners += [None] * (count - len(owners))
    load = [owners.count(i) for i in range(len(roster))]
    result = []
    for kept in owners:
        owner = kept if kept is not None else min(range(len(roster)), key=lambda i: (load[i], i))
        load[owner] += kept is None
        result.append(owner)
    return tuple(result)


NO_PLAN = PlanKey(0, 0)
