"""Where a file lies that somebody looked for one or two folders too high.

May import: nothing of ours.
"""

from __future__ import annotations

from pathlib import Path


def found_below(folder: Path, pattern: str) -> str:
    """`; FOLDER does` for the first folder, at most two below `folder`, that holds such a file;
    else empty. The end of a sentence that says that `folder` itself does not."""
    for where in ("*", "*/*"):
        if found := sorted(folder.glob(f"{where}/{pattern}")):
            return f"; {found[0].parent} does"
    return ""
