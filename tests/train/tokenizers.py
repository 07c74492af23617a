"""Small tokenizer files for tests, made by the library itself."""

import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

TEXT = [
    "The river ran past the old mill, and the miller counted his sacks.",
    "Nobody in the village had seen the mill stand still before.",
    "Grüße aus dem Tal: the children's kite rose over the river.",
] * 20


def bpe(size: int = 400, texts: list[str] = TEXT) -> bytes:
    """A byte-level BPE of at most `size` tokens, `<|endoftext|>` the first."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return library.to_str().encode()


def sentencepiece() -> bytes:
    """A unigram model with byte fallback and the metaspace, as many published models have."""
    spoken = [("<unk>", 0.0), ("</s>", 0.0), *((f"<0x{i:02X}>", -20.0) for i in range(256))]
    words = [("\u2581the", -1.0), ("\u2581mill", -2.0), ("\u2581", -3.0)]
    letters = [(chr(97 + i), -5.0) for i in range(26)]
    library = tokenizers.Tokenizer(
        models.Unigram([*spoken, *words, *letters], unk_id=0, byte_fallback=True)
    )
    library.add_special_tokens(["<unk>", "</s>"])
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return library.to_str().encode()


def changed(raw: bytes, **parts: Any) -> bytes:
    """The file with other top-level parts."""
    return json.dumps(json.loads(raw) | parts).encode()
