"""The text of a slot: pure, without repeats, apart from what is held out."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pnode.errors import DataError
from p2pnode.limits import LIMITS
from p2pnode.train import corpus, data
from p2pnode.train import manifest as manifests
from p2pnode.train.open_data import builtin_manifest, dataset_of_blob, open_dataset
from p2pnode.train.permute import permute
from p2pnode.train.windows import BuiltinText, HeldText
from tests.train.helpers import micro_config

LENGTH = micro_config().model.seq_len + 1


def folder(tmp_path, windows=200, name="data"):
    """A folder whose windows are all different, in three files."""
    path = tmp_path / name
    path.mkdir()
    text = "".join(f"{i:06d}-line." for i in range(windows)).encode()
    third = len(text) // 3
    for i in range(3):
        (path / f"{i}.txt").write_bytes(text[i * third : (i + 1) * third])
    return str(path)


def held(text):
    return HeldText(np.frombuffer(text, np.uint8))


def rows(dataset, run, step):
    for slot in range(run.slots):
        inputs, targets = dataset.slot(step, slot, run)
        yield from np.concatenate([inputs, targets[:, -1:]], axis=1)


@settings(max_examples=60)
@given(st.integers(1, 700), st.integers(0, 2**64 - 1))
def test_permute_is_a_permutation(n, key):
    assert sorted(permute(i, n, key) for i in range(n)) == list(range(n))


def test_permute_depends_on_its_key_and_reaches_large_sizes():
    orders = {tuple(permute(i, 50, key) for i in range(50)) for key in range(20)}
    assert len(orders) == 20
    large = [permute(i, 2**33 + 7, 5) for i in range(1_000)]
    assert len(set(large)) == 1_000
    assert max(large) > 2**32


@pytest.mark.parametrize("source", ["builtin", "files"])
def test_a_slot_is_a_pure_function(tmp_path, source):
    spec = folder(tmp_path) if source == "files" else None
    one, two = open_dataset(spec), open_dataset(spec)
    run = micro_config(data=one.manifest.hash())
    one.check(run)
    forward = [one.slot(t, s, run) for t in range(6) for s in range(4)]
    backward = [two.slot(t, s, run) for t in reversed(range(6)) for s in reversed(range(4))]
    for (a, b), (c, d) in zip(forward, backward[::-1], strict=True):
        assert np.array_equal(a, c)
        assert np.array_equal(b, d)
        assert a.dtype == b.dtype == np.int32
        assert a.shape == b.shape == (2, LENGTH - 1)
        assert np.array_equal(a[:, 1:], b[:, :-1])
        assert a.flags.c_contiguous
        assert b.flags.c_contiguous


def test_no_window_twice_in_an_epoch_and_a_new_order_in_the_next(tmp_path):
    dataset = open_dataset(folder(tmp_path))
    run = micro_config(data=dataset.manifest.hash())
    training, heldout = dataset._text.counts(LENGTH)
    per_step = run.slots * run.micro_batch
    stream = [
        row.tobytes()
        for step in range(2 * training // per_step + 1)
        for row in rows(dataset, run, step)
    ]
    first, second = stream[:training], stream[training : 2 * training]
    assert len(set(first)) == training
    assert set(first) == set(second)
    assert first != second
    kept_out = {bytes(dataset._text.heldout(i, LENGTH).tolist()) for i in range(heldout)}
    seen = {np.frombuffer(row, np.int32).astype(np.uint8).tobytes() for row in first}
    assert not seen & kept_out
    assert len(seen | kept_out) == training + heldout


def test_the_seed_changes_the_order(tmp_path):
    dataset = open_dataset(folder(tmp_path))
    runs = [micro_config(data=dataset.manifest.hash(), seed=seed) for seed in (1, 2)]
    a, b = ([row.tobytes() for row in rows(dataset, run, 0)] for run in runs)
    assert a != b


@settings(max_examples=40)
@given(st.integers(40, 3_000), st.integers(3, 40))
def test_windows_partition_the_text(size, length):
    text = held(bytes(1 + i % 251 for i in range(size)))
    training, heldout = text.counts(length)
    assert training + heldout == size // length
    pieces = [bytes(text.training(i, length).tolist()) for i in range(training)]
    pieces += [bytes(text.heldout(i, length).tolist()) for i in range(heldout)]
    whole = text._ids.tobytes()[: (size // length) * length]
    assert sorted(pieces) == sorted(whole[i : i + length] for i in range(0, len(whole), length))
    for index in (training, training + 1):
        with pytest.raises(IndexError):
            text.training(index, length)
    with pytest.raises(IndexError):
        text.heldout(heldout, length)


def test_held_out_text_is_spread_bounded_and_about_a_twentieth():
    text = held(b"0123456789" * 100_000)
    training, heldout = text.counts(100)
    assert heldout == 500
    assert training == 9_500
    large = held(b"0123456789" * 4_000_000)
    assert large.counts(1_024)[1] == 1_024  # 1 MiB


def test_held_out_slots_are_fixed_and_differ_from_training(tmp_path):
    for spec in (None, folder(tmp_path)):
        dataset = open_dataset(spec)
        run = micro_config(data=dataset.manifest.hash())
        a, b = dataset.heldout_slot(1, run), dataset.heldout_slot(1, run)
        assert np.array_equal(a[0], b[0])
        assert np.array_equal(a[0][:, 1:], a[1][:, :-1])
        assert not np.array_equal(a[0], dataset.heldout_slot(0, run)[0])


def test_documents_are_separated_and_nuls_in_them_removed(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"first\0\0")
    (tmp_path / "b.txt").write_bytes(b"second")
    dataset = open_dataset(str(tmp_path))
    assert dataset._text._ids.tobytes() == b"first\0second"
    assert "2 NUL bytes" in dataset.description
    assert dataset.manifest.size == 13


def test_too_small_says_how_much_is_needed(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 100)
    dataset = open_dataset(str(tmp_path))
    run = micro_config(data=dataset.manifest.hash())
    with pytest.raises(DataError, match=r"too small: 100 bytes.* at least \d+ tokens") as caught:
        dataset.check(run)
    enough = int(str(caught.value).rsplit("least ", 1)[1].split()[0])
    (tmp_path / "a.txt").write_bytes(b"x" * enough)
    dataset = open_dataset(str(tmp_path))
    dataset.check(micro_config(data=dataset.manifest.hash()))


def test_other_text_than_the_runs_is_refused(tmp_path):
    dataset = open_dataset(folder(tmp_path))
    with pytest.raises(DataError, match="not the text of the run"):
        dataset.check(micro_config())
    with pytest.raises(DataError, match="another tokenizer"):
        open_dataset(None).check(micro_config(tokenizer="0" * 64))


def test_opening_against_a_manifest(tmp_path):
    spec = folder(tmp_path)
    theirs = open_dataset(spec).manifest
    assert open_dataset(spec, theirs).matches(theirs)
    assert open_dataset(None, builtin_manifest()).matches(builtin_manifest())
    with pytest.raises(DataError, match="give them with --data"):
        open_dataset(None, theirs)
    with pytest.raises(DataError, match="run trains on files text"):
        open_dataset("builtin", theirs)
    other = folder(tmp_path, windows=201, name="other")
    (tmp_path / "other" / "more.txt").write_text("x", encoding="utf-8")
    (tmp_path / "other" / "0.txt").unlink()
    with pytest.raises(DataError, match="1 are missing, 1 are extra, 2 differ"):
        open_dataset(other, theirs)
    stale = msgspec.structs.replace(
        builtin_manifest(),
        files=(msgspec.structs.replace(builtin_manifest().files[0], sha256="0" * 64),),
    )
    with pytest.raises(DataError, match="built-in text of this version"):
        open_dataset(None, stale)


def test_sharing_files_with_a_peer(tmp_path, monkeypatch):
    dataset = open_dataset(folder(tmp_path))
    copy = dataset_of_blob(dataset.manifest, dataset.blob())
    run = micro_config(data=dataset.manifest.hash())
    copy.check(run)
    assert np.array_equal(copy.slot(3, 1, run)[0], dataset.slot(3, 1, run)[0])
    assert copy.blob() == dataset.blob()
    with pytest.raises(DataError, match="made by each node"):
        open_dataset(None).blob()
    with pytest.raises(DataError, match="made by each node"):
        dataset_of_blob(builtin_manifest(), b"")
    tight = type(LIMITS)(shared_data_bytes=dataset.manifest.size - 1)
    monkeypatch.setattr(data, "LIMITS", tight)
    monkeypatch.setattr(manifests, "LIMITS", tight)
    with pytest.raises(DataError, match="Copy the files"):
        dataset.blob()


def test_builtin_held_out_passages_lie_beyond_the_training_ones():
    text = BuiltinText()
    assert bytes(text.heldout(0, 50).tolist()) == corpus.passage(corpus.PASSAGES, 50)
    assert text.counts(50)[0] == corpus.PASSAGES
