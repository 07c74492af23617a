"""The run's tokenizer as other tools read it: a tokenizer.json, and what its parts are.

May import: train.tokenizer, errors.
"""

from __future__ import annotations

import json
from typing import Any

from p2pnode.train.tokenizer import Tokenizer, byte_level

SEPARATOR = "<|endoftext|>"
"""How the byte tokenizer's separator (byte 0, which no text holds) is written in other tools."""


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of a tokenizer.json whose encodings begin with the separator, as the texts that
    the model was trained on do. Bytes become a byte-level BPE without merges."""
    facts = json.loads(tokenizer.file) if tokenizer.file else _bytes_json()
    name = separator_name(facts, tokenizer.separator)
    added = facts.get("added_tokens") or []
    if all(token["id"] != tokenizer.separator for token in added):
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added.append({"id": tokenizer.separator, "content": name, "special": True, **plain})
    begin = {"SpecialToken": {"id": name, "type_id": 0}}
    first, second = ({"Sequence": {"id": text, "type_id": 0}} for text in "AB")
    post_processor = {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, second],
        "special_tokens": {name: {"id": name, "ids": [tokenizer.separator], "tokens": [name]}},
    }
    return facts | {"added_tokens": added, "post_processor": post_processor}


def separator_name(facts: dict[str, Any], separator: int) -> str:
    """How the separator of a tokenizer.json is written."""
    return token_names(facts)[separator]


def token_names(facts: dict[str, Any]) -> dict[int, str]:
    """Id to written form of every token of a tokenizer.json, ids in ascending order."""
    vocabulary = facts["model"]["vocab"]
    if isinstance(vocabulary, dict):
        names = {number: name for name, number in vocabulary.items()}
    else:  # Unigram: a list of [name, score]
        names = {number: name for number, (name, _) in enumerate(vocabulary)}
    names |= {token["id"]: token["content"] for token in facts.get("added_tokens") or []}
    return dict(sorted(names.items()))


def _bytes_json() -> dict[str, Any]:
    table = byte_level() | {0: SEPARATOR}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": False},
        "post_processor": None,
        "decoder": level | {"use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {table[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }
