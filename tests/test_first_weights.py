"""Weights given to a run: from an exported folder to the first state, kept, and refused."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import numpy as np
import pytest

from p2pnode import first_weights
from p2pnode.config import parse_run_config
from p2pnode.errors import CheckpointError, ConfigError, ExportError
from p2pnode.export import hf, safetensors
from p2pnode.train.footprint import footprint
from p2pnode.train.tokenizer import byte_tokenizer
from p2pnode.train.trained import Trained
from p2pnode.train.update import initial_state
from tests.train.helpers import MICRO, micro_config, new_trainer, train, trained_like


@pytest.fixture
def trained(tmp_path):
    config = micro_config()
    state = dataclasses.replace(initial_state(config), weights=trained_like(MICRO))
    return Trained(state, byte_tokenizer(), tmp_path)


@pytest.fixture
def folder(trained, tmp_path):
    folder = tmp_path / "export"
    hf.export(trained, folder, force=False)
    return folder


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_an_export_read_back_is_the_same_bits(trained, folder):
    flat = hf.load(folder, MICRO, byte_tokenizer())
    assert np.array_equal(flat.view(np.int32), trained.state.weights.view(np.int32))


def test_the_run_begins_with_them(trained, folder, tmp_path):
    config, first = first_weights.given(micro_config(), folder, tmp_path / "out", resumed=False)
    assert config.init == first.name
    assert parse_run_config(config.canonical()) == config
    assert config.run_id() != micro_config().run_id()
    trainer = new_trainer(config, reference=True, first=first.values)
    assert np.array_equal(trainer.committed.weights, trained.state.weights)
    train(trainer, 2)
    trainer.restart(config, None)
    assert np.array_equal(trainer.committed.weights, trained.state.weights)
    assert footprint(config, 0).total > footprint(micro_config(), 0).total


def test_a_run_without_them_is_as_it_was():
    config, first = first_weights.given(micro_config(), None, "nowhere", resumed=False)
    assert (config, first) == (micro_config(), None)
    assert b'init"' not in config.canonical()


def test_they_are_kept_for_a_resume(trained, folder, tmp_path):
    out = tmp_path / "out"
    config, first = first_weights.given(micro_config(), folder, out, resumed=False)
    again, found = first_weights.given(config, None, out, resumed=True)
    assert again == config
    assert np.array_equal(found.values, first.values)
    assert first_weights.given(config, folder, out, resumed=True)[0] == config
    (kept,) = out.iterdir()
    kept.unlink()
    with pytest.raises(CheckpointError, match=kept.name):
        first_weights.given(config, None, out, resumed=True)


def test_a_resume_with_others_is_refused(trained, folder, tmp_path):
    other = micro_config(init="0" * 64)
    with pytest.raises(CheckpointError, match="leave --init out"):
        first_weights.given(other, folder, tmp_path / "out", resumed=True)
    with pytest.raises(CheckpointError, match="leave --init out"):
        first_weights.given(micro_config(), folder, tmp_path / "out", resumed=True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:-4],
        lambda raw: raw + b"1234",
        lambda raw: raw[:-1] + b"\0",
        lambda raw: b"",
    ],
)
def test_damaged_ones_are_refused(folder, tmp_path, spoil):
    out = tmp_path / "out"
    config, _ = first_weights.given(micro_config(), folder, out, resumed=False)
    (kept,) = out.iterdir()
    raw = kept.read_bytes()
    kept.write_bytes(spoil(raw))
    with pytest.raises(CheckpointError, match="damaged"):
        first_weights.kept(out, config)
    with pytest.raises(CheckpointError, match="damaged"):
        first_weights.read(spoil(raw), config)


def test_a_trainer_without_them_does_not_begin():
    with pytest.raises(ConfigError, match="not here"):
        new_trainer(micro_config(init="0" * 64), reference=True)
    with pytest.raises(ConfigError):
        initial_state(micro_config(), trained_like(MICRO))


@pytest.mark.parametrize("name", ["x", "0" * 63, "0" * 65, "G" * 64, "A" * 64])
def test_names_are_bounded(name):
    raw = (
        micro_config().canonical().replace(b'"init_std"', b'"init":"%s","init_std"' % name.encode())
    )
    with pytest.raises(ConfigError):
        parse_run_config(raw)


# Folders that are something else


def test_another_shape_says_which(folder):
    other = msgspec.structs.replace(MICRO, ffn=32)
    with pytest.raises(ExportError, match="intermediate_size 24, the run has 32"):
        hf.load(folder, other, byte_tokenizer())
    for field, value in (
        ("num_key_value_heads", 1),
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 500_000.0),
        ("tie_word_embeddings", False),
        ("hidden_act", "gelu"),
        ("model_type", "gpt2"),
        ("head_dim", None),
    ):
        before = (folder / "config.json").read_text()
        edit(folder / "config.json", **{field: value})
        with pytest.raises(ExportError, match=field):
            hf.load(folder, MICRO, byte_tokenizer())
        (folder / "config.json").write_text(before)


def test_what_transformers_writes_of_the_rotary_base_is_read(folder):
    path = folder / "config.json"
    said = json.loads(path.read_text())
    del said["rope_theta"]
    path.write_text(json.dumps(said))
    with pytest.raises(ExportError, match="rope_theta"):
        hf.load(folder, MICRO, byte_tokenizer())
    edit(path, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    hf.load(folder, MICRO, byte_tokenizer())
    edit(path, rope_parameters={"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0})
    with pytest.raises(ExportError, match="scaled"):
        hf.load(folder, MICRO, byte_tokenizer())


def test_another_tokenizer_is_refused(folder):
    edit(folder / "tokenizer.json", normalizer={"type": "Lowercase"})
    with pytest.raises(ExportError, match="encodes text otherwise"):
        hf.load(folder, MICRO, byte_tokenizer())
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ExportError, match="cannot be read"):
        hf.load(folder, MICRO, byte_tokenizer())
    (folder / "tokenizer.json").unlink()
    hf.load(folder, MICRO, byte_tokenizer())


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"[" * 100_000, b'"x"', b"\xff"])
def test_what_is_no_configuration(folder, raw):
    (folder / "config.json").write_bytes(raw)
    with pytest.raises(ExportError):
        hf.load(folder, MICRO, byte_tokenizer())


def headers(table):
    raw = json.dumps(table).encode()
    return len(raw).to_bytes(8, "little") + raw


NAME = "model.norm.weight"
ENTRY = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not a safetensors"),
        (b"\xff" * 8, "not a safetensors"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "not a safetensors"),
        (headers([]), "header differs"),
        (headers({NAME: 1}), "header differs"),
        (headers({NAME: ENTRY | {"more": 1}}), "header differs"),
        (headers({}), "no tensor"),
        (headers({NAME: ENTRY | {"dtype": "BF16"}}), "must be F32"),
        (headers({NAME: ENTRY | {"shape": [4, 4]}}), "has shape"),
        (headers({NAME: ENTRY | {"data_offsets": [0, 60]}}), "does not fit"),
        (headers({NAME: ENTRY | {"data_offsets": [-64, 0]}}), "does not fit"),
        (headers({NAME: ENTRY | {"data_offsets": [1 << 60, (1 << 60) + 64]}}), "does not fit"),
        (headers({NAME: ENTRY}) + b"x" * 63, "cut off"),
        (headers({NAME: ENTRY, "more": ENTRY}), "lacks"),
    ],
)
def test_hostile_weights_are_sentences(tmp_path, raw, words):
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ExportError, match=words):
        safetensors.read(path, {NAME: (16,)})


def test_weights_that_are_no_numbers_are_refused(trained, folder):
    trained.state.weights[7] = np.inf
    hf.export(trained, folder, force=True)
    with pytest.raises(ExportError, match="NaN or infinite"):
        hf.load(folder, MICRO, byte_tokenizer())
    (folder / "model.safetensors").unlink()
    with pytest.raises(ExportError, match="Cannot read"):
        hf.load(folder, MICRO, byte_tokenizer())
