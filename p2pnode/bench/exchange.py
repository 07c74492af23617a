"""`bench exchange`: how long the exchange of one step takes among several nodes of this machine.

Ours (every shard summed by its owner, the sums sent to all, over the fast path) beside what a first
version would do: everybody's gradient to everybody over stock aiortc. The sums are checked.
May import: errors; bench.exchange_node, bench.process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
from collections.abc import Callable

from p2pnode.bench.exchange_node import Outcome, Plan
from p2pnode.bench.process import Process
from p2pnode.errors import BenchmarkError

CANDIDATES = {"ours": ("fast", True), "broadcast": ("aiortc", False)}
"""Name: (transport, scatter)."""


def bench(nodes: int, values: int, rounds: int, say: Callable[[str], object] = print) -> None:
    """Measure and print. Raises BenchmarkError."""
    seconds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for _ in range(rounds):
        for name, (kind, scatter) in CANDIDATES.items():
            plans = [Plan(kind, scatter, me, nodes, values) for me in range(nodes)]
            seconds[name].append(measure(plans))
    say(f"exchange of {values:,} values among {nodes} nodes; medians of {rounds} rounds")
    for name, times in seconds.items():
        span = f"{min(times):.2f} to {max(times):.2f}"
        say(f"{name:10}{statistics.median(times):9.2f} s   ({span})")
    pairs = zip(seconds["broadcast"], seconds["ours"], strict=True)
    say(f"{'factor':10}{statistics.median(slow / fast for slow, fast in pairs):9.1f}")


def measure(plans: list[Plan]) -> float:
    """Seconds until the last node had the sum. Raises BenchmarkError, also if a sum is wrong."""
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(Process("exchange_node", json.dumps(dataclasses.asdict(plan))))
            for plan in plans
        ]
        for _ in ("offers", "answers"):
            _pass_on(nodes)
        for node in nodes:
            node.told()
        for node in nodes:
            node.tell()
        outcomes = [Outcome(**node.told()) for node in nodes]
        for node in nodes:
            node.tell()
    if not all(outcome.right for outcome in outcomes):
        raise BenchmarkError("A node's sum is not the sum of what was sent.")
    return max(outcome.seconds for outcome in outcomes)


def _pass_on(nodes: list[Process]) -> None:
    """Give every node the descriptions that others said for it."""
    said = [node.told()["descriptions"] for node in nodes]
    for number, node in enumerate(nodes):
        mine = {n: all_[str(number)] for n, all_ in enumerate(said) if str(number) in all_}
        node.tell(descriptions=mine)
