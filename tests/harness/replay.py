"""Run one seeded scenario again: python -m tests.harness.replay --seed N [--trace]."""

from __future__ import annotations

import argparse
import sys

from tests.harness.scenario import OracleError, Scenario


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--trace", action="store_true", help="print every event and effect")
    options = parser.parse_args()
    scenario = Scenario(options.seed, trace=options.trace)
    world = scenario.world
    print(f"{len(world.machines)} machines, {world.slots} slots, {world.steps} steps")
    print("\n".join(scenario.story))
    try:
        outcome = scenario.run()
    except OracleError as error:
        for name, report in world.reports:
            print(name, world.show(report))
        for machine in world.machines.values():
            print(world.summary(machine))
        print(f"FAILED: {error}")
        return 1
    print(f"good after {outcome.took:.1f} simulated seconds, {world.events} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
