"""`verify`: computes steps of a run again, from the nearest checkpoint, and says whether they come
out as the run's ledger says; if not, which step, tensor and operation differ first.

May import: texts, first_weights, signatures, train, protocol, config, node_config, errors, and
`signaling.messages`.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from p2pnode.config import RunConfig
from p2pnode.errors import (
    ArithmeticUnsoundError,
    CheckpointError,
    LedgerError,
    NonFiniteError,
    UsageError,
)
from p2pnode.first_weights import kept
from p2pnode.node_config import TextChoice
from p2pnode.protocol.evidence import summarise
from p2pnode.protocol.identity import short_id
from p2pnode.protocol.messages import SlotEvidence, Summary
from p2pnode.signatures import file_of, read
from p2pnode.texts import text_of_resumed_run
from p2pnode.train.arithmetic import kernels
from p2pnode.train.compare import RunFiles
from p2pnode.train.evidence import GradientSum
from p2pnode.train.finder import WHOLE, Difference, difference_in_apply
from p2pnode.train.layout import F32
from p2pnode.train.ledger_file import LedgerFile
from p2pnode.train.ledger_lines import Entry, the_ledger
from p2pnode.train.parts import first_difference, parts_of
from p2pnode.train.trainer import Trainer
from signaling.messages import peer_id

PROGRESS_SECONDS = 5.0
"""How often a long verification says how far it is."""


def verify(
    run: Path,
    *,
    first: int | None,
    last: int | None,
    text: TextChoice,
    threads: int,
    say: Callable[[str], object] = print,
) -> int:
    """Verify steps `first` to `last` (None: from the beginning, to the end) of the run in a folder,
    or of a ledger file in it. `text`: where the run's text is, as for `join`.

    Raises LedgerError naming the first difference, ArithmeticUnsoundError if it is this machine
    that computes wrong, CheckpointError, DataError, UsageError.
    """
    ledger = LedgerFile(the_ledger(run))
    path, config, steps = ledger.path, ledger.config, ledger.steps
    first, last = first or 1, last or steps
    if not 1 <= first <= last <= steps:
        raise UsageError(f"--steps {first}:{last}: the ledger has steps 1 to {steps}.")
    run_id = config.at(0).run_id()
    say(f"Run {run_id.hex()[:8]}: the chain of the ledger's {steps} steps is whole.")
    _check_signatures(ledger, run_id, say)
    kernels.use_threads(threads)
    dataset = text_of_resumed_run(text, config, path.parent, None)
    trainer = Trainer(config, dataset, first=_first(path.parent, config))
    files = RunFiles(path.parent, config, lambda step: ledger.line(step).entry.state)
    start = files.nearest(first - 1)
    trainer.restart(config, start)
    where = f"the checkpoint of step {start.step}" if start is not None else "the first state"
    say(f"Computing steps {trainer.step + 1} to {last} again, from {where}.")
    wrong: list[str] = []
    progress = _Progress(trainer.step, last)
    if start is not None:
        wrong += _told(files.differences(trainer.committed), say)
    for line in ledger.lines(trainer.step + 1, last):
        _step(trainer, line.entry, say)
        wrong += _told(files.differences(trainer.committed), say)
        progress.at(line.entry.step)
    progress.end()
    if wrong:
        raise LedgerError(wrong[0])
    say(
        f"Steps {first} to {last} come out as the ledger says, bit for bit "
        f"({trainer.kernels.backend} kernels); state {trainer.committed_hash.hex()}."
    )
    return 0


def _first(folder: Path, config: RunConfig) -> F32 | None:
    """The weights that the run began with, if it was given some."""
    if not config.init:
        return None
    first = kept(folder, config)
    if first is None:
        raise CheckpointError(
            f"The run began with given weights, and they are not in {folder}: copy the file from "
            "another machine's folder."
        )
    return first.values


def _check_signatures(ledger: LedgerFile, run: bytes, say: Callable[[str], object]) -> None:
    newest: dict[str, int] = {}
    file = file_of(ledger.path)
    for signed in read(file):
        who = short_id(peer_id(bytes.fromhex(signed.key)))
        if not signed.is_genuine(run):
            raise LedgerError(f"{file}: {who} did not sign what stands there.")
        if signed.step > ledger.steps:
            continue  # by somebody who was further
        if ledger.line(signed.step).digest != signed.digest:
            raise LedgerError(
                f"{who} signed another ledger up to step {signed.step} than this one: its lines "
                "were changed, or that machine had others."
            )
        newest[who] = max(signed.step, newest.get(who, 0))
    told = ", ".join(f"{who} up to step {step}" for who, step in newest.items())
    say(f"Signed by {told}." if told else "Nobody has signed it.")


def _told(sentences: Iterator[str], say: Callable[[str], object]) -> list[str]:
    found = list(sentences)
    for text in found:
        say(text)
    return found


def _computed(trainer: Trainer, *, reference: bool) -> tuple[Summary, GradientSum]:
    """All slots of the next step: what they say together, and the sum of their gradients."""
    evidence, total = [], None
    for slot in range(trainer.config.slots):
        stated, gradient = trainer.compute_slot(trainer.step, slot, reference=reference)
        evidence.append(SlotEvidence(**msgspec.structs.asdict(stated)))
        total = gradient if total is None else trainer.add([total, gradient])
    assert total is not None  # a step has slots
    return summarise(evidence), total


def _step(trainer: Trainer, entry: Entry, say: Callable[[str], object]) -> None:
    """Make one more step. Raises LedgerError if it is not the ledger's."""
    step = trainer.step
    try:
        summary, total = _computed(trainer, reference=False)
        trainer.apply(step, total, summary.max_abs, summary.checksum)
    except NonFiniteError as error:
        raise LedgerError(f"Step {entry.step} cannot be computed: {error}") from None
    if _facts(trainer, summary) != (entry.state, entry.loss, entry.tokens, entry.evidence):
        _explain(trainer, entry, summary, total, say)
    trainer.commit(step)
    if entry.heldout is not None:
        held_out = trainer.heldout_loss()
        if (held_out.loss, held_out.tokens) != entry.heldout:
            raise LedgerError(
                f"The held-out loss of step {entry.step} is not what the ledger says."
            )


def _facts(trainer: Trainer, summary: Summary) -> tuple[str, int, int, str]:
    return trainer.state_hash.hex(), summary.loss, summary.tokens, summary.evidence.hex()


def _explain(
    trainer: Trainer,
    entry: Entry,
    summary: Summary,
    total: GradientSum,
    say: Callable[[str], object],
) -> None:
    """Raise the error that names who is wrong and where, by the reference kernels."""
    say(f"Step {entry.step} came out otherwise; computing it with the reference kernels …")
    base = trainer.committed
    verdict = trainer.verify(base.step)
    live = trainer.newest
    parts = parts_of(live, total)
    right, right_total = _computed(_rolled_back(trainer), reference=True)
    if right.evidence != summary.evidence or not verdict.sound:
        found = _in_kernels(trainer, right, right_total)
        raise ArithmeticUnsoundError(
            f"It is this machine that computes step {entry.step} wrong: "
            + (f"first in {found}." if found else "a passing fault of its memory or processor.")
        )
    difference = first_difference(live, parts, entry.parts)
    if difference is None and entry.state == live.hash().hex():
        difference = Difference(WHOLE, "loss" if entry.loss != summary.loss else "slots' evidence")
    difference = difference or Difference(WHOLE, "state hash")
    what = (
        "a slot's gradient was another one"
        if entry.evidence != summary.evidence.hex()
        else "the slots' gradients are the same, what was made of them is not"
    )
    raise LedgerError(
        f"Step {entry.step} did not come out as the ledger says: it differs first in {difference} "
        f"({what}). The kernels of this machine agree with the reference."
    )


def _rolled_back(trainer: Trainer) -> Trainer:
    trainer.rollback()
    return trainer


def _in_kernels(trainer: Trainer, right: Summary, right_total: GradientSum) -> Difference | None:
    """The first operation in which this machine's kernels differ from the reference, if it still
    does."""
    lent = trainer.lend(trainer.step)
    assert lent is not None  # it is the committed state
    for slot in range(trainer.config.slots):
        found = trainer.examine_slot(lent, slot)[1]
        if found is not None:
            return found
    base = dataclasses.replace(lent.state, config=trainer.config.at(lent.state.step + 1))
    reference = kernels.load(reference=True)
    return difference_in_apply(trainer.kernels, reference, base, right_total, right.max_abs)


class _Progress:
    """A line on standard error now and then."""

    def __init__(self, begin: int, last: int) -> None:
        self._begin, self._last = begin, last
        self._started = self._said = time.monotonic()
        self._line = sys.stderr.isatty()

    def at(self, step: int) -> None:
        now = time.monotonic()
        if now - self._said < (0.2 if self._line else PROGRESS_SECONDS):
            return
        self._said = now
        each = (now - self._started) / (step - self._begin)
        text = f"step {step} of {self._last}, {(self._last - step) * each:,.0f} s to go"
        print(
            f"\r{text}   " if self._line else text, end="" if self._line else "\n", file=sys.stderr
        )
        sys.stderr.flush()

    def end(self) -> None:
        if self._line:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
