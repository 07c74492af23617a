"""The whole product where nothing but a TURN server connects the machines: the same bits."""

import asyncio
from pathlib import Path

from tests.integration.commands import STEPS, Demo
from tests.integration.processes import Node, Process
from tests.net.coturn import SECRET, coturn, needs_coturn
from tests.net.namespaces import HUB, needs_namespaces, star

pytestmark = [needs_coturn, needs_namespaces]

PORT = 8765
RUN = ("--preset", "nano", "--steps", str(STEPS))


async def test_training_over_lent_turn_servers(undisturbed: Demo, tmp_path: Path) -> None:
    """The signaling server lends what coturn believes; the nodes are told nothing of TURN."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    serve = ("serve", "--port", str(PORT), "--turn", f"turn:{HUB}:3478", "--turn-secret")
    url = f"http://{HUB}:{PORT}"
    async with star(2) as net:
        first, second = (leaf.within for leaf in net.leaves)
        async with (
            coturn(HUB, 3478, secret=True, within=net.hub.within) as turn,
            Process("signaling", *serve, str(secret), within=net.hub.within) as server,
        ):
            assert "Listening" in await server.next_line()
            host = Node(url, tmp_path, "a", "--start-when", "2", *RUN, within=first)
            async with host:
                await host.until("invite")
                async with Node(url, tmp_path, "b", "--guest", within=second) as guest:
                    joined = await host.until("joined")
                    ends = await asyncio.gather(host.until("finished"), guest.until("finished"))
            assert "incoming packet CHANNEL_BIND processed, success" in turn.log()
    assert joined["turn"] is True
    assert {end["hash"] for end in ends} == set(undisturbed.hashes.values())
    assert undisturbed.holds(end["checkpoint"] for end in ends)
