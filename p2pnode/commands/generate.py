"""`generate`: text from a checkpoint, printed as it is made.

May import: train, errors.
"""

from __future__ import annotations

from pathlib import Path

from p2pnode.train.generate import generate as pieces
from p2pnode.train.trained import open_trained


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
    """Print `prompt` and what follows it. Raises CheckpointError, DataError, UsageError and
    NonFiniteError."""
    trained = open_trained(checkpoint)
    text = pieces(
        trained.state,
        trained.tokenizer,
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
