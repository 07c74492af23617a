"""Every seeded bug is seen by an instrument; none is blind, or sees what is not there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kernels
from kernels import gates, reference, spot_attention, spot_products
from p2pnode.train.state import State

from . import instruments, oracle, properties
from .bugs import BUGS, Bug
from .faults import FAULTS, Node

Patch = pytest.MonkeyPatch
NAMED = {bug.name: bug for bug in BUGS}


def test_there_are_bugs_enough_of_every_operation() -> None:
    assert len(NAMED) == len(BUGS) >= 40
    assert {bug.operation for bug in BUGS} == set(reference.FORMS) - {"embed"}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_seen(bug: Bug) -> None:
    assert any(instruments.sees(name, bug) for name in instruments.INSTRUMENTS)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_a_nodes_fault_is_seen(kind: type[Node]) -> None:
    assert any(instruments.fault_seen_by(kind).values())


@pytest.mark.parametrize("name", instruments.INSTRUMENTS)
def test_nothing_is_seen_where_nothing_is_wrong(name: str) -> None:
    for operation in ("linear", "linear_dw", "attention", "adam"):
        assert not instruments.sees(name, Bug("none", operation, reference.FORMS[operation]))
    assert not any(instruments.fault_seen_by(Node).values())


def _blind_gates(patch: Patch) -> None:
    """The comparison is gone."""
    patch.setattr(gates, "outcome", lambda *args: b"")
    patch.setattr(gates, "expected", lambda name: b"")
    patch.setattr(gates, "_expected_unnamed", lambda name: b"")


def _weak_properties(patch: Patch) -> None:
    """Bits are not compared any more."""
    patch.setattr(properties, "same", lambda a, b: None)
    patch.setattr(properties, "near", lambda a, b, tolerance: None)


def _forgiving_oracle(patch: Patch) -> None:
    patch.setattr(oracle, "_compare", lambda *pairs: (1, 0))


def _probe_of_yesterday(patch: Patch) -> None:
    """The product is not computed; what is expected is published."""
    patch.setattr(kernels, "probe", lambda ops: kernels.probe_expected())


def _spots_without_edges(patch: Patch) -> None:
    chosen = spot_products.chosen_cells
    patch.setattr(spot_products, "chosen_cells", lambda turn, h, w: chosen(turn, h - 1, w - 1))
    patch.setattr(spot_products, "check_whole", lambda *args: 0)


def _spots_that_trust_the_sums(patch: Patch) -> None:
    """No row is computed again."""
    patch.setattr(spot_products, "_inconsistent", lambda y, *args: np.zeros(len(y), bool))


def _spots_without_attention(patch: Patch) -> None:
    patch.setattr(spot_attention._Compared, "compare", lambda *args: None)


def _recomputation_not_compared(patch: Patch) -> None:
    patch.setattr(instruments, "same_work", lambda a, b: True)


def _hash_of_the_weights_alone(patch: Patch) -> None:
    patch.setattr(State, "hash", lambda self: bytes(np.asarray(self.weights).tobytes()))


MUTANTS: list[tuple[str, Callable[[Patch], None], str]] = [
    ("gates", _blind_gates, "last term dropped if odd"),
    ("properties", _weak_properties, "second threads part shifted"),
    ("oracle", _forgiving_oracle, "multiply and add contracted"),
    ("probe", _probe_of_yesterday, "scales multiplied first"),
    ("spot checks", _spots_without_edges, "last column dropped"),
    ("spot checks", _spots_that_trust_the_sums, "one cell flipped in large products"),
    ("spot checks", _spots_without_attention, "last head dropped"),
    ("recomputation", _recomputation_not_compared, "projection forgotten"),
    ("state hash", _hash_of_the_weights_alone, "moments contracted"),
]


@pytest.mark.parametrize(("name", "mutate", "bug"), MUTANTS, ids=[m[1].__name__ for m in MUTANTS])
def test_an_instrument_that_is_broken_does_not_see(
    name: str, mutate: Callable[[Patch], None], bug: str, monkeypatch: Patch
) -> None:
    assert instruments.sees(name, NAMED[bug])
    mutate(monkeypatch)
    assert not instruments.sees(name, NAMED[bug])


def test_every_instrument_has_a_mutant() -> None:
    assert {name for name, _, _ in MUTANTS} == set(instruments.INSTRUMENTS)
