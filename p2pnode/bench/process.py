"""A child process of a benchmark that speaks JSON, one object a line.

May import: errors.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

from p2pnode.errors import BenchmarkError

WAIT_SECONDS = 30.0
"""A child that has not ended by then is killed."""


class Process:
    """A child that speaks JSON lines. Use as a context manager: its end ends the child."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"p2pnode.bench.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for us; it ends the child by `__exit__`
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
            raise BenchmarkError("A process of the benchmark ended early; its error is above.")
        return dict(json.loads(line))

    def __enter__(self) -> Process:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Wait for it; after an error it is not waited for."""
        assert self._process.stdin is not None
        if error is not None:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
