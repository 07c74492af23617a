"""Training on tables behind a web server that fails all the time: the answer stays one."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from signaling.app import SignalingServer
from tests.harness.range_server import RangeServer
from tests.harness.real_text import passages, write_parquet
from tests.integration.commands import Demo
from tests.integration.processes import Node, Pace, Server, free_port
from tests.train.tokenizers import bpe

STEPS = 80
"""A step takes hundredths of a second, a joiner seconds: it shall be there before the end."""
ROWS = 40


class Text:
    """A folder with a table of this project's pages and a vocabulary made of them."""

    def __init__(self, folder: Path) -> None:
        texts = passages()[:1_600]
        self.folder = folder
        self.table = write_parquet(folder / "pages.parquet", texts, ROWS)
        self.tokenizer = folder / "words.json"
        self.tokenizer.write_bytes(bpe(600, texts))
        self.options = ("--tokenizer", str(self.tokenizer), "--slots", "8")

    def run(self, data: str) -> tuple[str, ...]:
        steps = ("--preset", "nano", "--steps", str(STEPS), "--checkpoint-every", "10")
        return ("--data", data, *steps, "--eval-every", "40", *self.options)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return Text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def one_node(text: Text, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the undisturbed one-node run, on the file itself."""
    out = tmp_path_factory.mktemp("one")
    options = (*text.run(str(text.table))[:2], "--eval-every", "40", *text.options)
    demo = Demo(out, "--nodes", "1", *options, "--steps", str(STEPS))
    return demo.hashes["node-1"]


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async with SignalingServer("127.0.0.1", 0) as running:
        yield running.url


@pytest.fixture
def web(text: Text) -> Iterator[RangeServer]:
    with RangeServer(text.folder, stall=1.0) as running:
        yield running


async def test_a_source_with_faults_and_a_group_with_losses(
    text: Text, one_node: str, server: str, web: RangeServer, tmp_path: Path
) -> None:
    """Three nodes, one killed, one that joins without any data; stopped and resumed twice."""
    data = ("--data", web.url("mixed", text.table.name))
    guest = ("--guest", *data)
    host = (*text.run(data[1]), "--start-when", "3")
    pace = Pace(tmp_path, latecomer="d")
    async with Node(server, tmp_path, "a", *host, env=pace.env) as a:
        await a.until("invite")
        async with (
            Node(server, tmp_path, "b", *guest, env=pace.env) as b,
            Node(server, tmp_path, "c", *guest, env=pace.env) as c,
        ):
            await a.until("step", step=5)
            await b.kill()
            async with Node(server, tmp_path, "d", "--guest", env=pace.env) as d:
                await d.until("step")
                for node in (a, c, d):
                    node.send(signal.SIGTERM)
                assert await asyncio.gather(a.end(), c.end(), d.end()) == [0, 0, 0]
    again = (*data, "--start-when", "2", "--resume", "auto")
    async with Node(server, tmp_path, "a", *again) as a:
        await a.until("invite")
        async with Node(server, tmp_path, "c", *guest) as c:
            begun = await a.until("runstarted")
            await a.until("step", step=begun["first_step"] + 6)
            for node in (a, c):
                node.send(signal.SIGKILL)
    shutil.rmtree(tmp_path / "c")  # another disk: text, tokenizer and states come anew
    async with Node(server, tmp_path, "a", *again) as a:
        await a.until("invite")
        async with Node(server, tmp_path, "c", *guest) as c:
            ends = await asyncio.gather(a.until("finished"), c.until("finished"))
    assert {end["hash"] for end in ends} == {one_node}
    assert (ends[0]["step"], ends[1]["step"]) == (STEPS, STEPS)
    assert web.sent < 40 * text.table.stat().st_size, "ranges, not files"


async def test_who_lacks_the_text_hands_its_work_over(
    text: Text, one_node: str, server: str, web: RangeServer, tmp_path: Path
) -> None:
    """The source of one of two goes away; it takes part, without work, and is told so."""
    run = text.run(str(text.table))
    async with Node(server, tmp_path, "a", *run, "--start-when", "2") as a:
        await a.until("invite")
        web.quota = 8  # the footer and the first row groups
        data = web.url("ok", text.table.name)
        own = ("--data", data, "--tokenizer", str(text.tokenizer))
        async with Node(server, tmp_path, "b", "--guest", *own) as b:
            ends = await asyncio.gather(a.until("finished"), b.until("finished"))
    assert {end["hash"] for end in ends} == {one_node}
    assert ends[1]["step"] == STEPS
    said = [warning["text"] for warning in b.events("warn")]
    assert any("is not here" in sentence for sentence in said), (said, web.requests)
    slots = {event["step"]: event["slots_here"] for event in a.events("step")}
    assert slots[STEPS] == 8


_WALLED = """
import os, socket
from p2pnode.limits import LIMITS

connect = socket.create_connection

def walled(address, *more, **options):
    if str(address[1]) == os.environ["TEST_WALL"]:
        raise OSError("unreachable")
    return connect(address, *more, **options)

socket.create_connection = walled
object.__setattr__(LIMITS, "shared_data_bytes", 0)
"""


async def test_nodes_behind_a_wall_read_through_the_signaling_server(
    text: Text, one_node: str, web: RangeServer, tmp_path: Path
) -> None:
    """No node reaches the source, and their text is called too large to be handed on. The server
    does, although the source fails all the time; both compute."""
    port = web.url("", "").split(":")[2].split("/")[0]
    pace = Pace(tmp_path, _WALLED)
    env = pace.env | {"TEST_WALL": port}
    serves = ("--data-proxy", str(tmp_path), "--data-proxy", web.url("mixed", ""))
    async with Server(free_port(), more=serves) as server:
        run = text.run(str(text.table))
        own = ("--guest", "--data", web.url("ok", text.table.name))
        async with Node(server.url, tmp_path, "a", *run, "--start-when", "3", env=env) as a:
            await a.until("invite")
            async with (
                Node(server.url, tmp_path, "b", *own, env=env) as b,
                Node(server.url, tmp_path, "c", "--guest", env=env) as c,
            ):
                for node in (b, c):
                    while not (await node.until("step"))["slots_here"]:
                        pass
                pace.hurry()
                ends = await asyncio.gather(*(node.until("finished") for node in (a, b, c)))
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"{server.url}/healthz") as response,
            ):
                counts = (await response.json())["data_proxy"]
    assert [(end["hash"], end["step"]) for end in ends] == [(one_node, STEPS)] * 3
    for node, why in ((b, "no answer"), (c, "There is no other source")):
        said = [event["text"] for event in node.events("info")]
        assert any(why in line and "through the signaling server" in line for line in said), said
    assert {headers["User-Agent"] for headers in web.headers} == {"p2pnode-signaling"}
    assert counts["bytes_served"] > counts["bytes_read"] > 0, "what both read was read once"
    assert counts["answers"]["206"] > 0
    assert counts["answers"]["404"] > 0, "of the source that has nothing"
