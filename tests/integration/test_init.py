"""A run that begins with the weights of an exported model, at machines that do not have them."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from p2pnode.train.open_data import open_dataset
from p2pnode.train.trained import open_trained
from p2pnode.train.trainer import Trainer
from signaling.app import SignalingServer
from tests.integration.commands import Demo, run_cli
from tests.integration.processes import Node
from tests.train.helpers import train

STEPS = 20


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async with SignalingServer("127.0.0.1", 0) as running:
        yield running.url


async def test_all_begin_with_the_weights_that_the_host_has(
    server: str, undisturbed: Demo, tmp_path: Path
) -> None:
    """Two nodes are killed; the host goes on with one that was not there before. All the same the
    end is that of one trainer that was given the weights."""
    model = next((undisturbed.out / "node-1").glob("*-step-*.safetensors"))
    export = tmp_path / "export"
    assert run_cli("export", str(model), "--to", "hf", str(export)).returncode == 0
    run = ("--preset", "nano", "--steps", str(STEPS), "--checkpoint-every", "5")
    given = ("--start-when", "2", "--init", str(export))
    async with Node(server, tmp_path, "a", *given, *run) as host:
        await host.until("invite")
        async with Node(server, tmp_path, "b", "--guest") as guest:
            await host.until("step", step=8)
            await asyncio.gather(host.kill(), guest.kill())
    assert [name for name in os.listdir(tmp_path / "b") if name.startswith("init-")]
    async with Node(server, tmp_path, "a", "--start-when", "2", "--resume", "auto") as host:
        await host.until("invite")
        async with Node(server, tmp_path, "c", "--guest") as guest:
            ends = await asyncio.gather(host.until("finished"), guest.until("finished"))
    assert len({end["hash"] for end in ends}) == 1

    weights = open_trained(model).state.weights
    config = open_trained(Path(ends[0]["checkpoint"])).state.config
    assert config.init
    alone = Trainer(config, open_dataset(None), first=weights)
    train(alone, STEPS)
    assert {end["hash"] for end in ends} == {alone.state_hash.hex()}
