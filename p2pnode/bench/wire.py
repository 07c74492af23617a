"""`bench wire`: how much data channels carry, over loopback and over emulated links.

Every round runs all transports one after another, so that what else the machine does meets all
alike; figures are medians over rounds, factors are medians of factors within a round. Content
hashes are compared in every run. May import: errors; bench.peer, bench.process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import statistics
from collections.abc import Callable, Sequence

from p2pnode.bench.peer import Result, Setting
from p2pnode.bench.process import Process
from p2pnode.errors import BenchmarkError

MEGABIT = 1e6 / 8

LINKS: dict[str, dict[str, float] | None] = {
    "loopback": None,
    "long": {"rate": 100 * MEGABIT, "delay": 0.025, "queue": 0.1},
    "lossy": {"rate": 100 * MEGABIT, "delay": 0.025, "queue": 0.1, "loss": 0.01},
    "fat": {"rate": 400 * MEGABIT, "delay": 0.025, "queue": 0.1},
    "radio": {"rate": 20 * MEGABIT, "delay": 0.04, "queue": 0.1, "loss": 0.05},
    "uplink": {"rate": 5 * MEGABIT, "delay": 0.02, "queue": 0.2},
}
"""Names of links and the `Path` of each direction; None: none but loopback."""

REFERENCE = "aiortc"
"""Others are told as multiples of it."""

CANDIDATE = re.compile(r"(?m)^(a=candidate:\S+ \d+ udp \d+ )127\.0\.0\.1 (\d+)( typ host.*)$", re.I)


class StuckError(BenchmarkError):
    """A transport did not deliver what it was given."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What was asked for."""

    kinds: tuple[str, ...]
    links: tuple[str, ...]
    connections: tuple[int, ...]
    rounds: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one transport."""

    result: Result
    receiver_cpu: float

    @property
    def cpu(self) -> float:
        """Processor seconds of both ends for a megabyte."""
        return (self.result.cpu + self.receiver_cpu) / (self.result.nbytes / 1e6)


def bench(options: Options, say: Callable[[str], object] = print) -> None:
    """Measure and print. Raises BenchmarkError."""
    for link in options.links:
        for connections in options.connections:
            runs: dict[str, list[Run | None]] = {kind: [] for kind in options.kinds}
            for number in range(options.rounds):
                for kind in options.kinds:
                    if kind == "tcp" and LINKS[link] is not None:
                        continue  # the emulated link carries UDP
                    setting = Setting(kind, connections, options.seconds, seed=number)
                    try:
                        runs[kind].append(measure(setting, LINKS[link]))
                    except StuckError as error:
                        runs[kind].append(None)
                        say(f"{kind}, round {number + 1}: {error}")
            say(_title(link, connections, options))
            for line in table(runs):
                say(line)
            say("")


def measure(setting: Setting, link: dict[str, float] | None) -> Run:
    """One run. Raises BenchmarkError, also if the data did not arrive as it was sent."""
    arguments = json.dumps(dataclasses.asdict(setting))
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(Process("peer", "receive", arguments))
        sender = stack.enter_context(Process("peer", "send", arguments))
        shim = stack.enter_context(Process("shim")) if link is not None else None
        if shim is not None:
            shim.tell(path=link, seed=setting.seed)
        offers = sender.told()["descriptions"]
        answers_at: list[int | None] = [None] * len(offers)
        offers_at = list(answers_at)
        if shim is not None:
            shim.tell(a=[_port(offer) for offer in offers])
            ports = shim.told()
            offers_at, answers_at = ports["a_found_at"], ports["b_found_at"]
        receiver.tell(descriptions=_found_at(offers, offers_at))
        answers = receiver.told()["descriptions"]
        if shim is not None:
            shim.tell(b=[_port(answer) for answer in answers])
        sender.tell(descriptions=_found_at(answers, answers_at))
        said = sender.told()
        if "stuck" in said:
            raise StuckError(f"not all had arrived {said['stuck']:.0f} s after the end")
        result = Result(**said)
        receiver.tell()
        cpu = receiver.told()["cpu"]
        sender.tell()
    if not result.intact:
        raise BenchmarkError(f"{setting.kind} changed what it carried: the hashes differ.")
    return Run(result, cpu)


def _port(description: str) -> int:
    """The port of its candidate on 127.0.0.1. Raises BenchmarkError."""
    found = CANDIDATE.search(description)
    if found is None:
        raise BenchmarkError("A transport offered no address on 127.0.0.1.")
    return int(found.group(2))


def _found_at(descriptions: Sequence[str], ports: Sequence[int | None]) -> list[str]:
    """Descriptions with their one candidate on 127.0.0.1, at another port if one is given."""
    out = []
    for description, port in zip(descriptions, ports, strict=True):
        kept = []
        for line in description.splitlines(keepends=True):
            found = CANDIDATE.match(line)
            if found is not None:
                kept.append(f"{found[1]}127.0.0.1 {port or found[2]}{found[3]}\r\n")
            elif not line.startswith("a=candidate"):
                kept.append(line)
        out.append("".join(kept))
    return out


def _title(link: str, connections: int, options: Options) -> str:
    path = LINKS[link]
    words = "loopback"
    if path is not None:
        words = (
            f"{path['rate'] / MEGABIT:.0f} Mbit/s, {2000 * path['delay']:.0f} ms, "
            f"queue of {1000 * path['queue']:.0f} ms, {100 * path.get('loss', 0.0):.0f} % loss"
        )
    many = f"{connections} connection{'s' if connections > 1 else ''}"
    return f"{link}: {words}; {many}; medians of {options.rounds} rounds of {options.seconds:g} s"


def table(runs: dict[str, list[Run | None]]) -> list[str]:
    """Lines of text, one for each transport that ran. Runs by round; None: it got stuck."""
    lines = [
        f"{'':10}{'MB/s':>8}{'least':>8}{'most':>8}{'× ' + REFERENCE:>10}"
        f"{'idle ms':>9}{'busy ms':>9}{'worst':>8}{'CPU s/MB':>10}"
    ]
    for kind, rounds in runs.items():
        done = [run for run in rounds if run is not None]
        if not done:
            continue
        rates = [run.result.rate / 1e6 for run in done]
        factors = [
            run.result.rate / other.result.rate
            for run, other in zip(rounds, runs.get(REFERENCE, ()), strict=False)
            if run is not None and other is not None
        ]
        factor = f"{statistics.median(factors):.1f}" if factors else ""
        columns = [
            *(f"{statistics.median(rates):8.2f}", f"{min(rates):8.2f}", f"{max(rates):8.2f}"),
            f"{factor:>10}",
            f"{1000 * statistics.median(run.result.idle for run in done):9.2f}",
            f"{1000 * statistics.median(run.result.loaded for run in done):9.2f}",
            f"{1000 * max(run.result.loaded_worst for run in done):8.1f}",
            f"{statistics.median(run.cpu for run in done):10.4f}",
        ]
        lines.append(f"{kind:10}" + "".join(columns))
    return lines
