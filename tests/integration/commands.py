"""The command line, run to its end, and what it leaves behind."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CODE = "a-room-code-of-our-own-93417562-long-enough"

STEPS = 60
"""Of most runs. A test that needs one to last until something happens sets the pace
(processes.Pace)."""

SECONDS = 600.0
"""Far more than any of these runs takes, also if it compiles the kernels on a machine that has much
else to do; a hang fails instead of blocking the suite."""


def run_cli(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m p2pnode …` to its end."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("P2PNODE_")}
    return subprocess.run(
        [sys.executable, "-m", "p2pnode", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=ROOT,
        env=clean | (env or {}),
        check=False,
    )


class Demo:
    """Outcome of one `demo --json`."""

    def __init__(self, out: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        out = out / "demo"
        result = run_cli(
            "demo", "--json", "--out", str(out), "--steps", str(STEPS), *arguments, env=env
        )
        assert result.returncode == 0, result.stderr + _logs(out)
        self.outcome: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        self.said = result.stderr
        self.out = out

    @property
    def hashes(self) -> dict[str, str]:
        return self.outcome["hashes"]

    def files(self) -> set[bytes]:
        """Distinct contents of the final checkpoints of all nodes that finished."""
        return {
            path.read_bytes() for path in self.out.glob(f"node-*/*-step-{STEPS:08d}.safetensors")
        }

    def ledgers(self) -> set[bytes]:
        """Distinct ledgers of all nodes that finished."""
        return {
            path.read_bytes()
            for name in self.hashes
            for path in (self.out / name).glob("run-*.ledger")
        }

    def holds(self, paths: Iterable[str]) -> bool:
        """Whether each file is, byte for byte, a final checkpoint of this demo."""
        return all(Path(path).read_bytes() in self.files() for path in paths)


def _logs(out: Path) -> str:
    return "".join(f"\n--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(out.glob("*.log")))
