"""Text to token ids and back: plain bytes, or any Hugging Face `tokenizer.json`.

The file is part of a run's identity (`RunConfig.tokenizer` is its SHA-256), the host sends it to
the members, and beside a checkpoint it lies as `file_name(config.tokenizer)`. What this module
returns depends on the file and the text alone: sampling, truncation, padding and special tokens
written in a text are off. May import: config, limits, errors; the only place for `tokenizers`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2pnode.config import BYTES
from p2pnode.errors import DataError, told
from p2pnode.limits import KIB, LIMITS

Ids = NDArray[np.int32]
"""[n] token ids."""

T = TypeVar("T")

PROBE = (
    "The 3 quick brown foxes didn't jump over 1,024 lazy dogs; they'd rather sleep.\n\n"
    "\tfor (i = 0; i < n; ++i) { s += x[i]; }  \r\n"
    "Grüße, naïve café, Ελλάδα, Москва, 漢字かな交じり文, 한국어, العربية, हिन्दी "
    "e\u0301 \u212b ﬁ ½ \u200d\U0001f469\u200d\U0001f680 <|endoftext|></s>[PAD] 0x7F…"
)
"""Text whose encoding is compared between nodes: versions of the library may differ in it."""

PIECE_CHARS = 64 * KIB
"""Longer texts are encoded in pieces of at most this many characters, cut behind white space: the
library takes some hundred bytes of memory for every token of a call."""

_SEPARATORS = (
    *("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]", "<|im_end|>"),
    "<sep>",
)


class Tokenizer(Protocol):
    """How a run reads text. Made by `byte_tokenizer`, `from_json` or `beside`."""

    @property
    def name(self) -> str:
        """`RunConfig.tokenizer`: `bytes`, or the SHA-256 of the file in hex."""

    @property
    def vocabulary(self) -> int:
        """Ids are below this."""

    @property
    def separator(self) -> int:
        """The id that ends a document."""

    @property
    def file(self) -> bytes:
        """The `tokenizer.json`; empty for bytes."""

    @property
    def sha256(self) -> str:
        """Of the file, hex."""

    def encode(self, text: str) -> Ids:
        """Ids of a text, without any separator. Raises DataError if the tokenizer cannot."""

    def decode(self, ids: Iterable[int]) -> bytes:
        """UTF-8 of the tokens, which may end inside a character; special tokens give nothing.

        Ids without a token (the model's vocabulary may be padded) give nothing either.
        """


class _Bytes:
    """Every byte of the UTF-8 form is a token; byte 0, which no text holds, ends a document."""

    name = BYTES
    vocabulary = 256
    separator = 0
    file = b""
    sha256 = hashlib.sha256(b"").hexdigest()

    def encode(self, text: str) -> Ids:
        raw = text.encode("utf-8", "replace").replace(b"\0", b"")
        return np.frombuffer(raw, np.uint8).astype(np.int32)

    def decode(self, ids: Iterable[int]) -> bytes:
        return bytes(i for i in ids if 0 < i < 256)


class _Library:
    """A `tokenizer.json`, read by the `tokenizers` library."""

    def __init__(self, raw: bytes, library: Any, facts: dict[str, Any]) -> None:
        self.file = raw
        self.sha256 = self.name = hashlib.sha256(raw).hexdigest()
        self._library = library
        by_text: dict[str, int] = library.get_vocab(with_added_tokens=True)
        self.vocabulary = max(by_text.values(), default=-1) + 1
        if not 2 <= self.vocabulary <= LIMITS.vocabulary:
            raise DataError(
                f"The tokenizer has {self.vocabulary} tokens; "
                f"2 to {LIMITS.vocabulary} are possible."
            )
        ends = [by_text[text] for text in _SEPARATORS if text in by_text]
        if not ends:
            raise DataError(
                "The tokenizer has no token that ends a document "
                f"(one of {', '.join(_SEPARATORS)})."
            )
        self.separator = ends[0]
        self._pieces = _pieces(by_text, library, facts)

    def encode(self, text: str) -> Ids:
        clean = text.encode("utf-8", "replace").decode()  # a lone surrogate is no text
        # The call for batches lets other threads run meanwhile; with one piece it starts none.
        parts = (self._encoded(piece) for piece in cut(clean))
        return np.array([i for part in parts for i in part], np.int32)

    def _encoded(self, text: str) -> list[int]:
        encode = self._library.encode_batch_fast
        return list(_guarded(lambda: encode([text], add_special_tokens=False))[0].ids)

    def decode(self, ids: Iterable[int]) -> bytes:
        if self._pieces is not None:
            return b"".join(self._pieces.get(i, b"") for i in ids)
        known = [i for i in ids if 0 <= i < self.vocabulary]
        return str(_guarded(lambda: self._library.decode(known))).encode()


def byte_tokenizer() -> Tokenizer:
    """Bytes as they are: the default."""
    return _Bytes()


def from_json(raw: bytes) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`, which may come from a stranger. Raises DataError."""
    import tokenizers

    if len(raw) > LIMITS.tokenizer_bytes:
        raise DataError(
            f"The tokenizer file has {len(raw)} bytes; at most {LIMITS.tokenizer_bytes} are read."
        )
    try:
        facts = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"The tokenizer file is not JSON: {told(error)}") from None
    model = facts.get("model") if isinstance(facts, dict) else None
    if not isinstance(model, dict):
        raise DataError("The tokenizer file is not a Hugging Face tokenizer.json: it has no model.")
    if model.get("dropout"):
        raise DataError("The tokenizer encodes at random (dropout); remove it from the file.")
    library = _guarded(lambda: tokenizers.Tokenizer.from_buffer(raw))
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True  # written in a document they are text like any other
    return _Library(raw, library, facts)


def open_tokenizer(path: str | None) -> Tokenizer:
    """The tokenizer in a file; None or `bytes` is the byte tokenizer. Raises DataError."""
    if path is None or path == BYTES:
        return byte_tokenizer()
    try:
        with open(path, "rb") as file:
            return from_json(file.read(LIMITS.tokenizer_bytes + 1))
    except OSError as error:
        raise DataError(f"Cannot read the tokenizer {path!r}: {told(error)}") from None


def file_name(name: str) -> str:
    """Where the tokenizer of this name (`RunConfig.tokenizer`) lies in the folder of a run's
    checkpoints: several runs may share the folder."""
    return f"tokenizer-{name[:16]}.json"


def beside(name: str, folder: Path) -> Tokenizer:
    """The tokenizer `name` of a run whose checkpoints lie in `folder`. Raises DataError."""
    if name == BYTES:
        return byte_tokenizer()
    path = folder / file_name(name)
    if not path.exists():
        raise DataError(f"There is no {path}: copy the run's tokenizer file there.")
    tokenizer = open_tokenizer(str(path))
    if tokenizer.name != name:
        raise DataError(f"{path} is not the tokenizer that the checkpoint was trained with.")
    return tokenizer


def probe(tokenizer: Tokenizer) -> str:
    """SHA-256 (hex) of how the probe text is encoded here."""
    return hashlib.sha256(tokenizer.encode(PROBE).astype("<i4").tobytes()).hexdigest()


def padded(vocabulary: int) -> int:
    """Vocabulary of a model: the tokenizer's, rounded up to a multiple of 128, which is what
    kernels work on. No text holds the ids in between."""
    return -(-vocabulary // 128) * 128


def documents(tokenizer: Tokenizer, texts: Sequence[str]) -> Ids:
    """Ids of texts, each ended by the separator."""
    end = np.array([tokenizer.separator], np.int32)
    parts = [part for text in texts for part in (tokenizer.encode(text), end)]
    return np.concatenate([np.zeros(0, np.int32), *parts])


def cut(text: str) -> Iterator[str]:
    """Pieces of at most PIECE_CHARS characters, cut behind the last line end or space where there
    is one; together they are the text."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        stop = start + PIECE_CHARS
        for mark in ("\n", " "):
            if (found := text.rfind(mark, start, stop)) >= 0:
                stop = found + 1
                break
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]


def _guarded(call: Callable[[], T]) -> T:
    """The library's answer. It raises bare Exceptions, and its Rust code may panic, which arrives
    as an exception outside that tree."""
    try:
        return call()
    except Exception as error:
        raise DataError(f"The tokenizer file does not work: {told(error)}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError("The tokenizer file does not work: the library gave up on it.") from None


def _pieces(
    by_text: dict[str, int], library: Any, facts: dict[str, Any]
) -> dict[int, bytes] | None:
    """Bytes of each token, where the kind of tokenizer has such; None if only the library knows
    (pieces of words that depend on their neighbours)."""
    kinds = set(_kinds(facts.get("decoder")))
    if "ByteLevel" in kinds:
        char_bytes = {char: byte for byte, char in byte_level().items()}

        def bytes_of(text: str) -> bytes:
            if all(char in char_bytes for char in text):
                return bytes(char_bytes[char] for char in text)
            return text.encode()

    elif kinds & {"ByteFallback", "Metaspace"}:

        def bytes_of(text: str) -> bytes:
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return bytes.fromhex(text[3:5])
            return text.replace("\u2581", " ").encode()

    else:
        return None
    added = library.get_added_tokens_decoder()
    found = {i: bytes_of(text) for text, i in by_text.items() if i not in added}
    for i, token in added.items():
        found[i] = b"" if token.special else token.content.encode()
    return found


def _kinds(decoder: Any) -> Iterator[str]:
    """Types of a decoder of tokenizer.json and of those it is made of."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders") or ():
            yield from _kinds(part)


def byte_level() -> dict[int, str]:
    """Byte to the printable character that stands for it in byte-level vocabularies (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    rest = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(256 + i) for i, byte in enumerate(rest)}
