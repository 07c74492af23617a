"""How much memory this process took at most, and how much it may still take.

That is what the machine has, and what this process's container leaves.

May import: nothing of ours.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psutil


def peak_rss() -> int:
    """Largest resident memory of this process so far, bytes."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    # Linux's getrusage counts what the program that started this one took, too.
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_memory(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes. `proc`: which control groups this process is in (Linux); `root`: where they are."""
    return min([int(psutil.virtual_memory().available), *_left_by_groups(proc, root)])


def _left_by_groups(proc: Path, root: Path) -> list[int]:
    """What each group with a limit leaves, from the process's own up to the root's. Lines and
    files: cgroups(7), and the kernel's documents on version 2 and on memory in version 1."""
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        return []  # not Linux
    left = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers == "":
            folder, limit, used, cache = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            folder = root / "memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        group = folder / path.lstrip("/")
        # In a container its own group may be shown as the root.
        for place in (group, *group.parents):
            if not place.is_relative_to(folder):
                break
            bound, taken = _number(place / limit), _number(place / used)
            if bound is not None and taken is not None:
                # What it holds of files is given up when memory is wanted.
                left.append(max(0, bound - taken + _reclaimable(place, cache)))
    return left


def _number(path: Path) -> int | None:
    """None: no such file, or `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable(place: Path, key: str) -> int:
    try:
        fields = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
        return int(fields.get(key, 0))
    except (OSError, ValueError):
        return 0
