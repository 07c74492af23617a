"""How much hypothesis tries: little and always the same in the suite, as much as asked for else."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

ASKED = os.environ.get("P2PNODE_FUZZ")


def effort(examples: int, *, shrink: bool = True) -> settings:
    """`examples` cases, drawn from a fixed seed; P2PNODE_FUZZ times as many at random if it is set.

    `shrink`: make a failing case small first; for whole runs that takes minutes.
    """
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])]
    return settings(
        max_examples=examples * int(ASKED or 1),
        derandomize=ASKED is None,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
