"""Ledgers as a run of one node would write them."""

from __future__ import annotations

from pathlib import Path

from p2pnode.config import RunConfig
from p2pnode.train.ledger import Ledger
from p2pnode.train.ledger_lines import Entry
from tests.train.helpers import micro_config

CONFIG = micro_config()


def entry(step: int, loss: int | None = None, heldout: tuple[int, int] | None = None) -> Entry:
    return Entry(
        step=step,
        state=f"{step:064x}",
        loss=1_000 - step if loss is None else loss,
        tokens=96,
        evidence=f"{step + 7:064x}",
        parts="AAAA",
        heldout=heldout,
    )


def ledger_of(
    folder: Path, steps: range | list[int] = range(1, 6), config: RunConfig = CONFIG
) -> Ledger:
    folder.mkdir(exist_ok=True)
    ledger = Ledger(folder, config)
    for step in steps:
        ledger.record(entry(step), config)
    return ledger
