"""A GGUF file, which llama.cpp and what is built on it run: float32 weights of architecture llama.

Written by the `gguf` package. Metadata follow llama.cpp's own converter, which takes the same names
from a Hugging Face folder. May import: siblings, train, config, errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from p2pnode.config import ModelConfig
from p2pnode.errors import ExportError
from p2pnode.export import files
from p2pnode.export.vocabulary import ByteLevelBpe, byte_level_bpe, tokenizer_json
from p2pnode.train.layers import NORM_EPS
from p2pnode.train.layout import F32, layout_of
from p2pnode.train.model import ROPE_BASE
from p2pnode.train.trained import Trained

_IN_LAYER = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_OUTSIDE = {"embed": "token_embd.weight", "norm": "output_norm.weight"}
_NO_MERGE = ("\u00fe", "\u00ff")
"""Bytes FE and FF, which no UTF-8 text holds: stands for an empty list, which has no type in GGUF
and which llama.cpp does without in no file."""


def export(trained: Trained, path: Path, *, force: bool) -> list[Path]:
    """Write the file; returns it in a list. Raises ExportError."""
    try:
        import gguf
    except ImportError:
        raise ExportError(
            "Writing GGUF takes the package gguf: pip install 'p2pnode[gguf]', or pip install gguf."
        ) from None
    files.refuse_existing([path], force)
    files.make_folder(path.parent)
    facts = tokenizer_json(trained.tokenizer)
    vocabulary = byte_level_bpe(facts, "GGUF")
    config = trained.state.config
    with files.unfinished(path) as unfinished:
        writer = gguf.GGUFWriter(unfinished, "llama")
        _describe(writer, config.model, gguf.LlamaFileType.ALL_F32)
        _add_vocabulary(writer, vocabulary, config.model.vocab, trained.tokenizer.separator, gguf)
        views = layout_of(config.model).views(trained.state.weights)
        for name, values in views.items():
            writer.add_tensor(_name(name), _arranged(name, values, config.model.heads))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return [path]


def _describe(writer: Any, model: ModelConfig, file_type: int) -> None:
    writer.add_type("model")
    writer.add_name("p2pnode")
    writer.add_file_type(file_type)
    writer.add_vocab_size(model.vocab)
    writer.add_context_length(model.seq_len)
    writer.add_embedding_length(model.width)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.ffn)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_rope_freq_base(float(ROPE_BASE))


def _add_vocabulary(
    writer: Any, vocabulary: ByteLevelBpe, size: int, separator: int, gguf: Any
) -> None:
    """Ids without a token, of a padded vocabulary, get names that no text spells."""
    kinds = gguf.TokenType
    tokens, types = [], []
    for number in range(size):
        tokens.append(vocabulary.tokens.get(number, f"[PAD{number}]"))
        if number in vocabulary.special:
            types.append(kinds.CONTROL)
        else:
            types.append(kinds.NORMAL if number in vocabulary.tokens else kinds.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in vocabulary.merges or (_NO_MERGE,)])
    writer.add_bos_token_id(separator)
    writer.add_eos_token_id(separator)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def _name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, number, part = name.split(".")
    return f"blk.{number}.{_IN_LAYER[part]}.weight"


def _arranged(name: str, values: F32, heads: int) -> F32:
    """llama.cpp rotates the pairs (2i, 2i + 1) of a head, we (i, i + D/2): rows of q and k move."""
    if not name.endswith((".q", ".k")):
        return values
    rows, width = values.shape
    halves = values.reshape(heads, 2, rows // heads // 2, width)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, width)
