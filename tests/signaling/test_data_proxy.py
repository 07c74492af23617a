"""Members read text through a running server; everybody else is told that they may not."""

import asyncio
import dataclasses
import socket
import ssl

import aiohttp
import pytest

from p2pnode.protocol.identity import Identity
from signaling.app import SignalingServer, tls_context
from signaling.data.folder import Folder
from signaling.data.sources import BLOCK, Piece
from signaling.data.web import Web, web_url
from signaling.grouping import parse_network
from signaling.limits import LIMITS
from signaling.messages import Challenge, Dismiss, Loan, Publish, decode_from_server, encode
from signaling.turn import TurnLender
from tests.harness.range_server import RangeServer
from tests.signaling.peers import ROOM, register, roster, self_signed

SOON = 60.0
TEXT = bytes(range(251)) * 12_000
"""Almost three blocks."""


async def receive(ws, kind):
    async with asyncio.timeout(SOON):
        while not isinstance(message := decode_from_server(await ws.receive_bytes()), kind):
            pass
    return message


async def until(condition):
    async with asyncio.timeout(SOON):
        while not await condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


class Group:
    """A host and a member at a server."""

    def __init__(self, http, server):
        self.http, self.server = http, server
        self.host, self.member = Identity.ephemeral(), Identity.ephemeral()
        self.room = ROOM

    async def join(self, identity):
        ws = await self.http.ws_connect(f"{self.server.url}/ws")
        challenge = await receive(ws, Challenge)
        await ws.send_bytes(encode(register(identity, challenge.nonce, room=self.room)))
        return ws

    async def meet(self):
        """Both are members, and the second one's offer is known."""
        self.at_host, self.at_member = await self.join(self.host), await self.join(self.member)
        await self.at_host.send_bytes(
            encode(Publish(roster(self.host, self.member, room=self.room)))
        )
        loan = await receive(self.at_member, Loan)
        self.token = loan.data.token.hex()
        return loan

    def get(self, name="0/text.bin", range_="bytes=0-99", **headers):
        sent = {"Authorization": f"Bearer {self.token}", "Range": range_, **headers}
        url = f"{self.server.url}/data/{name}"
        return self.http.get(url, headers={k: v for k, v in sent.items() if v is not None})

    async def comes_to(self, status):
        """Wait until a request is answered with this status."""

        async def answered():
            return (await self.status(range_="bytes=5-1"))[0] == status

        await until(answered)

    async def status(self, *arguments, **headers):
        """Status and sentence of a refusal."""
        async with self.get(*arguments, **headers) as response:
            text = await response.text()
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            return response.status, text


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret.txt").write_bytes(b"secret")
    inside = tmp_path / "texts"
    inside.mkdir()
    (inside / "text.bin").write_bytes(TEXT)
    (inside / "empty.bin").write_bytes(b"")
    return inside


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def group(http, folder):
    async with SignalingServer("127.0.0.1", 0, data=[Folder(folder)]) as server:
        group = Group(http, server)
        await group.meet()
        yield group


async def counts(group):
    async with group.http.get(f"{group.server.url}/healthz") as response:
        return (await response.json())["data_proxy"]


async def seen(group, wanted):
    """Wait until the server's counters are as wanted."""

    async def are():
        return wanted(await counts(group))

    await until(are)


async def test_members_read_ranges(group):
    end = len(TEXT) - 1
    for first, last in ((0, 99), (BLOCK - 5, BLOCK + 5), (0, 8 * BLOCK - 1), (end, end + 50)):
        async with group.get(range_=f"bytes={first}-{last}") as response:
            assert response.status == 206
            range_ = f"bytes {first}-{min(last, end)}/{len(TEXT)}"
            assert response.headers["Content-Range"] == range_
            assert response.headers["Cache-Control"] == "no-store"
            assert await response.read() == TEXT[first : last + 1]
    seen = await counts(group)
    assert seen["answers"] == {"206": 4}
    assert seen["bytes_read"] == len(TEXT)
    assert seen["bytes_served"] == 100 + 11 + len(TEXT) + 1
    assert seen["blocks_from_cache"] > 0
    assert seen["requests_open"] == 0


async def test_a_server_that_serves_no_text_says_nothing_of_it(http):
    async with SignalingServer("127.0.0.1", 0) as server:
        async with http.get(f"{server.url}/data/0/text.bin") as response:
            assert response.status == 404
        async with http.get(f"{server.url}/healthz") as response:
            assert set(await response.json()) == {"status", "protocol"}


async def test_text_goes_over_tls_where_the_server_speaks_it(folder, tmp_path):
    certificate, key = self_signed(tmp_path)
    trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(certificate)))
    tls = tls_context(certificate, key)
    async with (
        aiohttp.ClientSession(connector=trusting) as http,
        SignalingServer("127.0.0.1", 0, data=[Folder(folder)], tls=tls) as server,
    ):
        group = Group(http, server)
        await group.meet()
        async with group.get(range_="bytes=5-99") as response:
            assert (response.url.scheme, await response.read()) == ("https", TEXT[5:100])


async def test_behind_a_proxy_the_bounds_are_the_clients(folder):
    """Members at two addresses behind one named proxy do not share theirs."""
    proxies = [parse_network("127.0.0.1")]
    limits = dataclasses.replace(LIMITS, data_address_burst=1.0 * BLOCK, data_address_rate=1.0)
    server = SignalingServer("127.0.0.1", 0, data=[Folder(folder)], limits=limits, proxies=proxies)
    answers = []
    async with server:
        for address in ("203.0.113.1", "203.0.113.2"):
            forwarded = {"X-Forwarded-For": address}
            async with aiohttp.ClientSession(headers=forwarded) as http:
                group = Group(http, server)
                group.room = address.encode().ljust(32)
                await group.meet()
                answers += [(await group.status())[0] for _ in range(2)]
    assert answers == [206, 429] * 2


async def test_text_and_turn_servers_are_lent_together(http, folder):
    lender = TurnLender(["turn:example.org"], "a long enough secret")
    source = [Folder(folder)] * 3
    async with SignalingServer("127.0.0.1", 0, data=source, turn=lender) as server:
        loan = await Group(http, server).meet()
        assert (loan.data.sources, len(loan.ice)) == (3, 1)


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer ", "Bearer " + "0" * 64, "Basic dTpw", "Bearer ä"]
)
async def test_strangers_read_nothing(group, authorization):
    status, text = await group.status(Authorization=authorization)
    assert status == 401
    assert "members" in text


async def test_browsers_read_nothing(group):
    assert (await group.status(Origin="http://example.org"))[0] == 403


async def test_who_waits_and_a_host_that_is_alone_get_no_token(http, folder):
    async with SignalingServer("127.0.0.1", 0, data=[Folder(folder)]) as server:
        group = Group(http, server)
        host = await group.join(group.host)
        await group.join(group.member)
        await receive(host, Loan)  # it has company now
        assert list(server._proxy._held) == [0]


async def test_a_token_ends_with_its_connection(group):
    assert (await group.status(range_="bytes=5-1"))[0] == 416
    await group.at_member.close()
    await group.comes_to(401)
    assert len(group.server._proxy._tokens) == len(group.server._proxy._held) == 1, "the host's"


async def test_who_is_put_out_reads_no_more(group):
    """At first it is no member and may still wait, then it is turned away."""
    await group.at_host.send_bytes(encode(Publish(roster(group.host, epoch=2))))
    await group.comes_to(403)
    await group.at_host.send_bytes(encode(Dismiss(group.member.peer_id)))
    await group.comes_to(401)


@pytest.mark.parametrize(
    ("range_", "status"),
    [
        (None, 416),
        ("bytes=0-", 416),
        ("bytes=-5", 416),
        ("bytes=0-1,5-6", 416),
        ("bytes=5-1", 416),
        ("bytes=0-1\t", 206),
        ("lines=0-1", 416),
        ("bytes=" + "9" * 17 + "-" + "9" * 17, 416),
        ("bytes=" + "9" * 16 + "-" + "9" * 16, 416),
        (f"bytes={len(TEXT)}-{len(TEXT)}", 416),
        (f"bytes=0-{LIMITS.data_request_bytes}", 413),
        (f"bytes=0-{LIMITS.data_request_bytes - 1}", 206),
    ],
)
async def test_ranges_that_are_none(group, range_, status):
    async with group.get(range_=range_) as response:
        assert response.status == status
        if range_ is not None and f"{len(TEXT)}-" in range_:
            assert response.headers["Content-Range"] == f"bytes */{len(TEXT)}"


async def test_two_headers_of_ranges_are_refused(group):
    headers = [("Authorization", f"Bearer {group.token}"), *[("Range", "bytes=0-1")] * 2]
    async with group.http.get(f"{group.server.url}/data/0/text.bin", headers=headers) as response:
        assert response.status == 416


@pytest.mark.parametrize(
    "path",
    [
        *("0/none", "1/text.bin", "9999/text.bin", "99999/x", "x/text.bin", "0/", "0", ""),
        *("0/../secret.txt", "0/..%2fsecret.txt", "0/%2e%2e/secret.txt", "0/%2e%2e%2fsecret.txt"),
        *("0//etc/passwd", "0/%2fetc/passwd", "0/..%5csecret.txt", "0/a/..%2f..%2fsecret.txt"),
        *("0/%00", "0/text.bin%00", "0/%252e%252e/secret.txt", "0/text.bin/", "0/text.bin/x"),
        *("0/http://127.0.0.1/x", "0/%0d%0aHost:x", "../healthz/x"),
    ],
)
async def test_paths_that_lead_nowhere(group, path):
    """As they are, without a client that tidies them up first."""
    address = group.server.url.removeprefix("http://")
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET /data/{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n"
        f"Authorization: Bearer {group.token}\r\nRange: bytes=0-9\r\n\r\n".encode()
    )
    answer = await asyncio.wait_for(reader.read(), SOON)
    writer.close()
    assert answer.split(b" ")[1] in (b"404", b"400"), answer
    assert b"secret" not in answer.split(b"\r\n\r\n", 1)[1]


async def test_an_empty_file_has_no_range(group):
    assert (await group.status("0/empty.bin"))[0] == 416


async def test_other_methods_are_none(group):
    for method in ("HEAD", "POST", "PUT", "DELETE"):
        async with group.http.request(method, f"{group.server.url}/data/0/text.bin") as response:
            assert response.status == 405


# Bounds


def bounded(sources, **bounds):
    limits = dataclasses.replace(LIMITS, **bounds)
    return SignalingServer("127.0.0.1", 0, data=sources, limits=limits)


@pytest.mark.parametrize(
    ("bounds", "status"),
    [
        ({"data_member_burst": 2.0 * BLOCK, "data_member_rate": 1.0}, 429),
        ({"data_address_burst": 2.0 * BLOCK, "data_address_rate": 1.0}, 429),
        ({"data_questions_burst": 2.0, "data_questions_rate": 1e-6}, 429),
        ({"data_hour_bytes": 4 * BLOCK}, 503),
    ],
)
async def test_who_reads_too_much_is_told_when_to_come_again(http, folder, bounds, status):
    async with bounded([Folder(folder)], **bounds) as server:
        group = Group(http, server)
        await group.meet()
        assert [(await group.status())[0] for _ in range(2)] == [206, 206]
        async with group.get() as response:
            assert response.status == status
            assert int(response.headers["Retry-After"]) >= 1
            assert "try again later" in await response.text()
        assert (await counts(group))["answers"] == {"206": 2, str(status): 1}


class Held:
    """A source that answers when the test lets it."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.size = 3 * BLOCK
        self.versions = ["1"]

    async def read(self, name, start, length):
        await self.gate.wait()
        version = self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]
        return Piece(bytes(length), self.size, version)

    async def close(self):
        pass


async def test_one_member_cannot_take_all_places(http):
    held = Held()
    async with bounded([held], data_member_requests=2) as server:
        group = Group(http, server)
        await group.meet()
        open_ = [asyncio.create_task(group.status()) for _ in range(2)]
        await seen(group, lambda counted: counted["requests_open"] == 2)
        assert (await group.status())[0] == 429
        held.gate.set()
        assert [status for status, _ in await asyncio.gather(*open_)] == [206, 206]
        assert (await group.status())[0] == 206


async def test_a_slow_answer_is_not_taken_for_an_idle_connection(http):
    held = Held()
    async with bounded([held], unused_seconds=0.0) as server:
        group = Group(http, server)
        await group.meet()
        asked = asyncio.create_task(group.status())
        await seen(group, lambda counted: counted["requests_open"] == 1)
        server._end_unused(asyncio.get_running_loop().time() + 1e6)
        held.gate.set()
        assert (await asked)[0] == 206


async def test_the_end_of_the_server_ends_what_is_under_way(http, caplog):
    server = bounded([Held()])
    await server.start()
    group = Group(http, server)
    await group.meet()
    asked = asyncio.create_task(group.status())
    await seen(group, lambda counted: counted["requests_open"] == 1)
    async with asyncio.timeout(SOON):
        await server.stop()
        assert isinstance((await asyncio.gather(asked, return_exceptions=True))[0], Exception)
    assert caplog.records == []


async def test_a_file_that_changes_meanwhile_breaks_off(http):
    held = Held()
    held.gate.set()
    held.versions = ["1", "2"]
    async with bounded([held]) as server:
        group = Group(http, server)
        await group.meet()
        async with group.get(range_=f"bytes=0-{3 * BLOCK - 1}") as response:
            assert response.status == 206
            with pytest.raises(aiohttp.ClientError):
                await response.read()


async def test_a_reader_that_reads_nothing_is_given_up(http):
    held = Held()
    held.gate.set()
    held.size = 100 * BLOCK
    # More than a kernel buffers.
    bounds = {"data_request_bytes": 64 * BLOCK, "data_write_seconds": 0.2}
    async with bounded([held], **bounds) as server:
        group = Group(http, server)
        await group.meet()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", server.port))
            reader.sendall(
                f"GET /data/0/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {group.token}\r\n"
                f"Range: bytes=0-{64 * BLOCK - 1}\r\n\r\n".encode()
            )
            await seen(group, lambda counted: counted["answers"])
        assert (await counts(group))["bytes_served"] < 64 * BLOCK
        assert server._proxy._meter.open == 0


@pytest.mark.parametrize(
    ("mode", "status", "says"),
    [
        ("busy-99", 503, "cannot be read by the server"),
        ("norange", 502, "whole files only"),
        ("elsewhere", 502, "has not allowed"),
    ],
)
async def test_what_is_wrong_with_a_source_is_a_sentence(http, folder, mode, status, says):
    with RangeServer(folder) as web:
        web.elsewhere = "http://127.0.0.1:9/internal?secret"
        limits = dataclasses.replace(LIMITS, data_tries=1)
        sources = [Web(web_url(web.url(mode, "")), limits=limits)]
        async with SignalingServer("127.0.0.1", 0, data=sources) as server:
            group = Group(http, server)
            await group.meet()
            async with group.get() as response:
                text = await response.text()
                assert (response.status, says in text) == (status, True), text
                assert "127.0.0.1" not in text, "addresses are the operator's"
                assert ("Retry-After" in response.headers) == (status == 503)
            assert (await counts(group))["reads_failed"] == 1
