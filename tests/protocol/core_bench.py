"""One core fed by hand, and what sound peers would tell it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from msgspec import structs

from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol import messages as m
from p2pnode.protocol.core import StepCore
from p2pnode.protocol.pieces import digest_pieces
from p2pnode.protocol.plan import next_term
from p2pnode.protocol.setup import Setup
from p2pnode.rehearse import toy
from p2pnode.rehearse.toy import sign

ME, PEER, THIRD, STRANGER = (bytes([i]) * 32 for i in (1, 2, 3, 9))

RUN = b"r" * 16
STATE = toy.initial()
TERM = next_term(0, 0, 1)
SHARD = m.Shard(0, 3)
SET = (2, 3)


class Bench:
    """A core that leads a roster of three, at step 1 of 8 with 6 slots."""

    def __init__(self, me: bytes = ME, audit: Callable[[], bool] = lambda: False) -> None:
        self.now = 0.0
        self.all: list[ef.Effect] = []
        self.core = StepCore(
            Setup(
                me=me,
                run=RUN,
                parameters=toy.PARAMETERS,
                tensors=toy.TENSORS,
                slots=6,
                steps=8,
                state_hash=STATE.hash,
                boot=1,
                probe=toy.PROBE,
                members=(ME, PEER, THIRD),
                secret=b"secret",
                sign=lambda digest: sign(me, digest),
                signed=lambda peer, digest, signature: signature == sign(peer, digest),
                audit=audit,
            )
        )
        self.seq = 0
        for peer in (ME, PEER, THIRD):
            if peer != me:
                self.feed(ev.LinkUp(peer))
        self.feed(ev.Start(lead=me == ME))
        for peer in (PEER, THIRD):
            if peer != me:
                self.status(peer)

    def feed(self, event: ev.Event, later: float = 0.01) -> list[ef.Effect]:
        self.now += later
        effects = self.core.handle(event, self.now)
        self.all += effects
        return effects

    def tell(self, peer: bytes, message: m.Message, payload: bytes = b"") -> list[ef.Effect]:
        return self.feed(ev.MessageReceived(peer, message, payload))

    def status(self, peer: bytes, **changes: Any) -> list[ef.Effect]:
        self.seq += 1
        fields: dict[str, Any] = {
            "run": RUN,
            "boot": 1,
            "seq": self.seq,
            "term": TERM,
            "leader": ME,
            "leading": peer == ME,
            "applied": 0,
            "state_hash": STATE.hash,
            "committed": 0,
            "committed_hash": STATE.hash,
            "plan": m.PlanKey(0, 0),
            "current": m.PlanKey(0, 0),
            "links": (ME, PEER, THIRD),
            "sets": (),
            "speed": 0.0,
            "kept_from": 1,
            "wants_state": False,
            "received": 0,
            "frozen": None,
            "before": (),
            "verified": 0,
            "checked": 0,
            "claim": None,
            "auditing": 0,
            "lacking": False,
            "leaving": False,
        }
        return self.tell(peer, m.Status(**(fields | changes)))

    def works(self, peer: bytes, slots: tuple[int, ...], **changes: Any) -> list[ef.Effect]:
        """A peer pledges a set (`changes` are to the pledge) and contributes it to our shard."""
        effects = self.tell(peer, pledge(peer, slots, **changes))
        base = changes.get("base", STATE.hash)
        return effects + self.tell(peer, *contribution(slots, SHARD, base=base))

    def kinds(self, kind: type, effects: list[ef.Effect] | None = None) -> list[Any]:
        return [e for e in (self.all if effects is None else effects) if isinstance(e, kind)]

    def plans(self) -> list[m.Plan]:
        return [e.message for e in self.kinds(ef.Send) if isinstance(e.message, m.Plan)]

    def statuses(self) -> list[m.Status]:
        return [e.message for e in self.kinds(ef.Send) if isinstance(e.message, m.Status)]

    def refusals(self) -> str:
        return "; ".join(e.text for e in self.kinds(ef.Report) if e.kind is ef.Kind.REFUSED)


def contribution(slots: tuple[int, ...], shard: m.Shard, **changes: Any) -> tuple[Any, bytes]:
    low, high = shard.bounds(toy.PARAMETERS)
    message = m.Contribution(RUN, 1, STATE.hash, slots, shard)
    total = toy.add([toy.gradient(STATE, 1, slot)[1] for slot in slots])
    return structs.replace(message, **changes), toy.pack(total[low:high])


def pledge(worker: bytes, slots: tuple[int, ...], **changes: Any) -> m.Pledge:
    evidence, _, pieces = sound_work(slots)
    unsigned = structs.replace(
        m.Pledge(
            run=RUN,
            peer=worker,
            step=1,
            base=STATE.hash,
            slots=slots,
            probe=toy.PROBE,
            evidence=evidence,
            pieces=pieces,
            signature=b"",
        ),
        **changes,
    )
    return structs.replace(unsigned, signature=sign(worker, m.pledge_digest(unsigned)))


def sound_work(
    slots: tuple[int, ...],
) -> tuple[tuple[m.SlotEvidence, ...], bytes, tuple[bytes, ...]]:
    """What a sound machine computes of a set: evidence, sum, and the digests of its pieces."""
    results = [toy.gradient(STATE, 1, slot) for slot in slots]
    total = toy.pack(toy.add([values for _, values in results]))
    pieces = digest_pieces(total, m.Shard(0, 1), toy.PARAMETERS)
    return tuple(evidence for evidence, _ in results), total, pieces


def computed(slots: tuple[int, ...], *, reference: bool = False, **changes: Any) -> ev.Computed:
    evidence, total, pieces = sound_work(slots)
    right = ev.Computed(1, slots, reference, toy.PROBE, evidence, total, pieces)
    return dataclasses.replace(right, **changes)


def plan(**changes: Any) -> m.Plan:
    return structs.replace(
        m.Plan(
            run=RUN,
            key=m.PlanKey(TERM, 50),
            leader=ME,
            step=1,
            roster=(ME, PEER, THIRD),
            observers=(),
            work=(m.Work((0, 1, 2, 3), (0,)), m.Work((4, 5), (1,))),
            owners=(0, 1, 2),
            freeze=False,
            excluded=(),
        ),
        **changes,
    )
