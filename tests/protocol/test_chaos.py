"""Seeded chaos: whatever happens, every node that lives ends with the undisturbed hash."""

from __future__ import annotations

import pytest

from tests.harness.scenario import OracleError, Scenario

RUNS = 640
CHUNK = 40


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_every_survivor_ends_with_the_undisturbed_hash(first: int) -> None:
    for seed in range(first, first + CHUNK):
        scenario = Scenario(seed)
        try:
            scenario.run()
        except (OracleError, AssertionError, LookupError) as error:
            story = "\n".join(scenario.story)
            pytest.fail(
                f"seed {seed}: {error}\n{story}\n"
                f"replay: python -m tests.harness.replay --seed {seed} --trace"
            )


def test_a_seed_replays_to_the_same_events() -> None:
    first, second = (Scenario(17).run() for _ in range(2))
    assert (first.took, first.world.events) == (second.took, second.world.events)
