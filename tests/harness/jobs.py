"""Jobs over a small trainer, called as the computing thread calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2pnode.jobs import Jobs, PartialSet
from p2pnode.keeper import Keeper
from p2pnode.protocol import effects, events
from p2pnode.protocol.evidence import summarise
from p2pnode.protocol.messages import Shard
from p2pnode.train.checkpoint import CheckpointFolder
from p2pnode.train.ledger import Ledger
from tests.train.helpers import new_trainer, run_config

SLOTS = 4
ALL = tuple(range(SLOTS))
WHOLE = Shard(0, 1)


class Bench:
    """Jobs, their trainer, and short forms of what a core would ask for."""

    def __init__(self, folder: Path, every: int = 100, **changes: Any) -> None:
        options = {"slots": SLOTS, "steps": 6, "warmup": 1, "eval_every": 0}
        config = run_config("nano", **options | changes)
        self.trainer = new_trainer(config)
        self.folder = CheckpointFolder(folder)
        self.ledger = Ledger(folder, config)
        keeper = Keeper(self.trainer, self.folder, self.ledger, every=every, keep_best=True)
        self.jobs = Jobs(self.trainer, self.folder, keeper)

    def compute(self, step: int, slots: tuple[int, ...] = ALL, reference: bool = False) -> Any:
        partial = PartialSet(effects.Compute(step, slots, reference))
        for _ in slots[:-1]:
            assert self.jobs.compute_next_slot(partial) is None
        return self.jobs.compute_next_slot(partial)

    def applying(self, step: int) -> effects.Apply:
        computed = self.compute(step)
        return effects.Apply(step, (computed.payload,), summarise(computed.evidence))

    def commit(self, step: int, apply: effects.Apply) -> Any:
        applied = self.jobs.apply(apply)
        assert isinstance(applied, events.Applied)
        return self.jobs.commit(effects.Commit(step, applied.state_hash, apply.summary, ()))

    def bundles(self) -> list[Path]:
        return sorted(self.folder.folder.glob("wrong-*"))

    def advance(self, step: int) -> Any:
        """One whole step of a run alone."""
        return self.commit(step, self.applying(step))
