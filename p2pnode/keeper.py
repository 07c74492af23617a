"""What a node leaves behind at a commit: a line of the ledger, checkpoints, the best state so far.

Runs in the computing thread, between the commit of a step and the apply of the next. What cannot be
written is told and tried again; it never ends a run.

May import: train, protocol.messages, config, errors.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from p2pnode.errors import CheckpointError, LedgerError
from p2pnode.protocol.messages import Summary
from p2pnode.train.checkpoint import CheckpointFolder
from p2pnode.train.evidence import GradientSum, HeldOut
from p2pnode.train.heldout import best, stops_after
from p2pnode.train.ledger import Ledger
from p2pnode.train.ledger_lines import Entry
from p2pnode.train.parts import parts_of
from p2pnode.train.state import State
from p2pnode.train.trainer import Trainer


@dataclasses.dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit left behind for the owner of this machine."""

    held_out: HeldOut | None
    checkpoint: Path | None
    problem: str | None
    """Why something that was due could not be written."""
    best: Path | None = None
    """The checkpoint of the lowest held-out loss, if this step has it."""
    stop_after: int | None = None
    """The run is to end after this step, since its held-out loss does not fall any more."""
    signs: tuple[int, bytes] | None = None
    """Step and digest of the ledger, where this node signs it: with each checkpoint."""
    missing: tuple[int, int] | None = None
    """Steps whose ledger lines are not here."""
    sample: State | None = None
    """A copy of the state's weights (its moments are empty), where a sample of text is due."""


class Keeper:
    """Writes for one trainer. One thread at a time."""

    def __init__(
        self,
        trainer: Trainer,
        folder: CheckpointFolder,
        ledger: Ledger,
        *,
        every: int,
        keep_best: bool,
        sample_every: int = 0,
    ) -> None:
        """`every`: steps between checkpoints. `keep_best`: also keep the state of the lowest
        held-out loss. `sample_every`: steps between samples of text; 0: none."""
        self._trainer = trainer
        self._folder = folder
        self.ledger = ledger
        self._every = every
        self._keep_best = keep_best
        self._sample_every = sample_every

    def keep(self, summary: Summary | None, total: GradientSum | None) -> CommitResult:
        """After a commit. `summary`, `total`: of the step, int32 [P]; None if the state was taken
        over from others."""
        trainer, step, config = self._trainer, self._trainer.committed_step, self._trainer.config
        every = config.eval_every
        held_out = trainer.heldout_loss() if every and step % every == 0 else None
        problems: list[str] = []
        due = step % self._every == 0
        signs = None
        try:
            if summary is not None and total is not None:
                self.ledger.record(self._entry(summary, total, held_out), config)
            else:
                self.ledger.anchor(step, trainer.committed_hash.hex())
            if due:
                signs = self.durable()  # no checkpoint goes further than the ledger
        except (CheckpointError, LedgerError) as error:
            problems.append(f"{error} The ledger lacks step {step} here.")
        problems += self.ledger.problems
        self.ledger.problems.clear()
        checkpoint = best_path = None
        try:
            if due:
                checkpoint = self.save(spare=True)
            if held_out is not None and self._keep_best and self._is_best(held_out):
                best_path = self._folder.save_best(config, step, trainer.snapshot())
        except CheckpointError as error:
            problems.append(str(error))
        return CommitResult(
            held_out,
            checkpoint,
            " ".join(problems) or None,
            best_path,
            self._stop_after(step),
            signs,
            self.ledger.missing,
            self._copy() if self._sample_every and step % self._sample_every == 0 else None,
        )

    def _copy(self) -> State:
        state, none = self._trainer.committed, np.empty(0, np.float32)
        return dataclasses.replace(state, weights=state.weights.copy(), m=none, v=none)

    def durable(self) -> tuple[int, bytes] | None:
        """Bring the ledger to the disk; the committed step and its digest, None if it lacks that.
        Raises CheckpointError, LedgerError."""
        self.ledger.sync()
        step = self._trainer.committed_step
        digest = self.ledger.digest_at(step)
        return (step, digest) if digest is not None else None

    def final(self) -> tuple[Path, tuple[int, bytes] | None]:
        """The run ends with the committed state: write it, and forget lines beyond it, which an
        earlier life of this node may have made. See `durable`; raises its errors."""
        self.ledger.cut(self._trainer.committed_step)
        signs = self.durable()
        return self.save(), signs

    def save(self, *, spare: bool = False) -> Path:
        """Write the committed state. Raises CheckpointError; what was there stays.

        `spare`: only if the disk has room for more than that."""
        state, data = self._trainer.committed, self._trainer.snapshot()
        return self._folder.save(state.config.run_id(), state.step, data, spare=spare)

    def _entry(self, summary: Summary, total: GradientSum, held_out: HeldOut | None) -> Entry:
        state = self._trainer.committed
        return Entry(
            step=state.step,
            state=self._trainer.committed_hash.hex(),
            loss=summary.loss,
            tokens=summary.tokens,
            evidence=summary.evidence.hex(),
            parts=parts_of(state, total),
            heldout=(held_out.loss, held_out.tokens) if held_out is not None else None,
        )

    def _is_best(self, held_out: HeldOut) -> bool:
        now = (held_out.step, held_out.loss, held_out.tokens)
        before = [one for one in self.ledger.heldout if one[0] < held_out.step]
        return best([*before, now]) == now

    def _stop_after(self, step: int) -> int | None:
        """Only from a whole ledger: who lacks a part of it would decide otherwise."""
        patience = self._trainer.config.early_stop
        if not patience or self.ledger.step < step:
            return None
        # An earlier life of this node may have measured beyond this step, others have not.
        return stops_after((one for one in self.ledger.heldout if one[0] <= step), patience)
