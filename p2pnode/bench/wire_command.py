"""`python -m p2pnode bench wire` and `bench exchange`: their options.

May import: errors; of bench: exchange, stacks, wire.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from p2pnode.errors import UsageError

HELP = """Measure what data channels carry between two processes of this machine: what a
node uses (fast) beside others, over loopback and over emulated links:

  long    100 Mbit/s, 50 ms there and back      fat     400 Mbit/s, 50 ms
  lossy   100 Mbit/s, 50 ms, 1 % of all packets lost
  radio   20 Mbit/s, 80 ms, 5 % lost: bad Wi-Fi
  uplink  5 Mbit/s, 40 ms, a queue of 200 ms: a home's way out

small has packets of 1,200 bytes as over the internet, plain in addition none of the
kernel's help with many datagrams, portable what other systems allow; native needs the
package wrtc. All runs compare content hashes."""


def add_wire(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `wire` to `bench`."""
    wire = parts.add_parser(
        "wire",
        help="what data channels carry",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    wire.set_defaults(run=_run)
    wire.add_argument(
        "--against",
        default="aiortc",
        metavar="LIST",
        help="besides fast: small, plain, portable, aiortc, native, tcp or none (default aiortc)",
    )
    wire.add_argument(
        "--links",
        default="loopback",
        metavar="LIST",
        help="of loopback, long, lossy, fat, radio, uplink, or all (default loopback)",
    )
    wire.add_argument(
        "--connections", default="1", metavar="LIST", help="between the two, 1 to 8 (default 1)"
    )
    wire.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (default 5)")
    wire.add_argument(
        "--seconds", type=float, default=4.0, metavar="S", help="each run sends for (default 4)"
    )


def add_exchange(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `exchange` to `bench`."""
    exchange = parts.add_parser(
        "exchange",
        help="one step's exchange among several nodes",
        description="Measure the exchange of one step (every shard summed by its owner, the sums "
        "sent to all) beside a broadcast of every node's values over stock aiortc.",
    )
    exchange.set_defaults(run=_run_exchange)
    exchange.add_argument("--nodes", type=int, default=4, metavar="N", help="nodes (default 4)")
    exchange.add_argument(
        "--values",
        type=int,
        default=5_000_000,
        metavar="N",
        help="length of the gradient (default 5,000,000, about the preset small)",
    )
    exchange.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (default 5)")


def _run_exchange(options: argparse.Namespace) -> int:
    from p2pnode.bench.exchange import bench

    if options.rounds < 1 or options.values < 1 or not 2 <= options.nodes <= 16:
        raise UsageError("--rounds and --values must be positive, --nodes from 2 to 16.")
    bench(options.nodes, options.values, options.rounds)
    return 0


def _run(options: argparse.Namespace) -> int:
    from p2pnode.bench.stacks import KINDS
    from p2pnode.bench.wire import LINKS, Options, bench

    if options.rounds < 1 or options.seconds <= 0:
        raise UsageError("--rounds and --seconds must be positive.")
    against = () if options.against == "none" else _listed(options.against, KINDS)
    connections = _listed(options.connections, [str(n) for n in range(1, 9)])
    bench(
        Options(
            kinds=tuple(dict.fromkeys(("fast", *against))),
            links=tuple(LINKS) if options.links == "all" else _listed(options.links, LINKS),
            connections=tuple(int(n) for n in connections),
            rounds=options.rounds,
            seconds=options.seconds,
        )
    )
    return 0


def _listed(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names in a comma-separated list. Raises UsageError for one that is not known."""
    names, known = tuple(text.split(",")), tuple(known)
    for name in names:
        if name not in known:
            raise UsageError(f"There is no {name!r}; there are {', '.join(known)}.")
    return names
