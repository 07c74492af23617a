"""The benchmark of the wire: real runs, checked content, the emulated link it names."""

from __future__ import annotations

import dataclasses
import os
import random
import signal

import pytest

from p2pnode import cli
from p2pnode.bench import exchange, wire
from p2pnode.bench.exchange_node import Plan
from p2pnode.bench.path import Path
from p2pnode.bench.peer import Result, Setting
from p2pnode.bench.process import Process
from p2pnode.errors import BenchmarkError, UsageError

QUICK = {"rate": 12.5e6, "delay": 0.01, "queue": 0.1, "loss": 0.01}
SDP = (
    "v=0\r\na=candidate:1 1 udp 5 127.0.0.1 4000 typ host\r\n"
    "a=candidate:2 1 udp 4 ::1 4001 typ host\r\na=end-of-candidates\r\n"
)


def test_a_path_has_the_rate_delay_loss_and_queue_it_was_given():
    chance = random.Random(1)
    path = Path(rate=1000.0, delay=0.5, queue=1.0)
    assert [path.arrivals(100, 0.0, chance) for _ in range(3)] == [
        [0.6],
        [0.7],
        [pytest.approx(0.8)],
    ]
    assert sum(not path.arrivals(100, 0.0, chance) for _ in range(20)) == path.dropped > 10
    assert path.arrivals(100, 9.0, chance) == [pytest.approx(9.6)], "the queue drains"
    lossy = Path(loss=0.25, duplicate=0.5)
    times = [len(lossy.arrivals(100, 0.0, chance)) for _ in range(2000)]
    assert 400 < times.count(0) < 600
    assert 650 < times.count(2) < 850
    late = Path(reorder=1.0, reorder_by=1.0)
    assert late.arrivals(1, 0.0, chance) != late.arrivals(1, 0.0, chance)


@pytest.mark.parametrize(("kind", "link"), [("fast", None), ("tcp", None), ("small", QUICK)])
def test_a_run_is_measured_and_its_hashes_compared(kind: str, link):
    run = wire.measure(Setting(kind, 2 if link is None else 1, 0.4, seed=1), link)
    assert run.result.intact
    assert run.result.nbytes > 1_000_000
    assert run.cpu > 0
    if link is not None:
        assert run.result.idle > 2 * QUICK["delay"]
        assert run.result.rate < QUICK["rate"]


def test_data_that_arrived_changed_is_no_figure(monkeypatch):
    changed = Result(1.0, 10, 0.1, 0.1, 0.1, 1.0, intact=False)
    last = {"send": dataclasses.asdict(changed), "receive": {"cpu": 1.0}}

    class Child:
        def __init__(self, _module: str, role: str, _setting: str) -> None:
            self._says = iter([{"descriptions": [SDP]}, last[role]])

        def tell(self, **_: object) -> None: ...

        def __enter__(self) -> object:
            return self

        def __exit__(self, *_: object) -> None: ...

        def told(self) -> dict:
            return next(self._says)

    monkeypatch.setattr(wire, "Process", Child)
    with pytest.raises(BenchmarkError, match="hashes differ"):
        wire.measure(Setting("fast", 1, 1.0, 1), None)


def test_descriptions_lead_through_the_emulated_link():
    (moved,) = wire._found_at([SDP], [5000])
    assert "127.0.0.1 5000 typ host" in moved
    assert "::1" not in moved
    assert wire._port(moved) == 5000
    assert wire._found_at([SDP], [None])[0].count("127.0.0.1 4000") == 1
    with pytest.raises(BenchmarkError, match="no address"):
        wire._port("v=0\r\n")


def test_factors_are_taken_within_rounds():
    def run(rate: float) -> wire.Run:
        return wire.Run(Result(rate * 1e6, 1_000_000, 0.001, 0.002, 0.003, 0.5, intact=True), 0.5)

    lines = wire.table({"fast": [run(20), run(90)], "aiortc": [run(2), run(3)]})
    assert lines[1].split()[:5] == ["fast", "55.00", "20.00", "90.00", "20.0"]
    assert lines[1].split()[-1] == "1.0000"


def test_an_exchange_ends_with_the_sum_at_every_node():
    assert exchange.measure([Plan("fast", True, me, 3, 20_001) for me in range(3)]) > 0


def test_a_process_that_dies_is_said_so():
    with pytest.raises(BenchmarkError, match="ended early"):
        exchange.measure([Plan("no such kind", True, me, 2, 10) for me in range(2)])


def test_an_interrupted_benchmark_leaves_no_process():
    child = Process("shim")
    assert child._process.poll() is None
    if os.name != "nt":
        assert os.getsid(child._process.pid) != os.getsid(0), "Ctrl-C is not for the child"
    with pytest.raises(KeyboardInterrupt), child:
        raise KeyboardInterrupt
    code = child._process.returncode
    assert code == (1 if os.name == "nt" else -signal.SIGKILL), "it was not waited for"


def test_the_command_line_names_what_there_is(monkeypatch, capsys):
    asked: list = []
    monkeypatch.setattr(wire, "bench", asked.append)
    assert cli.main(["bench", "wire", "--links", "all", "--against", "none"]) == 0
    assert asked[0].kinds == ("fast",)
    assert asked[0].links == tuple(wire.LINKS)
    assert cli.main(["bench", "wire", "--against", "pigeons"]) == UsageError.exit_code
    assert "pigeons" in capsys.readouterr().err
    assert cli.main(["bench", "exchange", "--nodes", "1"]) == UsageError.exit_code
