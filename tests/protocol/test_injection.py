"""How many injected lies are found: whole runs of three to five nodes, one lie in each.

The lie must be reported with the liar's name and step, by somebody else, and the others must end
with the undisturbed hash.
"""

from __future__ import annotations

import pytest

from p2pnode.protocol import effects as ef
from p2pnode.rehearse.defects import Defects
from tests.harness.calm import Recorder

RUNS = 12
LIES = (
    "corrupts_parts_at",
    "two_faced_work_at",
    "forges_sums_at",
    "forges_some_at",
    "lies_in_check_at",
    "withholds_at",
)


def found(lie: str, seed: int) -> bool:
    """Whether the lie was reported; asserts the right end of everybody else."""
    count, step = 3 + seed % 3, 1 + seed % 4
    sick = seed % count
    run = Recorder(count, steps=4, seed=seed, defects={sick: Defects(**{lie: step})})
    run.finish()
    liar = run.nodes[sick]
    assert liar.cheated, "the lie was told"
    assert all(node.failed is None for node in run.nodes if node is not liar)
    return any(
        isinstance(effect, ef.Report)
        and effect.kind is ef.Kind.REFUSED
        and effect.peer == liar.me
        and effect.step == step
        and name != liar.name
        for _, name, effect in run.effects
    )


@pytest.mark.parametrize("lie", LIES)
def test_every_injected_lie_is_found_in_its_step(lie: str) -> None:
    assert sum(found(lie, seed) for seed in range(RUNS)) == RUNS
