"""The run's tokenizer as other tools read it: a tokenizer.json, and what its parts are.

May import: train.tokenizer, errors.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from p2pnode.errors import ExportError
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


@dataclasses.dataclass(frozen=True)
class ByteLevelBpe:
    """A vocabulary of byte strings, written in GPT-2's alphabet, and the pairs that are joined."""

    tokens: dict[int, str]
    """Id to written form, ids in ascending order; special ones as they are."""
    special: frozenset[int]
    merges: tuple[tuple[str, str], ...]
    """Pairs of written forms, the first to be joined first."""


def byte_level_bpe(facts: dict[str, Any], form: str) -> ByteLevelBpe:
    """The parts of a tokenizer.json of the kind that most other programs can carry out: byte-level
    BPE on words as GPT-2 cuts them. Raises ExportError, which names `form`, for all others."""
    model, added = facts["model"], facts.get("added_tokens") or []
    merges = tuple(
        (first, second)
        for first, second in (
            pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", ())
        )
    )
    plain = {name: model.get(name) for name in _UNUSUAL if model.get(name)}
    if (
        model.get("type") != "BPE"
        or plain
        or facts.get("normalizer") is not None
        or not _cuts_like_gpt2(facts.get("pre_tokenizer"), bool(merges))
        or not all(token["special"] for token in added)
    ):
        raise ExportError(
            f"{form} takes bytes or a byte-level BPE as `p2pnode tokenizer train` makes it; this "
            f"model's tokenizer is another kind ({model.get('type')}). Export it with --to hf."
        )
    special = frozenset(token["id"] for token in added)
    return ByteLevelBpe(token_names(facts), special, merges)


_UNUSUAL = (
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
    "unk_token",
)
"""Settings of a BPE that change what it does."""


def _cuts_like_gpt2(pre_tokenizer: Any, joins: bool) -> bool:
    """Where nothing is joined it does not matter how a text is cut."""
    return (
        isinstance(pre_tokenizer, dict)
        and pre_tokenizer.get("type") == "ByteLevel"
        and not pre_tokenizer.get("add_prefix_space", True)
        and (pre_tokenizer.get("use_regex", True) or not joins)
    )


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
