"""What may be taken from others: contributions, sums, claims; and what follows if it is wrong.

May import: errors, board, confront, contribute, effects, events, messages, pledges, reduce.

The rule: a statement about a slot that contradicts another one is settled by computing the slot
with the reference kernels here, not by believing either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec import structs

from p2pnode.errors import PeerError
from p2pnode.protocol.board import Board, short
from p2pnode.protocol.confront import Confront
from p2pnode.protocol.contribute import Contributor
from p2pnode.protocol.effects import Compute, Ending, Kind
from p2pnode.protocol.events import Computed, Diagnosed, SetRefused
from p2pnode.protocol.messages import (
    Accuse,
    Buffer,
    Claim,
    Contribution,
    PeerId,
    Pledge,
    Seen,
    Shard,
    ShardSum,
    SlotEvidence,
    Slots,
    pledge_digest,
)
from p2pnode.protocol.pledges import AHEAD, Pledges
from p2pnode.protocol.reduce import Part, Shelf

NOT_FINITE = None
"""What a claim says of a slot, where evidence would say its values."""


@dataclasses.dataclass(slots=True)
class _Check:
    """Statements about one slot that wait for its recomputation here."""

    says: dict[PeerId, SlotEvidence | None]
    started: bool = False


class Guard:
    """Judges what other peers state about slots."""

    def __init__(
        self,
        board: Board,
        shelf: Shelf,
        contributor: Contributor,
        pledges: Pledges,
        confront: Confront,
    ) -> None:
        self._board = board
        self._shelf = shelf
        self._confront = confront
        self._contributor = contributor
        self._pledges = pledges
        self._seen: dict[tuple[int, int], tuple[PeerId, SlotEvidence]] = {}
        self._checks: dict[tuple[int, int], _Check] = {}
        self._settled: dict[tuple[int, int], SlotEvidence] = {}
        self._accused: dict[PeerId, Accuse] = {}
        self._accused_at = float("-inf")
        self._doubters: dict[PeerId, Accuse] = {}
        """Who says that this node computed a slot on other text."""
        self.claim: Claim | None = None
        """The slot that is not finite, as far as this node knows by itself."""

    # Pledges, contributions and sums

    def pledge(self, peer: PeerId, message: Pledge) -> None:
        """Take, ignore or refuse a pledge that `peer` sent or passed on. PeerError if no honest
        peer could send it."""
        board, setup = self._board, self._board.setup
        step, worker = message.step, message.peer
        self._check_slots(message.slots, step)
        if tuple(item.slot for item in message.evidence) != message.slots:
            raise PeerError(f"a pledge to step {step} has evidence for other slots")
        if any(len(item.max_abs) != setup.tensors for item in message.evidence):
            raise PeerError(f"a pledge to step {step} has evidence for another model")
        if not self._pledges.wanted(step) or worker not in board.peers:
            return
        # Of one who was found out it is kept if another shows it: it tells what was added.
        trusted = self.trusted(worker)
        if not (trusted or peer != worker) or not self._pledges.has_room(message):
            return
        known = self._pledges.get(step, message.slots, worker)
        if known is not None and structs.replace(known, run=message.run) == message:
            return
        if not setup.signed(worker, pledge_digest(message), message.signature):
            raise PeerError(f"a pledge to step {step} has not the signature of its worker")
        if known is not None and known.base == message.base:
            if trusted:
                self._lied(known, message)
            return
        if known is None or (step > board.committed and known.base != board.hashes.get(step - 1)):
            self._pledges.keep(message)
            if trusted:
                self._weigh(message)

    def _lied(self, known: Pledge, other: Pledge) -> None:
        """Two signed statements of one worker about one set differ: both go to everybody, who
        then needs to believe nobody."""
        for peer, _ in self._board.good_peers():
            for pledge in (known, other):
                self._board.send(peer, pledge, key=("lie", pledge.peer, pledge_digest(pledge)))
        self.accuse(known.peer, known.step, f"it pledged two things for slots {known.slots}")

    def _weigh(self, pledge: Pledge) -> None:
        """What a pledge says about the current step, if it starts from our state. One that starts
        from another says nothing here: the commit rule finds out whose state is wrong."""
        board = self._board
        if pledge.step != board.applied + 1 or pledge.base != board.hashes[board.applied]:
            return
        if pledge.probe != board.setup.probe:
            what = "failed" if pledge.probe else "did not run"
            self.accuse(pledge.peer, pledge.step, f"its kernel probe {what}")
        else:
            self.agrees(pledge.peer, pledge.step, pledge.evidence)

    def seen(self, peer: PeerId, step: int, seen: Sequence[Seen]) -> None:
        """A peer names the pledges it has: it gets ours that differ, which prove a lie to it."""
        for pledge in self._pledges.others(step, seen):
            if pledge.peer == peer:
                what = f"it says that it pledged other things for slots {pledge.slots}"
                self.accuse(peer, step, what)
            else:
                key = ("pledge", pledge.peer, step, pledge.slots)
                self._board.send(peer, pledge, key=key)

    def contribution(self, peer: PeerId, message: Contribution, payload: Buffer) -> None:
        """Take or ignore a contribution. PeerError if no honest peer could send it."""
        board, step = self._board, message.step
        self._check_shard(message.shard, payload)
        self._check_slots(message.slots, step)
        if not board.applied < step <= board.applied + AHEAD or not self.trusted(peer):
            return
        if step == board.applied + 1 and message.base != board.hashes[board.applied]:
            return  # from another state, as above
        part = Part(peer, message.base, payload)
        self._shelf.put_part(step, message.slots, message.shard, part)

    def _check_slots(self, slots: Slots, step: int) -> None:
        if list(slots) != sorted(set(slots)) or slots[-1] >= self._board.setup.slots:
            raise PeerError(f"work of step {step} names slots that do not exist")

    def sum(self, peer: PeerId, message: ShardSum, payload: Buffer) -> None:
        """Take or ignore a sum. PeerError if no honest peer could send it."""
        self._check_shard(message.shard, payload)
        if len(message.summary.max_abs) != self._board.setup.tensors:
            raise PeerError(f"a sum of step {message.step} is of another model")
        if self.trusted(peer):
            self._shelf.put_sum(message, peer, payload)

    def _check_shard(self, shard: Shard, payload: Buffer) -> None:
        if shard.index >= shard.count:
            raise PeerError(f"shard {shard.index} of {shard.count} does not exist")
        low, high = shard.bounds(self._board.setup.parameters)
        if len(payload) != 4 * (high - low):
            raise PeerError(f"a shard of {high - low} values has {len(payload)} bytes")

    def agrees(self, peer: PeerId, step: int, evidence: tuple[SlotEvidence, ...]) -> bool:
        """Whether the evidence repeats what is known of these slots; a contradiction is kept,
        reported, and settled by recomputation."""
        agreed = True
        for item in evidence:
            where = (step, item.slot)
            other, known = self._seen.setdefault(where, (peer, item))
            if known != item:
                agreed = False
                self._board.report(
                    Kind.REFUSED,
                    f"{short(peer)} and {short(other)} differ about slot {item.slot} of step "
                    f"{step}; it is recomputed here",
                    peer,
                    step,
                )
                self._question(where, {other: known, peer: item})
        return agreed

    def disputed(self, step: int) -> bool:
        """A slot of the step waits for its recomputation: nothing of it is added meanwhile."""
        return any(where[0] == step for where in self._checks)

    # Claims and their settlement

    def claimed(self, peer: PeerId, claim: Claim) -> None:
        """A peer says that a slot is not finite. Statuses repeat it until our turn has come."""
        current = claim.step == self._board.applied + 1 and claim.slot < self._board.setup.slots
        if current and self.trusted(peer):
            self._question((claim.step, claim.slot), {peer: NOT_FINITE})

    def set_refused(self, event: SetRefused) -> None:
        """Compute found a slot that is not finite: claim it, or confirm a claim."""
        if event.step != self._board.applied + 1:
            return
        if event.reference:
            self._confirm(event.step, event.slot, event.reason)
        else:
            self._contributor.refused(event.slots)
            self.claim = Claim(event.step, event.slot)
            self._question((event.step, event.slot), {self._board.me: NOT_FINITE})

    def _question(self, where: tuple[int, int], says: dict[PeerId, SlotEvidence | None]) -> None:
        if where in self._settled:
            self._judge(where, says, self._settled[where])
        elif self._board.applied < where[0] and self._board.ending is not Ending.NON_FINITE:
            self._checks.setdefault(where, _Check({})).says.update(says)

    def work(self) -> None:
        """Recompute disputed slots of the current step; drop those of steps that are applied."""
        board = self._board
        for where, check in list(self._checks.items()):
            step, slot = where
            if step <= board.applied:
                del self._checks[where]
                for peer, said in check.says.items():
                    if said is NOT_FINITE and peer != board.me:
                        self.accuse(peer, step, f"it called slot {slot} not finite, which it is")
            elif step == board.applied + 1 and not check.started:
                check.started = True
                board.out.append(Compute(step, (slot,), reference=True))

    def recomputed(self, event: Computed) -> None:
        """A slot computed with the reference kernels: settle what was said about it."""
        where = (event.step, event.slots[0])
        check = self._checks.pop(where, None)
        self._settled[where] = event.evidence[0]
        if check is not None:
            self._judge(where, check.says, event.evidence[0])

    def _judge(
        self,
        where: tuple[int, int],
        says: dict[PeerId, SlotEvidence | None],
        truth: SlotEvidence,
    ) -> None:
        step, slot = where
        for peer, said in says.items():
            if said == truth:
                self._seen[where] = (peer, truth)
            elif peer == self._board.me:
                self._confront.convict(step, slot, said)
            else:
                self._seen.pop(where, None)
                if said is not NOT_FINITE and said.token_hash != truth.token_hash:
                    self.reads_other_text(peer, step, slot, truth.token_hash)
                    continue
                self._confront.keep(peer, step, slot, said)
                what = "is wrong" if said is not NOT_FINITE else "is finite"
                self.accuse(peer, step, f"its gradient of slot {slot} {what}", slot)

    def _confirm(self, step: int, slot: int, reason: str) -> None:
        board = self._board
        self.claim = Claim(step, slot)
        self._checks.clear()
        board.last_step = step - 1
        board.ending = Ending.NON_FINITE
        text = f"slot {slot} of step {step} has no finite gradient ({reason}), confirmed here"
        board.detail = text
        board.report(Kind.NON_FINITE, f"{text}; the run ends at step {step - 1}", None, step)

    def adds_up(self, event: Computed) -> None:
        """Compare what others pledged for a set that was computed here. If they say the same of
        each slot, they must also have the same sum."""
        for pledge in self._pledges.of(event.step):
            same = (pledge.slots, pledge.evidence) == (event.slots, event.evidence)
            if same and pledge.pieces != event.pieces:
                what = f"the bytes it pledged for slots {event.slots} are not their sum"
                self.accuse(pledge.peer, event.step, what)

    # Consequences

    def trusted(self, peer: PeerId) -> bool:
        """Nothing speaks against the peer's work so far."""
        return peer not in self._board.excluded and peer not in self._accused

    @property
    def untrusted(self) -> set[PeerId]:
        """All who were found out, here or by others."""
        return {*self._accused, *self._board.excluded}

    def distrusted(self, step: int) -> set[PeerId]:
        """Workers of the step that were found out, in it or before, or by others."""
        found = set()
        for pledge in self._pledges.of(step):
            case = self._accused.get(pledge.peer)
            if case.step <= step if case is not None else pledge.peer in self._board.excluded:
                found.add(pledge.peer)
        return found

    def accuse(
        self, peer: PeerId, step: int, reason: str, slot: int = -1, token_hash: bytes = b""
    ) -> None:
        """Take nothing more from a peer and have the leader give it no more work. It is told too:
        of a `slot` it can find out what went wrong. `token_hash`: what the slot's text here has, if
        it is that which differs."""
        if not self.trusted(peer):
            return
        self._board.report(Kind.REFUSED, f"{short(peer)} at step {step}: {reason}", peer, step)
        case = Accuse(self._board.setup.run, peer, step, slot, reason[:200], token_hash)
        self._accused[peer] = case
        if slot >= 0:
            self._board.send(peer, case, key=("accuse", peer))
        self._shelf.distrust(peer)
        self._accused_at = float("-inf")

    def accused(self, accuser: PeerId, message: Accuse) -> None:
        """An accusation reaches the leader, or the accused."""
        if message.token_hash and message.slot >= 0 and message.peer == self._board.me:
            self._doubted(accuser, message)
            return
        if message.peer == self._board.me and message.slot >= 0 and self.trusted(accuser):
            self._confront.accused(accuser, message)
        if self._board.leading and self.trusted(accuser) and self.trusted(message.peer):
            text = message.token_hash
            if text and not self._other_text(accuser, message):
                return
            # Of other text the accused hears before a plan leaves it out: it has to know why.
            reason = f"{message.reason} (found by {short(accuser)})"
            self.accuse(message.peer, message.step, reason, message.slot if text else -1, text)

    # Two nodes with different text: each believes its own, so the leader's decides

    def _other_text(self, accuser: PeerId, message: Accuse) -> bool:
        """Whether the accused reads other text, as far as can be known here: what it computed was
        not compared with the text here, or is not the same. Not yet, while that is under way: the
        accuser says it again."""
        board = self._board
        read = self._shelf.read.get((message.step, message.slot))
        if read is None:
            plan = board.plans.get(message.step)
            return message.step <= board.applied or (
                plan is not None and not self._shelf.owes(plan)
            )
        if read != message.token_hash:
            self.reads_other_text(accuser, message.step, message.slot, read)
            return False
        return True

    def reads_other_text(self, peer: PeerId, step: int, slot: int, here: bytes) -> None:
        """The tokens that the peer has in a slot are not those here, whose hash is `here`."""
        what = f"the tokens that it has for slot {slot} are not those here"
        self.accuse(peer, step, what, slot, here)

    def _doubted(self, accuser: PeerId, message: Accuse) -> None:
        """Another has other text than we: look whether ours is what it was, and so is the slot."""
        case = self._accused.get(accuser)
        mutual = case is not None and bool(case.token_hash)
        if accuser in self._board.excluded or not (case is None or mutual):
            return
        self._board.doubted = message.step, message.slot
        self._doubters[accuser] = message
        if case is None:
            self._confront.accused(accuser, message)
        if not self._board.diagnosing:  # the step is over
            self._uphold()

    def diagnosed(self, event: Diagnosed) -> None:
        """A slot that others doubt is right, on the text that is here."""
        if event.peer == self._board.me and event.tensor is None:
            self._uphold()

    def _uphold(self) -> None:
        """If this node leads, the text that is here is the run's."""
        if not self._board.leading:
            return
        for accuser, message in list(self._doubters.items()):
            held = self._contributor.of(message.step).values()
            items = (item for computed in held for item in computed.evidence)
            said = next((item for item in items if item.slot == message.slot), None)
            here = said.token_hash if said is not None else b""
            self.reads_other_text(accuser, message.step, message.slot, here)
        self._doubters.clear()

    def tell(self) -> None:
        """Exclude accused peers if leading, else tell the leader, again until it has."""
        board = self._board
        open_cases = [case for peer, case in self._accused.items() if peer not in board.excluded]
        if not open_cases:
            return
        if board.leading:
            for case in open_cases:
                board.exclude(case.peer)
        elif board.leader is not None and board.now - self._accused_at >= board.limits.heartbeat:
            self._accused_at = board.now
            for case in open_cases:
                board.send(board.leader, case, key=("accuse", case.peer))

    def rolled_back(self) -> None:
        """What was said about the step after the open one was about another state."""
        self._seen.clear()
        self._checks.clear()
        self._settled.clear()
        self.claim = None
        self.state_changed()

    def state_changed(self) -> None:
        """What was said of steps that are over counts no more; pledges to the next one do."""
        applied = self._board.applied
        self._seen = {where: said for where, said in self._seen.items() if where[0] > applied}
        self._settled = {where: said for where, said in self._settled.items() if where[0] > applied}
        self._doubters.clear()
        if self.claim is not None and self.claim.step <= applied:
            self.claim = None
        for pledge in self._pledges.of(applied + 1):
            if self.trusted(pledge.peer):
                self._weigh(pledge)
