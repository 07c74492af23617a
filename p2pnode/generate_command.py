"""`generate`: text from a checkpoint, printed as it is made.

May import: train, errors.
"""

from __future__ import annotations

from pathlib import Path

from p2pnode.errors import CheckpointError
from p2pnode.train.checkpoint import CheckpointFolder, load
from p2pnode.train.generate import generate as pieces
from p2pnode.train.state import State


def generate(
    checkpoint: Path,
    *,
    prompt: str,
    tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    reference: bool,
) -> int:
    """Print `prompt` and what follows it. Raises CheckpointError and UsageError."""
    state = _open(checkpoint)
    text = pieces(
        state,
        prompt,
        max_new=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        reference=reference,
    )
    print(prompt, end="", flush=True)
    for piece in text:
        print(piece, end="", flush=True)
    print()
    return 0


def _open(path: Path) -> State:
    if not path.is_dir():
        return load(path)
    found = CheckpointFolder(path).newest()
    if found is None:
        raise CheckpointError(f"{path} holds no checkpoint of p2pnode")
    return found[1]
