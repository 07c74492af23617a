"""A node process that computes wrong gradients and says consistent things about them."""

from pathlib import Path

from tests.integration.processes import hooked

_LIAR = """
import os
import msgspec
from p2pnode.train import trainer

right = trainer.slot_gradient
step = int(os.environ["TEST_WRONG_STEP"])

def wrong(w, state, slot, inputs, targets):
    evidence, total = right(w, state, slot, inputs, targets)
    if state.step + 1 != step or w.ops.backend == "reference":
        return evidence, total
    lie, other = right(w, state, slot, inputs[::-1].copy(), targets)
    return msgspec.structs.replace(lie, token_hash=evidence.token_hash), other

trainer.slot_gradient = wrong
"""


def wrong_gradients(folder: Path, step: int) -> dict[str, str]:
    """Environment of a process whose gradients of `step` are wrong, in the same way in everything
    it says about them."""
    return hooked(folder, _LIAR, TEST_WRONG_STEP=str(step))
