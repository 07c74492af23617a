"""What the computing thread does for a step core: its effects, carried out by a Trainer.

Every function here runs in the computing thread, takes the effect and returns the event that
answers it. Also the one place where the two ways of counting meet: the protocol numbers steps from
1 (step t makes state t), the trainer from 0 (step t is computed on state t).

May import: bundle, keeper, train, protocol, config, errors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from p2pnode.bundle import Bundles
from p2pnode.config import RunConfig
from p2pnode.errors import CheckpointError, DataError, DiskFullError, NonFiniteError
from p2pnode.keeper import CommitResult, Keeper
from p2pnode.protocol import effects, events, fetch
from p2pnode.protocol.messages import Buffer, Shard, SlotEvidence, as_weight
from p2pnode.protocol.pieces import digest_pieces
from p2pnode.train.arithmetic import kernels
from p2pnode.train.checkpoint import CheckpointFolder
from p2pnode.train.data import Dataset
from p2pnode.train.evidence import AppliedInfo, GradientSum
from p2pnode.train.evidence import SlotEvidence as Stated
from p2pnode.train.gradient import checksum
from p2pnode.train.partial import PartialFile
from p2pnode.train.spool import spool
from p2pnode.train.trainer import Lent, Trainer, TrainerError

PASSING = "not found again: a passing fault of memory or processor"


class PartialSet:
    """A set between two of its slots: the computing thread does one slot at a time, so that a
    reduction never waits for more than one."""

    def __init__(self, effect: effects.Compute | effects.Audit) -> None:
        self.effect = effect
        self.evidence: list[SlotEvidence] = []
        self.sum: GradientSum | None = None

    @property
    def remaining(self) -> tuple[int, ...]:
        return self.effect.slots[len(self.evidence) :]


class Jobs:
    """The effects of one run on one trainer. Not thread-safe: one thread runs all methods."""

    def __init__(self, trainer: Trainer, folder: CheckpointFolder, keeper: Keeper) -> None:
        self._trainer = trainer
        self._keeper = keeper
        self._folder = folder
        self._bundles = Bundles(folder.folder)
        self._grid_limit = kernels.grid_limit(trainer.config.slots)
        self._partial = PartialFile(folder.folder)
        self._texts: tuple[int, dict[int, bytes | None]] = (0, {})
        """Of the step that was reduced last: hashes of its slots' tokens here."""
        self._infos: dict[int, AppliedInfo] = {}

    @property
    def dataset(self) -> Dataset:
        """The text that slots are computed on."""
        return self._trainer.dataset

    def compute_next_slot(self, partial: PartialSet) -> events.Computed | events.SetRefused | None:
        """Add one more slot of the set; None while slots remain."""
        effect = partial.effect
        slot = partial.remaining[0]
        try:
            stated, gradient = self._trainer.compute_slot(
                effect.step - 1, slot, reference=effect.reference
            )
        except TrainerError:
            return None  # the step was applied meanwhile: nobody needs this set any more
        except NonFiniteError as error:
            return events.SetRefused(effect.step, effect.slots, effect.reference, slot, str(error))
        self._add(partial, stated, gradient)
        if partial.remaining or partial.sum is None:
            return None
        payload = _bytes_of(partial.sum)
        return events.Computed(
            effect.step,
            effect.slots,
            effect.reference,
            kernels.probe(self._trainer.kernels),
            tuple(partial.evidence),
            payload,
            self._pieces(partial),
        )

    def _add(self, partial: PartialSet, stated: Stated, gradient: GradientSum) -> None:
        partial.evidence.append(SlotEvidence(**msgspec.structs.asdict(stated)))
        partial.sum = (
            gradient if partial.sum is None else self._trainer.add([partial.sum, gradient])
        )

    def _pieces(self, partial: PartialSet) -> tuple[bytes, ...]:
        assert partial.sum is not None  # there is a slot in every set
        return digest_pieces(_bytes_of(partial.sum), Shard(0, 1), self._trainer.parameters)

    def reduce(self, effect: effects.Reduce) -> events.Reduced | events.ReduceRefused:
        """Add the parts of one shard exactly; a part that is not what its worker pledged, or that
        no honest peer can send, is named; so is one that was computed on other text than is here.
        Raises DataError if it is the text here that has changed."""
        for i, (part, digests) in enumerate(zip(effect.parts, effect.digests, strict=True)):
            if digests and digest_pieces(part, effect.shard, self._trainer.parameters) != digests:
                return events.ReduceRefused(
                    effect.step,
                    effect.shard,
                    effect.ticket,
                    i,
                    "has other bytes than it pledged",
                )
        arrays = [_int32(part) for part in effect.parts]
        for i, (array, size) in enumerate(zip(arrays, effect.sizes, strict=True)):
            limit = size * self._grid_limit
            if array.size and (int(array.max()) > limit or int(array.min()) < -limit):
                return events.ReduceRefused(
                    effect.step,
                    effect.shard,
                    effect.ticket,
                    i,
                    f"holds values beyond {limit}, the most that {size} slots can add up to",
                )
        read = True
        for i, text in enumerate(effect.texts):
            for slot, stated in text:
                here = self._token_hash(effect.step, slot)
                if here is None:
                    read = False
                elif here != stated:
                    self.dataset.check_intact()
                    return events.ReduceRefused(
                        effect.step,
                        effect.shard,
                        effect.ticket,
                        i,
                        f"is of other text: the tokens of slot {slot} are not those here",
                        slot,
                        here,
                    )
        total = self._trainer.add(arrays)
        return events.Reduced(effect.step, effect.shard, effect.ticket, _bytes_of(total), read)

    def _token_hash(self, step: int, slot: int) -> bytes | None:
        """Of the slot's tokens here; None if they are not, for no step waits for a source."""
        if self._texts[0] != step:
            self._texts = step, {}
        known = self._texts[1]
        if known.get(slot) is None:
            known[slot] = self.dataset.token_hash(step - 1, slot, self._trainer.config)
        return known[slot]

    def weigh(self, effect: effects.Weigh) -> events.Weighed:
        """A linear checksum of a vector, with the coefficients of a nonce or the fixed ones."""
        arrays = [_int32(part) for part in effect.parts]
        if effect.nonce is None:
            return events.Weighed(effect.ticket, checksum(np.concatenate(arrays)))
        value, start = 0, 0
        for array in arrays:
            value += kernels.weigh(array, effect.nonce, start)
            start += array.size
        return events.Weighed(effect.ticket, as_weight(value))

    def apply(self, effect: effects.Apply) -> events.Applied | events.ApplyRefused:
        """One optimizer step; the old state stays until the commit."""
        total = np.concatenate([_int32(part) for part in effect.sums])
        try:
            info = self._trainer.apply(
                effect.step - 1, total, effect.summary.max_abs, effect.summary.checksum
            )
        except NonFiniteError as error:
            return events.ApplyRefused(effect.step, str(error), non_finite=True)
        except TrainerError as error:
            return events.ApplyRefused(effect.step, str(error))
        self._infos = {effect.step: info}
        return events.Applied(effect.step, info.state_hash)

    def info(self, step: int) -> AppliedInfo | None:
        """Norm and rate of the newest apply, if it was this step's."""
        return self._infos.get(step)

    def verify(self, effect: effects.Verify) -> events.Verified:
        """Recompute the pending apply with the reference kernels. If it was wrong find out where,
        and save a bundle."""
        trainer, step = self._trainer, effect.step - 1
        stated = trainer.state_hash
        result = trainer.verify(step)
        if result.sound:
            return events.Verified(effect.step, None)
        difference = trainer.examine_pending(step)
        # Nothing differs, and yet the hash is another: it was the hashing that went wrong.
        tensor = next(iter(result.differing), "state hash")
        saved = self._save(
            self._bundles.apply,
            trainer.committed,
            *trainer.pending_sums(step),
            peer=b"",
            stated=stated,
            computed=result.state_hash,
            ops=trainer.kernels,
            difference=difference,
        )
        if difference is None:
            return events.Verified(effect.step, tensor, PASSING, saved)
        if difference.tensor in trainer.tensors:
            tensor = difference.tensor
        return events.Verified(effect.step, tensor, difference.operation, saved)

    # Others' work, and disputes about it

    def lend(self, step: int) -> Lent | None:
        """Keep the state that this step starts from; None if it is not here any more."""
        return self._trainer.lend(step - 1)

    def let_go(self, step: int) -> None:
        """That state is not needed any more."""
        self._trainer.let_go(step - 1)

    def audit_next_slot(self, partial: PartialSet) -> events.Audited | None:
        """As `compute_next_slot`, on the state that was lent for the step."""
        effect = partial.effect
        slot = partial.remaining[0]
        try:
            stated, gradient = self._trainer.compute_lent(
                effect.step - 1, slot, reference=effect.reference
            )
        except (TrainerError, DataError):  # its state or its text is not here any more
            return events.Audited(effect.step, effect.slots, effect.reference, None)
        except NonFiniteError:
            return events.Audited(effect.step, effect.slots, effect.reference, ())
        self._add(partial, stated, gradient)
        if partial.remaining:
            return None
        return events.Audited(
            effect.step,
            effect.slots,
            effect.reference,
            tuple(partial.evidence),
            self._pieces(partial),
            b"" if effect.reference or partial.sum is None else _bytes_of(partial.sum),
        )

    def diagnose(self, effect: effects.Diagnose, lent: Lent | None) -> events.Diagnosed:
        """Find the operation of a disputed slot, on the state that was lent for it, and save a
        bundle. The run may have gone back or on meanwhile. Raises DataError if the text that is
        held here is not what it was."""
        trainer, step = self._trainer, effect.step - 1
        self.dataset.check_intact()
        if lent is None:
            return events.Diagnosed(effect.step, effect.slot, effect.peer, None, "", "")
        try:
            truth, found = trainer.examine_slot(lent, effect.slot)
        except DataError as error:
            return events.Diagnosed(effect.step, effect.slot, effect.peer, None, "", str(error))
        said = effect.said
        saved = self._save(
            self._bundles.slot,
            lent.state,
            *trainer.dataset.slot(step, effect.slot, trainer.config),
            slot=effect.slot,
            peer=effect.peer,
            stated=None if said is None else Stated(**msgspec.structs.asdict(said)),
            computed=truth,
            ops=trainer.kernels,
            difference=found,
        )
        tensor, operation = (found.tensor, found.operation) if found is not None else (None, "")
        return events.Diagnosed(effect.step, effect.slot, effect.peer, tensor, operation, saved)

    def _save(self, save: Callable[..., Path], *args: object, **facts: object) -> str:
        """Save a bundle; says where it is, or why there is none."""
        try:
            path = save(*args, **facts)
        except CheckpointError as error:
            return str(error)
        return f"What reproduces it is in {path} (python -m p2pnode reproduce)."

    def rollback(self, effect: effects.Rollback) -> None:
        """Forget the pending apply."""
        self._trainer.rollback()

    def commit(self, effect: effects.Commit) -> CommitResult:
        """Keep the state of this step; measure and write what is due.

        All that must see exactly this state, so it is done before the next step is applied.
        """
        total = None
        if effect.summary is not None:  # else the state was loaded, and is committed already
            total, _ = self._trainer.pending_sums(effect.step - 1)
            self._trainer.commit(effect.step - 1)
        return self._keeper.keep(effect.summary, total)

    def save(self) -> Path:
        """Write the committed state. Raises CheckpointError; what was there stays."""
        return self._keeper.save()

    def final(self) -> tuple[Path, tuple[int, bytes] | None]:
        """See `Keeper.final`. Raises CheckpointError, LedgerError."""
        return self._keeper.final()

    def turn(self, config: RunConfig) -> None:
        """Later steps are made with these settings."""
        self._trainer.turn(config)

    def freeze(self, effect: effects.Freeze) -> events.Frozen:
        """Serialise the committed state for joiners."""
        payload = self._trainer.snapshot()
        return events.Frozen(
            effect.step, self._trainer.committed_hash, payload, fetch.part_hashes(payload)
        )

    def load(self, effect: effects.Load) -> events.Loaded | events.LoadRefused:
        """Take over a state received from others, after full validation."""
        try:
            self._trainer.restore(memoryview(effect.blob))
        except CheckpointError as error:
            return events.LoadRefused(effect.step, str(error))
        finally:
            self._partial.discard()
        return events.Loaded(self._trainer.committed_step, self._trainer.committed_hash)

    def store(self, effect: effects.Store) -> None:
        """Keep a part of a state that is being fetched."""
        where = effect.root, effect.size, effect.hashes, effect.start
        self._partial.store(*where, memoryview(effect.payload))

    def recall(self, effect: effects.Recall) -> events.Recalled:
        """Parts of a state that an earlier life of this node has fetched, checked."""
        found = self._partial.recall(effect.root, fetch.part_count)
        if found is None or fetch.root_of(*found[:2]) != effect.root:
            self._partial.discard()
            return events.Recalled(effect.root)
        size, hashes, blob = found
        right = fetch.right_parts(hashes, blob)
        return events.Recalled(effect.root, size, hashes, blob, right)

    def spool(self, effect: effects.Spool) -> events.Spooled:
        """Move sums to a file in the run's folder."""
        try:
            return events.Spooled(effect.step, tuple(spool(self._folder.folder, effect.payloads)))
        except DiskFullError as error:
            return events.Spooled(effect.step, None, str(error))


def _int32(buffer: Buffer) -> GradientSum:
    """Aligned int32 view of a payload; copied only if it lies askew in its message."""
    return np.require(np.frombuffer(buffer, "<i4"), np.int32, ["C", "A"])


def _bytes_of(array: GradientSum) -> memoryview:
    return array.astype("<i4", copy=False).data.cast("B")
