"""Training a vocabulary: byte-level BPE (Sennrich et al. 2016), as a Hugging Face tokenizer.json.

May import: limits, errors; beside `tokenizer` the only place for `tokenizers`.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2pnode.errors import DataError
from p2pnode.limits import LIMITS

SEPARATOR = "<|endoftext|>"
"""Ends a document; token 0."""
LEAST = 257
"""The separator and every byte."""


def train(texts: Iterable[str], size: int) -> bytes:
    """A tokenizer.json of at most `size` tokens; a short text gives fewer. Raises DataError."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if not LEAST <= size <= LIMITS.vocabulary:
        raise DataError(f"A vocabulary has {LEAST} to {LIMITS.vocabulary} tokens, not {size}.")
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return library.to_str().encode()
