"""A folder that transformers loads: config.json, model.safetensors and the tokenizer's files.

Written, and read again by `--init`. May import: siblings, train, config, limits, errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from p2pnode.config import ModelConfig
from p2pnode.errors import DataError, ExportError, told
from p2pnode.export import files, llama, safetensors
from p2pnode.export.vocabulary import separator_name, tokenizer_json
from p2pnode.limits import LIMITS
from p2pnode.train.layout import F32, layout_of
from p2pnode.train.tokenizer import Tokenizer, from_json, probe
from p2pnode.train.trained import Trained

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
_NAMES = (WEIGHTS, "generation_config.json", "tokenizer.json", "tokenizer_config.json", CONFIG)


def export(trained: Trained, folder: Path, *, force: bool) -> list[Path]:
    """Write the folder; returns its files. Raises ExportError.

    config.json is taken away first and written last: a folder without it is unfinished.
    """
    files.make_folder(folder)
    paths = {name: folder / name for name in _NAMES}
    files.refuse_existing(paths.values(), force)
    files.remove(paths[CONFIG])
    model = trained.state.config.model
    views = layout_of(model).views(trained.state.weights)
    tensors = {theirs: views[ours] for ours, theirs in llama.names(model).items()}
    files.write(paths[WEIGHTS], safetensors.parts(tensors))
    for name, content in _texts(trained).items():
        files.write(paths[name], [msgspec.json.format(msgspec.json.encode(content)) + b"\n"])
    return list(paths.values())


def _texts(trained: Trained) -> dict[str, object]:
    model, tokenizer = trained.state.config.model, trained.tokenizer
    facts = tokenizer_json(tokenizer)
    separator = separator_name(facts, tokenizer.separator)
    return {
        "generation_config.json": {
            "bos_token_id": tokenizer.separator,
            "eos_token_id": tokenizer.separator,
            "pad_token_id": tokenizer.separator,
        },
        "tokenizer.json": facts,
        "tokenizer_config.json": {
            "bos_token": separator,
            "eos_token": separator,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.seq_len,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        CONFIG: llama.config_json(model, tokenizer),
    }


def load(folder: Path, model: ModelConfig, tokenizer: Tokenizer) -> F32:
    """The weights of such a folder, flat float32 [P], in our layout. Raises ExportError unless it
    holds this model and, if it has a tokenizer, this one; nothing in it is run."""
    _compare_shape(folder / CONFIG, llama.shape_fields(model))
    _compare_tokenizer(folder / "tokenizer.json", tokenizer)
    layout = layout_of(model)
    names = llama.names(model)
    shapes = {names[t.name]: t.shape for t in layout.tensors}
    tensors = safetensors.read(folder / WEIGHTS, shapes)
    flat = np.concatenate([tensors[names[t.name]].reshape(-1) for t in layout.tensors])
    if not np.isfinite(flat).all():
        raise ExportError(f"{folder / WEIGHTS} holds a weight that is NaN or infinite.")
    return flat


def _compare_shape(path: Path, wanted: dict[str, object]) -> None:
    said = _json(path)
    # transformers writes what it has read of the rotary base elsewhere.
    rope = said.get("rope_parameters") or {"rope_type": "default"}
    if isinstance(rope, dict) and rope.get("rope_type") == "default":
        said.setdefault("rope_theta", rope.get("rope_theta"))
    else:
        raise ExportError(f"{path}: its rotary positions are scaled; ours are not.")
    for field, value in wanted.items():
        if said.get(field) != value:
            raise ExportError(
                f"{path} has {field} {ascii(said.get(field))[:40]}, the run has {value}: give the "
                "run the model's shape (--preset, --width, --layers, --heads, --ffn, --seq-len) "
                "and vocabulary (--tokenizer)."
            )


def _compare_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    if not path.exists():
        return
    try:
        theirs = from_json(path.read_bytes())
    except (OSError, DataError) as error:
        raise ExportError(f"{path} cannot be read: {told(error)}") from None
    if theirs.separator != tokenizer.separator or probe(theirs) != probe(tokenizer):
        raise ExportError(f"{path} encodes text otherwise than the run's tokenizer.")


def _json(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            said = msgspec.json.decode(file.read(LIMITS.checkpoint_header_bytes))
    except OSError as error:
        raise ExportError(f"Cannot read {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, RecursionError):
        raise ExportError(f"{path} is not JSON.") from None
    if not isinstance(said, dict):
        raise ExportError(f"{path} does not describe a model.")
    return said
