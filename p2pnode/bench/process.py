"""A child process of a benchmark that speaks JSON, one object a line.

May import: errors.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from p2pnode.errors import BenchmarkError

WAIT_SECONDS = 30.0
"""A child that has not ended by then is killed."""


class Process:
    """A child that speaks JSON lines."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"p2pnode.bench.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, **what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def told(self) -> dict[str, Any]:
        """Raises BenchmarkError if the child ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError("a process of the benchmark ended early; its error is above")
        return dict(json.loads(line))

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
