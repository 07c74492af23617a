"""A real TURN server (coturn) for tests, on loopback or in a network namespace."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from p2pnode.net.ice_servers import IceServer

PROGRAM = shutil.which("turnserver")
SECRET = "a secret for tests"

needs_coturn = pytest.mark.skipif(
    PROGRAM is None, reason="coturn is not installed (apt-get install coturn)"
)


class Coturn:
    """A running server. Its static user is `user` with the password `password`."""

    def __init__(self, host: str, port: int, log: Path) -> None:
        self.host = host
        self.port = port
        self._log = log

    def server(self, transport: str = "udp", password: str = "password") -> IceServer:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if transport == "tls":
            return IceServer.parse(f"turns:user:{password}@{host}:{self.port}")
        return IceServer.parse(f"turn:user:{password}@{host}:{self.port}?transport={transport}")

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free for UDP at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def coturn(
    host: str = "127.0.0.1",
    port: int | None = None,
    *,
    secret: bool = False,
    config: str | None = None,
    tls: tuple[Path, Path] | None = None,
    within: Sequence[str] = (),
) -> AsyncIterator[Coturn]:
    """A server until the end.

    secret: take the time-limited credentials made with SECRET instead of the static user. config:
    the text of a configuration file, which then says who may use it. tls: a certificate and its
    key; the port then also takes TLS. within: a command that starts it elsewhere, as
    `ip netns exec NAME`.
    """
    options: Any = {"secret": secret, "config": config, "tls": tls, "within": within}
    for _ in range(5):
        async with _started(host, free_port() if port is None else port, **options) as server:
            # Of another network only it itself can ask.
            if within or port is not None or await asyncio.to_thread(_answers, host, server.port):
                yield server
                return
    raise AssertionError("coturn has started five times and never answered")


def _answers(host: str, port: int) -> bool:
    """Whether STUN questions from several ports get an answer: each is served by one of its
    sockets, and the port may have been taken meanwhile."""
    return all(_answers_one(host, port) for _ in range(8))


def _answers_one(host: str, port: int) -> bool:
    question = struct.pack("!HHI", 1, 0, 0x2112A442) + secrets.token_bytes(12)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.settimeout(1.0)
        for _ in range(5):
            asking.sendto(question, (host, port))
            with contextlib.suppress(OSError):
                if asking.recv(2048)[8:20] == question[8:20]:
                    return True
    return False


@contextlib.asynccontextmanager
async def _started(
    host: str,
    port: int,
    *,
    secret: bool,
    config: str | None,
    tls: tuple[Path, Path] | None,
    within: Sequence[str],
) -> AsyncIterator[Coturn]:
    assert PROGRAM is not None
    settings = (
        ("-n", "--use-auth-secret", f"--static-auth-secret={SECRET}")
        if secret
        else ("-n", "--lt-cred-mech", "--user=user:password")
    )
    with tempfile.TemporaryDirectory(prefix="coturn-") as folder:
        log = Path(folder, "log")
        certificate = (
            ("--no-tls", "--no-dtls")
            if tls is None
            else (f"--cert={tls[0]}", f"--pkey={tls[1]}", f"--tls-listening-port={free_port()}")
        )
        if config is not None:
            Path(folder, "config").write_text(config)  # noqa: ASYNC240
            settings = ("-c", f"{folder}/config")
        with log.open("wb") as out:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(
                *within,
                PROGRAM,
                *settings,
                *certificate,
                *("--no-cli", "--fingerprint", "--realm=test"),
                *(f"--listening-ip={host}", f"--relay-ip={host}", f"--listening-port={port}"),
                *("--allow-loopback-peers", "--log-file=stdout", "--simple-log", "--verbose"),
                # As OPERATIONS advises. And without a route there coturn would end the allocation.
                "--denied-peer-ip=192.168.0.0-192.168.255.255",
                *("--relay-threads=1", f"--pidfile={folder}/pid", f"--userdb={folder}/users"),
                cwd=folder,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
            )
        server = Coturn(host, port, log)
        try:
            async with asyncio.timeout(20):
                while "UDP listener opened on" not in server.log():
                    assert process.returncode is None, server.log()
                    await asyncio.sleep(0.05)
            yield server
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
