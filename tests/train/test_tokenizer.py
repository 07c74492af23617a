"""Text to ids and back, and files that are no tokenizer."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from p2pnode.errors import DataError
from p2pnode.limits import LIMITS
from p2pnode.train import tokenizer
from p2pnode.train.tokenizer import beside, byte_tokenizer, cut, from_json, open_tokenizer
from tests.train.tokenizers import bpe, changed, sentencepiece

BPE = bpe()
SAMPLES = [
    "",
    "the mill",
    tokenizer.PROBE,
    "\U0001f468\u200d\U0001f469 漢字 \x1b[2J \u202e\ufeff",
    "<|endoftext|> and </s> [PAD]",
]


@pytest.mark.parametrize("text", SAMPLES)
def test_bytes_are_their_own_ids(text: str) -> None:
    bytes_ = byte_tokenizer()
    ids = bytes_.encode(text)
    assert ids.dtype == np.int32
    assert ids.tobytes() == np.array(list(text.encode()), np.int32).tobytes()
    assert bytes_.decode(ids) == text.encode()
    assert (bytes_.name, bytes_.vocabulary, bytes_.separator, bytes_.file) == ("bytes", 256, 0, b"")


def test_no_text_holds_the_separator() -> None:
    assert 0 not in byte_tokenizer().encode("a\0b")


@pytest.mark.parametrize("text", SAMPLES)
def test_a_file_gives_text_back_to_the_byte(text: str) -> None:
    library = from_json(BPE)
    ids = library.encode(text)
    assert ids.dtype == np.int32
    assert library.decode(ids) == text.encode()
    assert library.separator not in ids, "what looks like a special token is text"
    assert len(library.name) == 64
    assert library.name == library.sha256


def test_tokens_may_end_inside_a_character() -> None:
    library = from_json(BPE)
    ids = library.encode("漢")
    assert len(ids) == 3
    assert [library.decode([i]) for i in ids] == [bytes([b]) for b in "漢".encode()]


def test_separators_and_ids_without_a_token_give_nothing() -> None:
    library = from_json(BPE)
    assert library.decode([library.separator, 100_000, -1]) == b""
    assert byte_tokenizer().decode([0, 256, -1]) == b""


def test_bytes_of_a_metaspace_vocabulary() -> None:
    library = from_json(sentencepiece())
    assert library.decode(library.encode("the mill é")) == " the mill é".encode()
    assert library.separator == 1


def test_long_texts_are_cut_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "PIECE_CHARS", 8)
    assert list(cut("ab\ncd efgh")) == ["ab\n", "cd efgh"]
    assert list(cut("abcd efghijklmnopq r")) == ["abcd ", "efghijkl", "mnopq r"]
    text = "the mill\nand the river " * 9
    assert "".join(cut(text)) == text
    assert max(map(len, cut(text))) <= 8
    library = from_json(BPE)
    assert library.decode(library.encode(text)) == text.encode()


def test_settings_of_the_file_that_would_change_the_text_are_off() -> None:
    plain = from_json(BPE).encode(tokenizer.PROBE)
    cutting = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    filling = {
        "strategy": {"Fixed": 512},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    other = from_json(changed(BPE, truncation=cutting, padding=filling))
    assert other.encode(tokenizer.PROBE).tolist() == plain.tolist()


def test_probes_differ_with_the_encoding() -> None:
    assert tokenizer.probe(from_json(BPE)) == tokenizer.probe(from_json(BPE))
    assert tokenizer.probe(from_json(BPE)) != tokenizer.probe(from_json(bpe(300)))


def test_documents_end_with_the_separator() -> None:
    ids = tokenizer.documents(byte_tokenizer(), ["ab", "", "c"])
    assert ids.tolist() == [97, 98, 0, 0, 99, 0]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no model"),
        (b'{"model": 7}', "no model"),
        (b'{"model": {"type": "BPE"}}', "does not work"),
        (changed(BPE, model=json.loads(BPE)["model"] | {"dropout": 0.1}), "at random"),
        (
            changed(BPE, model={"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}),
            "",
        ),
        (bpe().replace(b"<|endoftext|>", b"<|something|>"), "no token that ends a document"),
        (b" " * (LIMITS.tokenizer_bytes + 1), "at most"),
        (
            changed(
                BPE,
                added_tokens=[],
                model={"type": "WordLevel", "vocab": {"a": 0, "</s>": 200_000}, "unk_token": "a"},
            ),
            "200001 tokens",
        ),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_with_a_sentence(raw: bytes, reason: str) -> None:
    if not reason:
        assert from_json(raw).vocabulary == 3  # the added token comes on top
        return
    with pytest.raises(DataError, match=reason):
        from_json(raw)


def test_a_panic_of_the_library_is_an_error_of_the_file() -> None:
    class PanicException(BaseException):
        pass

    def give_up() -> None:
        raise PanicException

    with pytest.raises(DataError, match="gave up"):
        tokenizer._guarded(give_up)
    with pytest.raises(KeyboardInterrupt):
        tokenizer._guarded(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_the_file_lies_beside_the_checkpoints(tmp_path: Path) -> None:
    library = from_json(BPE)
    with pytest.raises(DataError, match="copy the run's tokenizer file"):
        beside(library.name, tmp_path)
    path = tmp_path / tokenizer.file_name(library.name)
    path.write_bytes(BPE)
    assert beside(library.name, tmp_path).file == BPE
    assert beside("bytes", tmp_path).name == "bytes"
    path.write_bytes(bpe(300))
    with pytest.raises(DataError, match="is not the tokenizer"):
        beside(library.name, tmp_path)


def test_opening(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(BPE)
    assert open_tokenizer(str(tmp_path / "t.json")).file == BPE
    assert open_tokenizer(None).name == open_tokenizer("bytes").name == "bytes"
    with pytest.raises(DataError, match="Cannot read"):
        open_tokenizer(str(tmp_path / "none.json"))


def test_the_padded_vocabulary() -> None:
    assert [tokenizer.padded(n) for n in (256, 257, 16_385)] == [256, 384, 16_512]


def test_bytes_need_no_library() -> None:
    """A run on bytes must not pay for the library's import."""
    code = "import sys, p2pnode.train.data; print('tokenizers' in sys.modules)"
    import subprocess

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
