"""Real processes in network namespaces: lines that lose packets, go dark, and change address."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.commands import STEPS, Demo
from tests.integration.disasters import Disaster, Fault, Scene
from tests.integration.switch import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


async def test_one_node_goes_dark_and_another_changes_its_address(
    undisturbed: Demo, tmp_path: Path
) -> None:
    """Both are dropped, come back without anybody's help, and take part to the end."""
    faults = (Fault(5, "blackout", 1, 11.0), Fault(5, "move", 2, 0.0))
    async with Scene(Disaster(3, STEPS, 0.0, 100, faults), 1, tmp_path) as scene:
        nodes = dict(scene.nodes)
        assert await scene.run() == {undisturbed.hashes["node-1"]}
        host = nodes[0]
        left = {event["name"] for event in host.events("left") if "leaves" not in event["reason"]}
        assert left == {"b", "c"}
        assert all(node.events("finished") for node in nodes.values())
        assert scene.lost > 0


async def test_a_lossy_line(tmp_path: Path) -> None:
    """Slow is not silent: nobody is dropped."""
    steps = 5
    async with Scene(Disaster(2, steps, 0.02, 100, ()), 1, tmp_path) as scene:
        alone = asyncio.to_thread(Demo, tmp_path, "--nodes", "1", "--steps", str(steps))
        (found,), expected = await asyncio.gather(scene.run(), alone)
        assert found == expected.hashes["node-1"]
        reasons = [
            event["reason"] for node in scene.nodes.values() for event in node.events("left")
        ]
        assert not [why for why in reasons if "heard" in why or "acknowledged" in why]
        assert scene.lost > 10
