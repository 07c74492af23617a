"""How much one server bears, on loopback: a campaign that prints figures for docs/OPERATIONS.md.

    pytest -s -m campaign tests/signaling/test_load.py

Server and clients share this machine, so the rates are lower bounds. The server runs with its own
bounds but for those that keep one address from taking all places.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import resource
import subprocess
import sys
import time

import aiohttp
import psutil
import pytest

from p2pnode.protocol.identity import Identity
from signaling.limits import LIMITS
from signaling.messages import Loan, Publish, Relay, Welcome, decode_from_server, encode
from tests.signaling.peers import register, roster

pytestmark = pytest.mark.campaign

SOCKETS = 5_000
JOINS = 3_000
FLOOD = 20_000
DEAF = 16
TEXT_MIB = 320
MIB = 2**20

_SERVER = """
import asyncio, dataclasses, pathlib, resource
from signaling.app import SignalingServer
from signaling.data.folder import Folder
from signaling.limits import LIMITS
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
limits = dataclasses.replace(LIMITS, **{limits})
sources = [Folder(pathlib.Path(path)) for path in {sources}]
async def main():
    async with SignalingServer("127.0.0.1", 0, limits=limits, data=sources) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""

_ONE_ADDRESS = dict.fromkeys(
    (
        *("connections_per_address", "joins_burst", "all_joins_burst", "rooms"),
        *("address_messages_burst", "address_bytes_burst"),
    ),
    10**9,
)
"""Bounds that clients of one machine, in thousands of rooms, would meet."""


@contextlib.contextmanager
def serving(source=None, **limits):
    """URL and psutil process of a server without bounds per address, with a folder of text."""
    code = _SERVER.replace("{limits}", repr(_ONE_ADDRESS | limits))
    code = code.replace("{sources}", repr([source] if source is not None else []))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child.stdout.readline().strip(), psutil.Process(child.pid)
        finally:
            child.kill()


@pytest.fixture(autouse=True)
def many_files():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@pytest.fixture
async def http():
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def join(http, url, identity, room, **options):
    ws = await http.ws_connect(f"{url}/ws", **options)
    challenge = decode_from_server(await ws.receive_bytes())
    await ws.send_bytes(encode(register(identity, challenge.nonce, room=room)))
    assert isinstance(decode_from_server(await ws.receive_bytes()), Welcome)
    return ws


async def in_parallel(count, wide, work):
    """Run `work(n)` for all n, `wide` at a time; returns results and seconds."""
    numbers = iter(range(count))
    results = []

    async def lane():
        for n in numbers:
            results.append(await work(n))

    start = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(wide)))
    return results, time.perf_counter() - start


async def test_idle_sockets(http, many_files):
    count = min(SOCKETS, many_files - 200, LIMITS.connections)
    identities = [Identity.ephemeral() for _ in range(64)]
    with serving() as (url, process):
        before = process.memory_info().rss

        async def open_one(n):
            return await join(http, url, identities[n % 64], n.to_bytes(32, "big"), autoping=True)

        sockets, seconds = await in_parallel(count, 32, open_one)
        grown = process.memory_info().rss - before
        cpu = sum(process.cpu_times()[:2])
        # Whoever does not read answers no ping and would be cut off.
        readers = [asyncio.create_task(ws.receive()) for ws in sockets]
        await asyncio.sleep(30)
        cpu = sum(process.cpu_times()[:2]) - cpu
        start = time.perf_counter()
        extra = await join(http, url, identities[0], b"z" * 32)
        latency = time.perf_counter() - start
        still_open = sum(not ws.closed for ws in sockets)
        print(
            f"\n{count} registered idle sockets, opened in {seconds:.1f} s: "
            f"{grown / MIB:.0f} MiB more ({grown / count / 1024:.1f} KiB each), "
            f"{cpu / 30:.1%} of one core while idle, a further join takes {latency * 1000:.0f} ms"
        )
        assert still_open == count
        assert count == SOCKETS, f"only {count} sockets: raise the limit of open files"
        await extra.close()
        for reader in readers:
            reader.cancel()


async def test_joins_a_second(http):
    identities = [Identity.ephemeral() for _ in range(64)]
    with serving() as (url, process):

        async def come_and_go(n):
            ws = await join(http, url, identities[n % 64], n.to_bytes(32, "big"))
            await ws.close()

        cpu = sum(process.cpu_times()[:2])
        _, seconds = await in_parallel(JOINS, 32, come_and_go)
        cpu = sum(process.cpu_times()[:2]) - cpu
        print(
            f"\n{JOINS} joins (connect, prove the key, leave): {JOINS / seconds:.0f} a second; "
            f"{cpu / JOINS * 1000:.2f} ms of the server's core each"
        )


async def test_flood_of_junk(http):
    """Connections that break the rules at once; memory must not grow with their number."""
    with serving() as (url, process):
        # A first round, so that what stays is not what Python allocates once.
        async def offend(n):
            ws = await http.ws_connect(f"{url}/ws")
            await ws.receive()
            await ws.send_bytes(b"\xc1" * 1000)
            while (await ws.receive()).type is aiohttp.WSMsgType.BINARY:
                pass
            await ws.close()

        await in_parallel(FLOOD // 10, 32, offend)
        before = process.memory_info().rss
        _, seconds = await in_parallel(FLOOD, 32, offend)
        grown = process.memory_info().rss - before
        print(
            f"\n{FLOOD} connections with junk: {FLOOD / seconds:.0f} turned away a second, "
            f"{grown / MIB:.1f} MiB more afterwards"
        )
        assert grown < 30 * MIB


async def test_memory_of_slow_readers(http):
    """Members that read nothing, flooded by their host as fast as it can send."""
    host, *deaf = [Identity.ephemeral() for _ in range(DEAF + 1)]
    with serving(messages_burst=1e9, bytes_burst=1e12) as (url, process):
        h = await join(http, url, host, b"r" * 32, max_msg_size=0)
        reader = asyncio.create_task(_drain(h))
        sockets = [await join(http, url, identity, b"r" * 32) for identity in deaf]
        await h.send_bytes(encode(Publish(roster(host, *deaf, room=b"r" * 32))))
        for ws in sockets:
            ws._response.connection.transport.pause_reading()
        before = process.memory_info().rss
        sent = 0
        most = 0
        for _ in range(400):
            for identity in deaf:
                await h.send_bytes(encode(Relay(identity.peer_id, bytes(60_000))))
                sent += 60_000
            most = max(most, process.memory_info().rss - before)
        bound = DEAF * LIMITS.outgoing_bytes
        print(
            f"\n{DEAF} deaf members, {sent / MIB:.0f} MiB sent to them: {most / MIB:.0f} MiB more "
            f"at most ({most / DEAF / MIB:.2f} MiB each; the queues' bound is "
            f"{bound / DEAF / MIB:.0f} MiB each)"
        )
        assert most < bound + 32 * MIB
        assert not h.closed
        reader.cancel()


async def test_text_that_is_served(http, tmp_path):
    """One member that reads as fast as it can, more than is kept in memory, twice; then only what
    is kept."""
    (tmp_path / "text.bin").write_bytes(random.Random(1).randbytes(MIB) * TEXT_MIB)
    host, member = Identity.ephemeral(), Identity.ephemeral()
    limits = dict.fromkeys(("data_member_burst", "data_address_burst"), 1e12)
    with serving(source=str(tmp_path), data_questions_burst=1e9, **limits) as (url, process):
        h = await join(http, url, host, b"r" * 32)
        m = await join(http, url, member, b"r" * 32)
        await h.send_bytes(encode(Publish(roster(host, member, room=b"r" * 32))))
        while not isinstance(loan := decode_from_server(await m.receive_bytes()), Loan):
            pass
        readers = [asyncio.create_task(_drain(ws)) for ws in (h, m)]  # they answer pings
        headers = {"Authorization": f"Bearer {loan.data.token.hex()}"}
        before = process.memory_info().rss
        passes = ("read", TEXT_MIB), ("read again", TEXT_MIB), ("read", 64), ("kept", 64)
        for what, part in passes:
            began, used = time.monotonic(), sum(process.cpu_times()[:2])
            for start in range(0, part * MIB, 8 * MIB):
                headers["Range"] = f"bytes={start}-{start + 8 * MIB - 1}"
                async with http.get(f"{url}/data/0/text.bin", headers=headers) as response:
                    assert len(await response.read()) == 8 * MIB
            used = sum(process.cpu_times()[:2]) - used
            seconds = time.monotonic() - began
            print(
                f"\n{part} MiB {what}: {part / seconds:.0f} MiB/s, {1000 * used / part:.1f} ms of "
                f"CPU a MiB; {(process.memory_info().rss - before) / MIB:.0f} MiB more"
            )
        assert process.memory_info().rss - before < LIMITS.data_cache_bytes + 64 * MIB
        for reader in readers:
            reader.cancel()


async def _drain(ws):
    while True:
        await ws.receive()


def test_the_bounds_are_the_servers_own():
    assert set(_ONE_ADDRESS) <= {field.name for field in dataclasses.fields(LIMITS)}
