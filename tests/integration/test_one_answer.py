"""The claim: the final state does not depend on who computed it, or on somebody dying.

Every test runs real node processes over real WebRTC and compares with the undisturbed one-node run.
"""

from pathlib import Path

import pytest

from tests.integration.commands import STEPS, Demo
from tests.integration.processes import Pace


def check_same(demo: Demo, undisturbed: Demo, finishers: set[str]) -> None:
    assert set(demo.hashes) == finishers
    assert set(demo.hashes.values()) == set(undisturbed.hashes.values())
    assert demo.outcome["steps"] == STEPS
    assert demo.files() == undisturbed.files()
    assert len(demo.files()) == 1
    assert demo.ledgers() == undisturbed.ledgers()
    assert len(demo.ledgers()) == 1


def test_the_loss_falls(undisturbed: Demo) -> None:
    assert undisturbed.outcome["final_loss"] < undisturbed.outcome["first_loss"] - 1.0


@pytest.mark.parametrize("nodes", [2, 4])
def test_any_number_of_nodes(nodes: int, undisturbed: Demo, tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--nodes", str(nodes))
    check_same(demo, undisturbed, {f"node-{n}" for n in range(1, nodes + 1)})


def test_a_node_killed_in_the_middle_of_a_step(undisturbed: Demo, tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--nodes", "3", "--kill", "2@10")
    assert "killing node-2" in demo.said
    check_same(demo, undisturbed, {"node-1", "node-3"})


def test_the_leader_killed_in_the_middle_of_a_step(undisturbed: Demo, tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--nodes", "3", "--kill", "1@10")
    assert "killing node-1" in demo.said
    check_same(demo, undisturbed, {"node-2", "node-3"})


def test_a_node_that_joins_at_step_10(undisturbed: Demo, tmp_path: Path) -> None:
    env = Pace(tmp_path, latecomer="node-3").env
    demo = Demo(tmp_path, "--nodes", "2", "--join", "3@10", env=env)
    assert "node-3 joins" in demo.said
    check_same(demo, undisturbed, {"node-1", "node-2", "node-3"})


def test_one_node_on_numba_and_one_on_the_reference(undisturbed: Demo, tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--nodes", "2", "--reference-nodes", "2")
    check_same(demo, undisturbed, {"node-1", "node-2"})


def test_without_numba(undisturbed: Demo, tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--nodes", "1", env={"P2PNODE_NO_NUMBA": "1"})
    check_same(demo, undisturbed, {"node-1"})


def test_a_run_that_stops_early_ends_the_same_everywhere(tmp_path: Path) -> None:
    """With a learning rate of 0 the second held-out loss is not below the first."""
    never = ("--lr", "0", "--eval-every", "5", "--early-stop", "1")
    one = Demo(tmp_path / "one", "--nodes", "1", *never)
    two = Demo(tmp_path / "two", "--nodes", "2", *never)
    assert one.outcome["steps"] == two.outcome["steps"] == 12
    assert len(set(one.hashes.values()) | set(two.hashes.values())) == 1
    assert len(one.ledgers() | two.ledgers()) == 1


def test_another_seed_is_another_run(undisturbed: Demo, tmp_path: Path) -> None:
    """The oracle can fail: a different run has a different answer."""
    demo = Demo(tmp_path, "--nodes", "1", "--seed", "1")
    assert set(demo.hashes.values()).isdisjoint(undisturbed.hashes.values())
