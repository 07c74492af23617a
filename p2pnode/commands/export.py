"""`export`: a checkpoint written in another tool's format.

May import: export, train.
"""

from __future__ import annotations

from pathlib import Path

from p2pnode.export import gguf, hf, html
from p2pnode.train.trained import open_trained

_WRITERS = {"hf": hf.export, "gguf": gguf.export, "html": html.export}


def export(checkpoint: Path, form: str, out: Path, *, force: bool) -> int:
    """Write `out` and say what was written. Raises CheckpointError, DataError and ExportError."""
    trained = open_trained(checkpoint)
    config = trained.state.config
    print(
        f"{trained.path.name}: step {trained.state.step} of {config.steps}, "
        f"{trained.state.layout.size:,} parameters"
    )
    for path in _WRITERS[form](trained, out, force=force):
        print(f"wrote {path} ({path.stat().st_size:,} bytes)")
    return 0
