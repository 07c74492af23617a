"""No decision depends on the wall clock, which jumps."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    p for name in ("p2pnode", "signaling", "kernels") for p in (ROOT / name).rglob("*.py")
)
WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today", "time.ctime"}


EXEMPT = {"signaling/turn.py"}  # what TURN servers take for credentials names a time of day


def wall_clock_calls(source: str) -> set[str]:
    """Calls that ask for the time of day; also where a name of `time` is imported alone."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            found |= {wall for wall in WALL if name == wall or name.endswith(f".{wall}")}
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {f"time.{alias.name}" for alias in node.names} & WALL
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_reads_the_wall_clock(path: Path) -> None:
    exempt = path.relative_to(ROOT).as_posix() in EXEMPT
    assert bool(wall_clock_calls(path.read_text(encoding="utf-8"))) == exempt


@pytest.mark.parametrize(
    "source", ["time.time()", "from time import time", "datetime.datetime.now()", "x = time.time"]
)
def test_the_check_sees_it(source: str) -> None:
    assert wall_clock_calls(source)


def test_other_clocks_are_allowed() -> None:
    assert not wall_clock_calls("time.monotonic(); from time import monotonic; loop.time()")
