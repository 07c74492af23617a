"""A model as people name it: a checkpoint file, or a folder whose newest one is meant.

May import: below, checkpoint, state, tokenizer, errors.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from p2pnode.errors import CheckpointError
from p2pnode.train import tokenizer as tokenizers
from p2pnode.train.below import found_below
from p2pnode.train.checkpoint import CheckpointFolder, load
from p2pnode.train.state import State
from p2pnode.train.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Trained:
    """A state, the tokenizer it was trained with, and the file it came from."""

    state: State
    tokenizer: Tokenizer
    path: Path


def open_trained(path: Path) -> Trained:
    """The checkpoint at `path` and, from its folder, the tokenizer. Raises CheckpointError and
    DataError."""
    if path.is_dir():
        found = CheckpointFolder(path).newest()
        if found is None:
            below = found_below(path, "run-*-step-*.safetensors")
            raise CheckpointError(f"{path} holds no checkpoint of p2pnode{below}.")
        path, state = found
    else:
        state = load(path)
    return Trained(state, tokenizers.beside(state.config.tokenizer, path.parent), path)
