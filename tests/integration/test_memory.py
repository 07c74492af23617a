"""Memory stays flat over a long run."""

import json
import re
import statistics
from pathlib import Path

from p2pnode.train.footprint import footprint
from tests.integration.commands import Demo, run_cli
from tests.train.helpers import run_config

STEPS = 500


def test_a_node_takes_no_more_than_it_said(undisturbed: Demo) -> None:
    said = footprint(run_config("nano"), 0).total / 2**20
    peak = undisturbed.outcome["peak_rss_mb"]
    assert said / 2 < peak < said * 1.15, f"said {said:.0f} MiB, took {peak:.0f} MiB"


def test_memory_for_compiling_is_told_once(tmp_path: Path) -> None:
    """Twice the same, with a cache that is empty at first."""
    alone = ("--start-when", "1", "--approve", "all", "--addresses", "loopback")
    run = ("--preset", "nano", "--steps", "2", "--eval-every", "0")
    told = []
    for turn in ("cold", "warm"):
        result = run_cli(
            *("join", "--serve", "--port", "0", *alone, *run),
            *("--home", str(tmp_path / "home"), "--out", str(tmp_path / turn)),
            env={"NUMBA_CACHE_DIR": str(tmp_path)},
        )
        assert result.returncode == 0, result.stderr
        said, taken = (
            int("".join(re.findall(pattern, result.stdout)).replace(",", ""))
            for pattern in (r"Takes up to ([\d,]+) MB", r"peak memory ([\d,]+) MB")
        )
        assert said / 2 < taken < said * 1.15
        told.append("compiling the kernels, this once" in result.stdout)
    assert told == [True, False]


def test_memory_is_flat_over_500_steps(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = run_cli("demo", "--nodes", "2", "--steps", str(STEPS), "--out", str(out))
    assert result.returncode == 0, result.stderr
    logs = sorted(out.glob("node-*/events.jsonl"))
    assert len(logs) == 2
    for log in logs:
        events = [json.loads(line) for line in log.read_text().splitlines()]
        sizes = {e["step"]: e["rss_mb"] for e in events if e["event"] == "step"}
        assert len(sizes) == STEPS
        early = statistics.median(sizes[step] for step in range(100, 150))
        late = statistics.median(sizes[step] for step in range(STEPS - 50, STEPS))
        # A leak of one gradient of 190 KiB per step would add 70 MiB.
        assert late - early < 4, f"{log}: {early} MiB at step 100, {late} MiB at step {STEPS}"
