"""The instruments that look for wrong arithmetic, each as a function: does it see this bug?

May import: kernels, p2pnode.train, tests.train.helpers, siblings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

import kernels
from kernels import gates
from kernels.reference import FORMS
from kernels.spot import SpotChecks
from p2pnode.config import ModelConfig, RunConfig
from p2pnode.train.gradient import checksum
from p2pnode.train.open_data import open_dataset
from p2pnode.train.state import State
from p2pnode.train.update import initial_state
from tests.train.helpers import run_config

from . import oracle, properties
from .bugs import Bug
from .faults import Node, Work, same_work

Instrument = Callable[[Bug], bool]
ORACLE_COUNT = 4000


def right() -> kernels.Kernels:
    return kernels.Kernels("reference", FORMS, lambda: False)


def broken(bug: Bug, spots: SpotChecks | None = None) -> kernels.Kernels:
    """The operations with the bug."""
    forms = {**FORMS, bug.operation: bug.form}
    return kernels.Kernels("reference", forms, lambda: False, spots=spots)


def seen_by_gates(bug: Bug) -> bool:
    return gates.fault(bug.operation, bug.form) is not None


def seen_by_properties(bug: Bug) -> bool:
    ops = broken(bug)
    for check in properties.PROPERTIES:
        try:
            check(ops)
        except (AssertionError, kernels.KernelError, ValueError):
            return True
    return False


def seen_by_oracle(bug: Bug) -> bool:
    ops = broken(bug)
    return any(check(ops, 1, ORACLE_COUNT)[1] > 0 for check in oracle.CHECKS.values())


def seen_by_probe(bug: Bug) -> bool:
    return kernels.probe(broken(bug)) != kernels.probe_expected()


def seen_by_spots(bug: Bug) -> bool:
    """Within five looks at each operation, of ordinary training values."""
    ops = broken(bug, SpotChecks(1))
    x, w, dy, q, k, v = (properties.normal(seed, *shape) for seed, shape in enumerate(
        ((250, 45), (70, 45), (250, 70), *[(82, 24)] * 3)
    ))  # fmt: skip
    try:
        for _ in range(5):
            o, saved = ops.attention(q, k, v, batch=2, heads=3)
            ops.attention_backward(o, saved)
            ops.linear(x, w)
            ops.linear_dx(dy, w)
            ops.linear_dw(dy, x)
    except kernels.UnsoundError:
        return True
    return False


@functools.cache
def _run() -> RunConfig:
    """Rows enough that what shows in large products only shows here too."""
    model = ModelConfig(vocab=256, width=16, layers=1, heads=2, ffn=24, seq_len=100)
    return run_config(model=model, slots=4, micro_batch=2, steps=20, warmup=5, lr=0.01)


@functools.cache
def _sound() -> tuple[tuple[State, Work], tuple[State, Work]]:
    """The states before the first two steps, and all work of each."""
    node = Node(right(), open_dataset("builtin"))
    first = initial_state(_run())
    slots = range(_run().slots)
    evidence, total = node.contribute(first, first, slots)
    second = node.apply(first, total, evidence)
    return (first, (evidence, total)), (second, node.contribute(first, second, slots))


def seen_by_recomputation(bug: Bug) -> bool:
    """A node with the bug does a slot; another one compares."""
    (first, _), (second, _) = _sound()
    sound = Node(right(), open_dataset("builtin")).contribute(first, second, [1])
    try:
        found = Node(broken(bug), open_dataset("builtin")).contribute(first, second, [1])
    except kernels.KernelError:
        return True
    return not same_work(sound, found)


def seen_by_state_hash(bug: Bug) -> bool:
    """A node with the bug applies what all apply."""
    _, (second, (evidence, total)) = _sound()
    sound = Node(right(), open_dataset("builtin")).apply(second, total, evidence)
    try:
        found = Node(broken(bug), open_dataset("builtin")).apply(second, total, evidence)
    except kernels.KernelError:
        return True
    return found.hash() != sound.hash()


def sees(name: str, bug: Bug) -> bool:
    """Does the instrument of this name see the bug?"""
    with np.errstate(all="ignore"):
        return INSTRUMENTS[name](bug)


INSTRUMENTS: dict[str, Instrument] = {
    "gates": seen_by_gates,
    "properties": seen_by_properties,
    "oracle": seen_by_oracle,
    "probe": seen_by_probe,
    "spot checks": seen_by_spots,
    "recomputation": seen_by_recomputation,
    "state hash": seen_by_state_hash,
}


def fault_seen_by(kind: type[Node]) -> dict[str, bool]:
    """What sees a node's fault: the sum's checksum, a recomputation, the state hash.

    It works on the second step and applies the first, which moves the grid.
    """
    data = open_dataset("builtin")
    (first, (everything, whole)), (second, _) = _sound()
    sound, faulty = Node(right(), data), kind(right(), data)
    slots = [1, 2]
    evidence, total = faulty.contribute(first, second, slots)
    claimed = sum(e.checksum for e in evidence) % 2**63
    return {
        "checksum": checksum(total) != claimed,
        "recomputation": not same_work((evidence, total), sound.contribute(first, second, slots)),
        "state hash": faulty.apply(first, whole, everything).hash()
        != sound.apply(first, whole, everything).hash(),
    }
