"""`python -m signaling serve`: run the server until told to stop.

May import: app.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from signaling.app import BindError, SignalingServer

EXIT_ADDRESS = 11
"""The address is in use or not this machine's (the same code as p2pnode's)."""

_ABOUT = """\
The rendezvous server for p2pnode. It introduces nodes that know the same room code to each other
and answers STUN; it sees no code, no weights, no gradients and no training text, so nodes need not
trust it.

  python -m signaling serve                 listen on every address of this machine, port 8765
  python -m signaling serve --port 9000     another port (TCP for WebSocket and page, UDP for STUN)
  python -m signaling serve --host 127.0.0.1    for nodes on this machine only

Nodes then join with:  python -m p2pnode join --signal http://ADDRESS:PORT
Two machines on one network need no separate server: `python -m p2pnode join --serve` includes one.
Ctrl-C or SIGTERM stops it; running trainings go on without it, and nodes come back by themselves.

Exit codes: 0 stopped as asked, 2 wrong usage, 11 address in use."""


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65_535:
        raise ValueError(text)
    return port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m signaling",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="serve")
    serve = commands.add_parser(
        "serve",
        help="run the server",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_argument(
        "--host", default="0.0.0.0", help="address to listen on (default: all, 0.0.0.0)"
    )
    serve.add_argument(
        "--port", type=_port, default=8765, help="TCP and UDP port (default: 8765; 0: any free)"
    )
    return parser


async def _serve(host: str, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # Windows knows fewer, and only this way of setting them
            signal.signal(getattr(signal, name), on_signal)
    async with SignalingServer(host, port) as server:
        where = "every address of this machine" if host in ("0.0.0.0", "::") else host
        print(f"Listening on {where}, port {server.port} (TCP and UDP).")
        print(f"On this machine: {server.url}  Stop with Ctrl-C.", flush=True)
        await stop.wait()
        print("Stopping.", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        asyncio.run(_serve(options.host, options.port))
    except BindError as error:
        print(error, file=sys.stderr)
        return EXIT_ADDRESS
    return 0
