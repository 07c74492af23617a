"""The first connection: no server, or something else in its place, is a sentence."""

import re
import socket

import pytest
from aiohttp import web

from p2pnode.errors import (
    OtherHostError,
    RefusedError,
    RoomCodeError,
    ServerUnreachableError,
    VersionMismatchError,
)
from p2pnode.net import signaling_socket
from signaling.app import SignalingServer, tls_context
from signaling.messages import PROTOCOL, Challenge, Refused, Welcome, encode
from tests.net.signaling_nodes import failure, fake_server, tcp_server
from tests.signaling.peers import self_signed


async def test_nothing_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = await failure(f"127.0.0.1:{free.getsockname()[1]}")
    assert isinstance(error, ServerUnreachableError)
    assert "Nothing listens" in str(error)
    assert "python -m signaling serve" in str(error)


async def test_unknown_name():
    error = await failure("no-such-host.invalid")
    assert isinstance(error, ServerUnreachableError)
    assert "no-such-host.invalid" in str(error)


@pytest.mark.parametrize(("path", "status"), [("/ws", 200), ("/other", 404)])
async def test_some_other_web_server(path, status):
    app = web.Application()

    async def page(_):
        return web.Response(text="<html>hello")

    app.router.add_get(path, page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    error = await failure(f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()
    assert isinstance(error, ServerUnreachableError)
    assert f"HTTP status {status}" in str(error)
    assert "no signaling server" in str(error)


async def test_tls_expected_where_there_is_none():
    async with SignalingServer("127.0.0.1", 0) as server:
        error = await failure(server.url.replace("http", "https"))
    assert isinstance(error, ServerUnreachableError)
    assert "not with TLS" in str(error)


async def test_certificate_that_is_not_valid(tmp_path):
    async with SignalingServer("127.0.0.1", 0, tls=tls_context(*self_signed(tmp_path))) as server:
        error = await failure(server.url)
    assert isinstance(error, ServerUnreachableError)
    assert re.search(r"certificate .* is not valid", str(error))


async def test_something_that_is_not_http():
    async def respond(_, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()

    server, port = await tcp_server(respond)
    error = await failure(f"127.0.0.1:{port}")
    server.close()
    assert isinstance(error, ServerUnreachableError)
    assert "no signaling server" in str(error)


async def test_something_that_never_answers(monkeypatch):
    monkeypatch.setattr(signaling_socket, "ANSWER", 0.2)

    async def respond(reader, _):
        await reader.read()

    server, port = await tcp_server(respond)
    error = await failure(f"127.0.0.1:{port}")
    server.close()
    assert isinstance(error, ServerUnreachableError)
    assert "No answer" in str(error)


async def test_websocket_that_never_greets(monkeypatch):
    monkeypatch.setattr(signaling_socket, "ANSWER", 0.2)

    async def conversation(ws):
        await ws.receive()

    async with fake_server(conversation) as url:
        error = await failure(url)
    assert isinstance(error, ServerUnreachableError)
    assert "does not answer" in str(error)


@pytest.mark.parametrize(("version", "update"), [(PROTOCOL + 1, "node"), (0, "server")])
async def test_other_protocol_version(version, update):
    async def conversation(ws):
        await ws.send_bytes(encode(Challenge(version, bytes(32))))
        await ws.receive()

    async with fake_server(conversation) as url:
        error = await failure(url)
    assert isinstance(error, VersionMismatchError)
    assert str(error).endswith(f"Update the {update}.")


@pytest.mark.parametrize("first", ["text", b"\xc0", encode(Welcome()), bytes(70_000)])
async def test_websocket_that_speaks_something_else(first):
    async def conversation(ws):
        await (ws.send_str(first) if isinstance(first, str) else ws.send_bytes(first))
        await ws.receive()

    async with fake_server(conversation) as url:
        assert isinstance(await failure(url), ServerUnreachableError)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("version", VersionMismatchError),
        ("unavailable", RoomCodeError),
        ("contested", OtherHostError),
        ("dismissed", RefusedError),
        ("busy", ServerUnreachableError),
        ("proof", ServerUnreachableError),
        ("new reason", ServerUnreachableError),
    ],
)
async def test_refusals_become_our_own_sentences(reason, kind):
    async def conversation(ws):
        await ws.send_bytes(encode(Challenge(PROTOCOL, bytes(32))))
        await ws.receive_bytes()
        await ws.send_bytes(encode(Refused(reason, "\x1b[2Jrun\nrm -rf /")))

    async with fake_server(conversation) as url:
        error = await failure(url)
    assert type(error) is kind
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)
