"""`python -m signaling serve`: run the server until told to stop.

May import: app, data, grouping, limits, turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from signaling.app import BindError, CertificateError, SignalingServer, tls_context
from signaling.data.options import add_options, check_options, limits_of, sources_of
from signaling.grouping import Network, parse_network
from signaling.limits import LIMITS
from signaling.turn import TurnLender, turn_url

EXIT_ADDRESS = 11
"""The address is in use or not this machine's (the same code as p2pnode's)."""

EXIT_USAGE = 2
"""A certificate, key or secret given cannot be used: wrong usage."""

_FILES = LIMITS.connections + LIMITS.unused_connections + 64
"""Open files of a server at its bounds."""

_ABOUT = """\
The rendezvous server for p2pnode. It introduces nodes that know the same room code to each other
and answers STUN; it sees no code, no weights, no gradients and no training text but what its
operator offers (--data-proxy), so nodes need not trust it.

  python -m signaling serve                 listen on every address of this machine, port 8765
  python -m signaling serve --port 9000     another port (TCP for WebSocket and page, UDP for STUN)
  python -m signaling serve --host 127.0.0.1    for nodes on this machine only
  python -m signaling serve --tls-cert chain.pem --tls-key key.pem    https and wss
  python -m signaling serve --trusted-proxy 10.0.0.2    behind a reverse proxy at 10.0.0.2
  python -m signaling serve --turn turn:HOST:3478 --turn-secret FILE    lend members a TURN server
  python -m signaling serve --data-proxy https://HOST/texts/    members may read these through it

Nodes then join with:  python -m p2pnode join --signal http://ADDRESS:PORT
Two machines on one network need no separate server: `python -m p2pnode join --serve` includes one.
Nodes that name no code (join --nearby) are introduced to those behind the same public address.
Ctrl-C or SIGTERM stops it; running trainings go on without it, and nodes come back by themselves.

Exit codes: 0 stopped as asked, 2 wrong usage, 11 address in use."""


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535; 0 takes a free one)")
    return int(text)


def _network(text: str) -> Network:
    try:
        return parse_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _turn_url(text: str) -> str:
    try:
        return turn_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
    serve.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="certificate chain (PEM): serve https and wss"
    )
    serve.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key (PEM)")
    serve.add_argument(
        "--trusted-proxy",
        type=_network,
        action="append",
        default=[],
        metavar="CIDR",
        help="believe X-Forwarded-For and Forwarded from this address or range; may be repeated",
    )
    serve.add_argument(
        "--turn",
        type=_turn_url,
        action="append",
        default=[],
        metavar="URL",
        help="turn:HOST:PORT[?transport=tcp] or turns:HOST:PORT: lend approved members "
        "credentials for this TURN server, for some hours; may be repeated",
    )
    serve.add_argument(
        "--turn-secret",
        type=Path,
        metavar="FILE",
        help="file with the secret that these TURN servers share (coturn: static-auth-secret)",
    )
    serve.add_argument(
        "--group-private",
        action="store_true",
        help="let join --nearby work between private addresses too: only where everybody who "
        "reaches the server may knock at everybody's group",
    )
    add_options(serve)
    return parser


def _turn_lender(urls: list[str], file: Path) -> TurnLender:
    """Raises ValueError with a sentence."""
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the secret from {file}: {error}") from None
    return TurnLender(urls, secret)


def _allow_many_files() -> None:
    """Every connection is an open file; many systems allow 1,024 unless asked for more."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Refused, as in some containers: then fewer fit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(
    options: argparse.Namespace, tls: ssl.SSLContext | None, turn: TurnLender | None
) -> None:
    host = options.host
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    # Windows knows fewer, and only this way of setting them.
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)  # nohup: it is to outlive its terminal

    def on_signal(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)
        for number in numbers:  # impatience, even while the interpreter ends, changes nothing
            signal.signal(number, signal.SIG_IGN)

    for number in numbers:
        signal.signal(number, on_signal)
    limits = limits_of(options)
    sources = sources_of(options, limits)
    async with SignalingServer(
        host,
        options.port,
        limits=limits,
        tls=tls,
        turn=turn,
        data=sources,
        proxies=options.trusted_proxy,
        group_private=options.group_private,
    ) as server:
        where = "every address of this machine" if host in ("0.0.0.0", "::") else host
        print(f"Listening on {where}, port {server.port} (TCP and UDP).")
        if options.group_private:
            print(
                "warning: --group-private: all nodes with private addresses form one group; "
                "whoever reaches this server over one may knock there without a code."
            )
        if sources:
            offered = ", ".join(str(source) for source in sources)
            print(f"Members of rooms may read text through this server: {offered}.")
        print(f"On this machine: {server.url}  Stop with Ctrl-C.", flush=True)
        await stop.wait()
        print("Stopping.", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key go together")
    if bool(options.turn) != (options.turn_secret is not None):
        parser.error("--turn and --turn-secret go together")
    check_options(options, parser)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    _allow_many_files()
    try:
        turn = _turn_lender(options.turn, options.turn_secret) if options.turn else None
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    try:
        tls = tls_context(options.tls_cert, options.tls_key) if options.tls_cert else None
        asyncio.run(_serve(options, tls, turn))
    except CertificateError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except BindError as error:
        print(error, file=sys.stderr)
        return EXIT_ADDRESS
    return 0
