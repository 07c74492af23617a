"""`reproduce`: computes what a bundle disputes, here and now, and says who is right.

May import: bundle, train, errors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from p2pnode.bundle import ApplyCase, Bundle, SlotCase, read
from p2pnode.errors import ArithmeticUnsoundError
from p2pnode.train.arithmetic import kernels
from p2pnode.train.evidence import SlotEvidence
from p2pnode.train.finder import Difference, difference_in_apply, difference_in_slot
from p2pnode.train.gradient import slot_gradient
from p2pnode.train.state import State
from p2pnode.train.update import apply_update
from p2pnode.train.weights import Weights

NOT_FINITE = "not finite"


def reproduce(folder: Path, say: Callable[[str], object] = print) -> int:
    """Print the verdict. Raises CheckpointError if the bundle cannot be read, and
    ArithmeticUnsoundError if this machine's own kernels differ from the reference."""
    bundle = read(folder)
    live, reference = kernels.load(), kernels.load(reference=True)
    case = bundle.case
    what = f"slot {case.slot} of step" if isinstance(case, SlotCase) else "the apply of step"
    run = bundle.state.config.run_id().hex()[:8]
    who = case.peer[:8] or "the node that wrote the bundle"
    say(f"{what} {case.step} of run {run}, as stated by {who}")
    if isinstance(case, SlotCase):
        difference = _slot(case, bundle.state, live, reference, say)
    else:
        difference = _apply(case, bundle, live, reference, say)
    if case.difference is not None:
        say(f"where the bundle was written the kernels differed first in {case.difference}")
    if difference is not None:
        raise ArithmeticUnsoundError(
            f"The kernels of this machine differ from the reference, first in {difference}."
        )
    say(f"the kernels of this machine ({live.backend}) agree with the reference")
    return 0


def _slot(
    case: SlotCase,
    state: State,
    live: kernels.Kernels,
    reference: kernels.Kernels,
    say: Callable[[str], object],
) -> Difference | None:
    inputs, targets = np.array(case.inputs, np.int32), np.array(case.targets, np.int32)

    def compute(ops: kernels.Kernels) -> SlotEvidence | None:
        try:
            w = Weights(ops, state.config.model, state.weights)
            return slot_gradient(w, state, case.slot, inputs, targets)[0]
        except kernels.NonFiniteInputError:
            return None

    here, right = compute(live), compute(reference)
    for name, evidence in (("stated", case.stated), ("kernels here", here), ("reference", right)):
        say(f"  {name:<13} {_told(evidence)}")
    if case.stated == right:
        say("the statement is right")
    else:
        say(f"the statement is wrong{_where(case.stated, right, state)}")
    return difference_in_slot(live, reference, state, case.slot, inputs, targets)


def _told(evidence: SlotEvidence | None) -> str:
    if evidence is None:
        return NOT_FINITE
    return (
        f"gradient {evidence.digest.hex()[:16]}, checksum {evidence.checksum}, "
        f"loss {evidence.loss / evidence.tokens / 2**24 if evidence.tokens else 0:.6f}"
    )


def _where(stated: SlotEvidence | None, right: SlotEvidence | None, state: State) -> str:
    """What of the statement differs, as far as evidence tells."""
    if stated is None or right is None:
        return ""
    if stated.token_hash != right.token_hash:
        return ": it is about other text"
    pairs = zip(state.layout.names, stated.max_abs, right.max_abs, strict=False)
    tensor = next((name for name, a, b in pairs if a != b), None)
    return f"; the largest gradient differs first in tensor {tensor}" if tensor else ""


def _apply(
    case: ApplyCase,
    bundle: Bundle,
    live: kernels.Kernels,
    reference: kernels.Kernels,
    say: Callable[[str], object],
) -> Difference | None:
    state, sums = bundle.state, bundle.sums
    assert sums is not None  # read() gives an apply its sums

    def compute(ops: kernels.Kernels) -> str:
        try:
            return apply_update(ops, state, sums, case.max_abs).state.hash().hex()
        except kernels.NonFiniteInputError:
            return NOT_FINITE

    here, right = compute(live), compute(reference)
    for name, value in (("stated", case.stated), ("kernels here", here), ("reference", right)):
        say(f"  {name:<13} {value if value == NOT_FINITE else f'state {value[:16]}'}")
    say(f"the statement is {'right' if case.stated == right else 'wrong'}")
    return difference_in_apply(live, reference, state, sums, case.max_abs)
