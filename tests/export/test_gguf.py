"""The GGUF file, read back by the package whose format it is."""

from __future__ import annotations

import sys

import gguf as library
import numpy as np
import pytest

from p2pnode import cli
from p2pnode.errors import ExportError
from p2pnode.export import gguf
from p2pnode.export.vocabulary import byte_level_bpe, tokenizer_json
from p2pnode.train.tokenizer import from_json
from tests.export.conftest import FILES
from tests.train.tokenizers import changed


def contents(reader):
    return {name: field.contents() for name, field in reader.fields.items()}


def test_its_metadata_are_complete(make, tmp_path):
    trained = make()
    gguf.export(trained, tmp_path / "m.gguf", force=False)
    said = contents(library.GGUFReader(tmp_path / "m.gguf"))
    model = trained.state.config.model
    expected = {
        "general.architecture": "llama",
        "general.file_type": 0,
        "llama.context_length": model.seq_len,
        "llama.embedding_length": model.width,
        "llama.block_count": model.layers,
        "llama.feed_forward_length": model.ffn,
        "llama.attention.head_count": model.heads,
        "llama.attention.head_count_kv": model.heads,
        "llama.rope.dimension_count": model.head_dim,
        "llama.rope.freq_base": 10_000.0,
        "llama.vocab_size": model.vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }
    assert {name: said[name] for name in expected} == expected
    assert said["llama.attention.layer_norm_rms_epsilon"] == np.float32(1e-5)


def test_its_vocabulary_is_the_tokenizers_and_padded(make, tmp_path):
    trained = make("bpe")
    gguf.export(trained, tmp_path / "m.gguf", force=False)
    said = contents(library.GGUFReader(tmp_path / "m.gguf"))
    tokens, types = said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"]
    vocab, used = trained.state.config.model.vocab, trained.tokenizer.vocabulary
    assert len(tokens) == len(types) == vocab > used
    assert tokens[trained.tokenizer.separator] == "<|endoftext|>"
    assert types[trained.tokenizer.separator] == library.TokenType.CONTROL
    assert set(types[1:used]) == {library.TokenType.NORMAL}
    assert set(types[used:]) == {library.TokenType.UNUSED}
    assert len(set(tokens)) == vocab
    # Joining pairs by these merges gives the tokens themselves.
    merges = [pair.split(" ") for pair in said["tokenizer.ggml.merges"]]
    assert {a + b for a, b in merges} == {t for t in tokens[1:used] if len(t) > 1}


def test_its_tensors_are_the_weights(make, tmp_path):
    trained = make()
    gguf.export(trained, tmp_path / "m.gguf", force=False)
    tensors = {t.name: t.data for t in library.GGUFReader(tmp_path / "m.gguf").tensors}
    views = trained.state.layout.views(trained.state.weights)
    assert len(tensors) == len(views)
    assert np.array_equal(tensors["token_embd.weight"], views["embed"])
    assert np.array_equal(tensors["output_norm.weight"], views["norm"])
    for ours, theirs in (("v", "attn_v"), ("o", "attn_output"), ("down", "ffn_down")):
        assert np.array_equal(tensors[f"blk.1.{theirs}.weight"], views[f"layers.1.{ours}"])
    # Channel pairs (i, i + D/2) of a head come to lie beside each other.
    dim = trained.state.config.model.head_dim
    q, moved = views["layers.0.q"], tensors["blk.0.attn_q.weight"]
    for head in range(trained.state.config.model.heads):
        for i in range(dim // 2):
            assert np.array_equal(moved[head * dim + 2 * i], q[head * dim + i])
            assert np.array_equal(moved[head * dim + 2 * i + 1], q[head * dim + i + dim // 2])


def test_other_kinds_of_tokenizers_are_refused(make, tmp_path):
    with pytest.raises(ExportError, match=r"Unigram.*--to hf"):
        gguf.export(make("sentencepiece"), tmp_path / "m.gguf", force=False)
    assert not list(tmp_path.glob("*.gguf*"))


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}},
        {"pre_tokenizer": None},
    ],
)
def test_tokenizers_that_do_more_are_refused(parts):
    raw = FILES["bpe"]
    byte_level_bpe(tokenizer_json(from_json(raw)), "GGUF")
    parts = {k: v and {"trim_offsets": True} | v for k, v in parts.items()}
    with pytest.raises(ExportError, match="GGUF takes"):
        byte_level_bpe(tokenizer_json(from_json(changed(raw, **parts))), "GGUF")


def test_the_command(make, tmp_path, capsys, monkeypatch):
    trained = make()
    out = tmp_path / "new" / "m.gguf"
    command = ["export", str(trained.path), "--to", "gguf", str(out)]
    assert cli.main(command) == 0
    assert cli.main(command) == 17
    assert cli.main([*command, "--force"]) == 0
    assert [p.name for p in out.parent.iterdir()] == ["m.gguf"]
    assert cli.main(["export", str(trained.path), "--to", "gguf", str(out.parent)]) == 17
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert cli.main([*command, "--force"]) == 17
    assert "pip install" in capsys.readouterr().err
