"""Small models for the tests of exports."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from p2pnode.config import PRESETS
from p2pnode.train import codec
from p2pnode.train.checkpoint import file_name
from p2pnode.train.tokenizer import byte_tokenizer, from_json, padded
from p2pnode.train.tokenizer import file_name as tokenizer_name
from p2pnode.train.trained import Trained
from p2pnode.train.update import initial_state
from tests.train.helpers import MICRO, micro_config, trained_like
from tests.train.tokenizers import bpe, sentencepiece

# These are ten times the size of everything else together: who wants the comparison installs the
# extra `readers` (docs/USE.md).
collect_ignore = [
    test
    for test, library in (
        ("test_transformers.py", "transformers"),
        ("test_llama_cpp.py", "xllamacpp"),
    )
    if importlib.util.find_spec(library) is None
]

FILES = {"bytes": b"", "bpe": bpe(), "sentencepiece": sentencepiece()}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Trained]:
    """A small trained model with a tokenizer of this kind; its files lie in `tmp_path / run`."""

    def make(kind: str = "bytes", seed: int = 1, shape: str = "micro") -> Trained:
        tokenizer = from_json(FILES[kind]) if FILES[kind] else byte_tokenizer()
        model = MICRO if shape == "micro" else PRESETS[shape].model
        model = msgspec.structs.replace(model, vocab=padded(tokenizer.vocabulary))
        config = micro_config(model=model, tokenizer=tokenizer.name)
        state = dataclasses.replace(initial_state(config), weights=trained_like(model, seed))
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        path = folder / file_name(config.run_id(), state.step)
        path.write_bytes(codec.encode(state))
        if tokenizer.file:
            (folder / tokenizer_name(tokenizer.name)).write_bytes(tokenizer.file)
        return Trained(state, tokenizer, path)

    return make
