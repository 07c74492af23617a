"""The folder for transformers: what is in it, read by the libraries whose formats these are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from p2pnode import cli
from p2pnode.errors import ExportError
from p2pnode.export import files, hf
from p2pnode.train.layout import layout_of
from tests.export.conftest import FILES

TEXTS = ["the mill", " Grüße aus dem Tal\n\n", "a  b\t<|endoftext|>?"]


def test_the_weights_are_those_of_the_checkpoint(make, tmp_path):
    trained = make()
    hf.export(trained, tmp_path / "out", force=False)
    tensors = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    views = layout_of(trained.state.config.model).views(trained.state.weights)
    assert len(tensors) == len(views)
    assert np.array_equal(tensors["model.embed_tokens.weight"], views["embed"])
    assert np.array_equal(tensors["model.norm.weight"], views["norm"])
    for ours, theirs in (
        ("attn_norm", "input_layernorm"),
        ("q", "self_attn.q_proj"),
        ("o", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("gate", "mlp.gate_proj"),
        ("up", "mlp.up_proj"),
        ("down", "mlp.down_proj"),
    ):
        assert np.array_equal(tensors[f"model.layers.1.{theirs}.weight"], views[f"layers.1.{ours}"])


def test_the_configuration_says_what_is_computed(make, tmp_path):
    trained = make("bpe")
    hf.export(trained, tmp_path / "out", force=False)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    model = trained.state.config.model
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == model.vocab
    assert (config["hidden_size"], config["intermediate_size"]) == (model.width, model.ffn)
    assert config["num_key_value_heads"] == config["num_attention_heads"] == model.heads
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 10_000.0)
    assert config["tie_word_embeddings"] is True
    assert config["bos_token_id"] == config["eos_token_id"] == trained.tokenizer.separator


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_encodes_as_ours_and_begins_a_document(make, tmp_path, kind, text):
    trained = make(kind)
    hf.export(trained, tmp_path / "out", force=False)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    library.encode_special_tokens = True
    ids = library.encode(text).ids
    assert ids == [trained.tokenizer.separator, *trained.tokenizer.encode(text).tolist()]
    if kind != "sentencepiece":  # which puts a space before the text
        assert library.decode(ids) == text
    named = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"]
    assert library.token_to_id(named) == trained.tokenizer.separator


def test_nothing_is_replaced_unless_it_is_wanted(make, tmp_path):
    out = tmp_path / "out"
    hf.export(make(), out, force=False)
    before = (out / "model.safetensors").read_bytes()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="--force"):
        hf.export(make(seed=2), out, force=False)
    assert (out / "model.safetensors").read_bytes() == before
    hf.export(make(seed=2), out, force=True)
    assert (out / "model.safetensors").read_bytes() != before
    assert (out / "notes.txt").read_text() == "mine"
    assert not [name for name in os.listdir(out) if name.endswith(".tmp")]


def test_an_export_that_fails_leaves_nothing_that_loads(make, tmp_path, monkeypatch):
    out = tmp_path / "out"
    hf.export(make(), out, force=False)

    def full(path, parts):
        if path.name == "model.safetensors":
            raise ExportError("No space left on device")

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(ExportError):
        hf.export(make(seed=2), out, force=True)
    assert not (out / "config.json").exists()


def test_files_are_whole_or_not_there(tmp_path):
    def broken():
        yield b"half"
        raise OSError(28, "No space left on device")

    (tmp_path / "kept").write_bytes(b"old")
    with pytest.raises(ExportError, match="No space left"):
        files.write(tmp_path / "kept", broken())
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"kept": b"old"}
    with pytest.raises(ExportError, match="Cannot write"):
        files.write(tmp_path / "no" / "folder", [b""])

    def numpys_words():
        raise OSError("44032 requested and 12345 written")
        yield b""

    with pytest.raises(ExportError, match="12345 written"):
        files.write(tmp_path / "kept", numpys_words())


def test_the_command(make, tmp_path, capsys):
    trained = make("bpe")
    out = tmp_path / "out"
    assert cli.main(["export", str(trained.path.parent), "--to", "hf", str(out)]) == 0
    told = capsys.readouterr().out
    assert "step 0 of 20" in told
    assert f"wrote {out / 'config.json'}" in told
    assert cli.main(["export", str(trained.path), "--to", "hf", str(out)]) == 17
    assert cli.main(["export", str(trained.path), "--to", "hf", str(out), "--force"]) == 0
    assert cli.main(["export", "--to", "hf", str(tmp_path / "none"), str(out)]) == 10
    file = tmp_path / "file"
    file.touch()
    assert cli.main(["export", "--to", "hf", str(trained.path), str(file)]) == 17
    (trained.path.parent / next(Path(trained.path.parent).glob("tokenizer-*"))).unlink()
    assert cli.main(["export", "--to", "hf", str(trained.path), str(tmp_path / "o")]) == 9
