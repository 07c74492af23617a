"""A folder that transformers loads: config.json, model.safetensors and the tokenizer's files.

May import: siblings, train, errors.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2pnode.export import files, llama, safetensors
from p2pnode.export.vocabulary import separator_name, tokenizer_json
from p2pnode.train.layout import layout_of
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
