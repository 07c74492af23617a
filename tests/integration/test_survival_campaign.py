"""Seeded disasters over real processes; not part of the suite:

    pytest -m campaign tests/integration/test_survival_campaign.py

P2PNODE_SEEDS (default 55) seeds from P2PNODE_FIRST_SEED (0) on. See disasters for what happens.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.commands import Demo
from tests.integration.disasters import (
    FILLER,
    STEPS,
    Disaster,
    Fault,
    Scene,
    disaster,
    fill,
    until,
)
from tests.integration.switch import missing

pytestmark = [pytest.mark.campaign, pytest.mark.skipif(bool(missing()), reason=missing())]

FIRST = int(os.environ.get("P2PNODE_FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("P2PNODE_SEEDS", "55")))


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The hash of the undisturbed run of so many steps."""
    known: dict[int, str] = {}

    def of(steps: int) -> str:
        if steps not in known:
            folder = tmp_path_factory.mktemp(f"undisturbed-{steps}")
            known[steps] = Demo(folder, "--nodes", "1", "--steps", str(steps)).hashes["node-1"]
        return known[steps]

    return of


@pytest.fixture(scope="module")
def happened() -> Iterator[Counter[str]]:
    """Faults that took effect; shown at the end."""
    counter: Counter[str] = Counter()
    yield counter
    sys.__stderr__ and print(f"\nfaults: {dict(sorted(counter.items()))}", file=sys.__stderr__)


async def test_a_disk_that_fills_up_and_is_cleared(
    answer: Callable[[int], str], tmp_path: Path
) -> None:
    """A member's checkpoints lie on a small volume that fills up at step 30."""
    never = Fault(STEPS + 1, "disk", 1, 0.0)
    async with Scene(Disaster(2, STEPS, 0.0, 5, (never,)), 0, tmp_path) as scene:
        host, member = scene.nodes[0], scene.nodes[1]
        await member.until("step", step=30)
        volume = tmp_path / member.name
        filler = volume / FILLER
        fill(filler)
        assert "Training goes on" in (await member.until("warn"))["text"]
        await host.until("finished")
        await until(lambda: any("kept in memory" in e["text"] for e in member.events("warn")))
        assert not [p for p in volume.iterdir() if p.name.endswith(".tmp")]
        filler.unlink()
        end = await member.until("finished")
        assert end["hash"] == answer(STEPS)
        assert (volume / Path(end["checkpoint"]).name).exists()


@pytest.mark.parametrize("seed", SEEDS)
async def test_disaster(
    seed: int, answer: Callable[[int], str], happened: Counter[str], tmp_path: Path
) -> None:
    plan = disaster(seed)
    print(f"{plan}\nP2PNODE_FIRST_SEED={seed} P2PNODE_SEEDS=1 pytest -m campaign {__file__}")
    async with Scene(plan, seed, tmp_path) as scene:
        assert await scene.run() == {answer(plan.steps)}
        happened.update(scene.happened)
