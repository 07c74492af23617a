"""Checkpoint bytes are canonical and checked; files survive crashes and hostile content."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pnode.errors import CheckpointError, DiskFullError
from p2pnode.train import codec
from p2pnode.train.checkpoint import CheckpointFolder, file_name, load
from p2pnode.train.layout import layout_of
from p2pnode.train.state import State
from p2pnode.train.update import initial_state
from tests.train.helpers import micro_config


def make_state(step=0, seed=7) -> State:
    """A state at any step, cheaply: only the schedule's position is moved."""
    config = micro_config(seed=seed)
    state = initial_state(config)
    position = msgspec.structs.replace(
        state.position,
        step=step,
        next_window=step * config.slots * config.micro_batch,
        beta1_power=0.9**step,
        beta2_power=0.95**step,
    )
    return State(config, position, state.weights, state.m, state.v)


GOOD = bytes(codec.encode(make_state()))
RUN = micro_config().run_id()


def header_of(data):
    size = codec.header_size(data)
    return json.loads(data[8:size]), data[size:]


def pack(header, tail):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + tail


def with_meta(change):
    """GOOD with its metadata text changed, otherwise in the canonical form."""
    meta = json.loads(header_of(GOOD)[0]["__metadata__"]["p2pnode"])
    change(meta)
    header, tail = header_of(GOOD)
    header["__metadata__"]["p2pnode"] = msgspec.json.encode(meta, order="sorted").decode()
    raw = msgspec.json.encode(header)
    return pack(raw + b" " * (-len(raw) % 8), tail)


def test_round_trip_is_exact():
    state = make_state(step=5)
    data = codec.encode(state)
    back = codec.decode(data)
    assert back.config == state.config
    assert back.position == state.position
    assert np.array_equal(back.weights.view(np.int32), state.weights.view(np.int32))
    assert back.hash() == state.hash()
    assert codec.encode(back) == data
    assert back.weights.flags.writeable  # read-only arrays would be copied at every kernel call


def test_any_safetensors_reader_opens_it():
    tensors = safetensors.numpy.load(GOOD)
    state = make_state()
    views = state.layout.views(state.weights)
    assert set(tensors) == {g + n for n in views for g in ("", "adam.m.", "adam.v.")}
    for name, view in views.items():
        assert np.array_equal(tensors[name], view)
    assert codec.header_size(GOOD) % 8 == 0


def test_metadata_is_one_key_without_names_or_times():
    header, _ = header_of(GOOD)
    assert list(header["__metadata__"]) == ["p2pnode"]
    meta = json.loads(header["__metadata__"]["p2pnode"])
    assert set(meta) == {"config", "format", "position", "state"}


def test_the_hash_covers_every_part():
    state = make_state(step=3)
    hashes = {state.hash()}
    for field in ("weights", "m", "v"):
        changed = getattr(state, field).copy()
        changed[-1] = np.float32(0.25)
        hashes.add(State(**{**vars(state), field: changed}).hash())
    for change in (
        {"beta1_power": 0.5},
        {"exponents": (0, *state.position.exponents[1:])},
        {"quiet": (1, *state.position.quiet[1:])},
        {"step": 4},
    ):
        position = msgspec.structs.replace(state.position, **change)
        hashes.add(State(**{**vars(state), "position": position}).hash())
    hashes.add(make_state(step=3, seed=8).hash())
    assert len(hashes) == 9
    minus_zero = state.m.copy()
    minus_zero[0] = np.float32(-0.0)
    assert State(**{**vars(state), "m": minus_zero}).hash() not in hashes


def test_differing_names_the_tensors():
    state = make_state(step=3)
    weights, m = state.weights.copy(), state.m.copy()
    tensors = state.layout.tensors
    weights[tensors[2].start] += np.float32(1)
    m[tensors[-1].stop - 1] = np.float32(1e-30)
    quiet = tuple(int(i == 4) for i in range(len(tensors)))
    position = msgspec.structs.replace(state.position, quiet=quiet, beta2_power=0.5)
    other = State(state.config, position, weights, m, state.v)
    names = state.layout.names
    assert state.differing(other) == (names[2], names[4], names[-1], "schedule")
    assert state.differing(state) == ()


@settings(max_examples=300)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_any_flipped_bits_are_found(at, mask):
    data = bytearray(GOOD)
    data[at] ^= mask
    with pytest.raises(CheckpointError):
        codec.decode(bytes(data))


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda b: pack(b, b""))))
def test_noise_is_a_sentence(data):
    with pytest.raises(CheckpointError):
        codec.decode(data)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.9999])
def test_cut_off(part):
    with pytest.raises(CheckpointError):
        codec.decode(GOOD[: int(len(GOOD) * part)])


def test_added_to():
    with pytest.raises(CheckpointError, match="cut off or added to"):
        codec.decode(GOOD + b"\0" * 7)


class Boom:
    """Creates a file if anything unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def hostile_files(tmp_path):
    header, tail = header_of(GOOD)
    entry = header["embed"]
    canary = str(tmp_path / "RAN")
    yield "pickle", pickle.dumps({"model": Boom(canary)})
    yield "header of 2**62", struct.pack("<Q", 2**62) + b"{}"
    yield "header of 2**63+", b"\xff" * 16
    yield "empty", b""
    yield "only a length", struct.pack("<Q", 2)
    yield "no metadata", pack({k: v for k, v in header.items() if k != "__metadata__"}, tail)
    yield "other metadata", pack({**header, "__metadata__": {"format": "pt"}}, tail)
    yield "metadata is no text", pack({**header, "__metadata__": {"p2pnode": 5}}, tail)
    yield "overlap", pack({**header, "norm": entry}, tail)
    yield "extra tensor", pack({**header, "x": entry}, tail)
    yield "wrong dtype", pack({**header, "embed": {**entry, "dtype": "F64"}}, tail)
    yield "negative shape", pack({**header, "embed": {**entry, "shape": [-1, 16]}}, tail)
    yield "spaces in the header", pack(json.dumps(header, indent=1).encode(), tail)
    yield "deep nesting", pack(b"[" * 100_000, b"")
    yield "deep unknown field", pack(b'{"x":' + b"[" * 100_000, b"")
    deep = json.dumps({"__metadata__": {"p2pnode": '{"config":{"model":' + "[" * 100_000}})
    yield "deep metadata", pack(deep.encode(), b"")
    key = b'{"__metadata__":{},'
    yield "double key", pack(json.dumps(header).encode().replace(b"{", key, 1), tail)
    yield "not UTF-8", pack(b'{"\xff', tail)


CLAIMS = [
    (lambda m: m.update(format=2), "format 2; this version reads format 1"),
    (lambda m: m.update(code="import os"), "its header differs"),
    (
        lambda m: m["config"]["model"].update(width=8192, ffn=32768, layers=128, vocab=131072),
        "not in its one canonical form",
    ),
    (lambda m: m["config"]["model"].update(heads=3), "width 16 is not a multiple of heads 3"),
    (lambda m: m["position"].update(step=10**6), "step 1000000 of a run of 20"),
    (lambda m: m["position"].update(step=-1), "step -1 of a run"),
    (lambda m: m["position"].update(next_window=1), "data position 1 at step 0"),
    (lambda m: m["position"].update(exponents=[0]), "1 grid exponents for 20 tensors"),
    (lambda m: m["position"]["exponents"].__setitem__(0, 2**40), "exponent or counter out of"),
    (lambda m: m["position"]["quiet"].__setitem__(0, 16), "exponent or counter out of bounds"),
    (lambda m: m["position"].update(beta1_power=2.0), "power of beta outside"),
    (lambda m: m.update(state="0" * 64), "does not match its hash"),
]


@pytest.mark.parametrize(("change", "sentence"), CLAIMS, ids=[c[1] for c in CLAIMS])
def test_false_claims_in_a_canonical_header(change, sentence):
    with pytest.raises(CheckpointError, match=sentence):
        codec.decode(with_meta(change))


def test_values_that_cannot_be_trained_on_are_refused():
    state = make_state()
    for field, value, sentence in (
        ("weights", np.nan, "a weight that is NaN or infinite"),
        ("weights", np.inf, "a weight that is NaN or infinite"),
        ("m", np.nan, "a moment that is NaN or infinite"),
        ("v", -1, "a negative second moment"),
    ):
        values = getattr(state, field).copy()
        values[5] = value
        data = codec.encode(State(**{**vars(state), field: values}))
        with pytest.raises(CheckpointError, match=sentence):
            codec.decode(data)


def test_hostile_files_are_sentences_and_run_nothing(tmp_path):
    for name, data in hostile_files(tmp_path):
        path = tmp_path / "x.safetensors"
        path.write_bytes(data)
        with pytest.raises(CheckpointError) as caught:
            load(path)
        assert str(path) in str(caught.value), name
        assert str(caught.value).rstrip(".")[-1].isalnum(), name
        with pytest.raises(CheckpointError):
            codec.decode(data)
    assert not (tmp_path / "RAN").exists()


def test_a_changed_meta_that_is_honest_is_read():
    """Control for `with_meta`: it makes the canonical form, so the refusals above are earned."""
    assert codec.decode(with_meta(lambda m: None)).hash() == make_state().hash()


def test_a_file_that_claims_to_be_large_is_not_allocated(tmp_path):
    path = tmp_path / "big.safetensors"
    with open(path, "wb") as file:
        file.write(GOOD)
        file.truncate(1 << 40)  # sparse: a terabyte by its size
    with pytest.raises(CheckpointError, match="cut off or added to"):
        load(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(CheckpointError, match="Cannot read"):
        load(tmp_path / "none")
    with pytest.raises(CheckpointError, match="Cannot read"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="it is no file"):
        load(tmp_path / "pipe")  # and does not wait for somebody to write into it


def save(folder, step, seed=7):
    state = make_state(step, seed)
    return folder.save(state.config.run_id(), step, codec.encode(state))


def names(folder):
    return sorted(os.listdir(folder.folder))


def test_rotation_keeps_the_newest_of_each_run(tmp_path):
    folder = CheckpointFolder(tmp_path / "new" / "ckpt", keep=2)
    other = save(folder, 1, seed=8)
    for step in range(1, 6):
        save(folder, step)
    assert names(folder) == sorted([other.name, file_name(RUN, 4), file_name(RUN, 5)])
    path, state = folder.newest(RUN)
    assert (path.name, state.step) == (file_name(RUN, 5), 5)
    assert folder.newest(b"\0" * 32) is None


def test_damaged_files_do_not_count_and_are_not_chosen(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (1, 2):
        save(folder, step)
    for step in (8, 9):
        (tmp_path / file_name(RUN, step)).write_bytes(GOOD[:-5])
    folder = CheckpointFolder(tmp_path, keep=2)
    assert folder.newest(RUN)[1].step == 2
    save(folder, 3)
    assert names(folder) == [file_name(RUN, step) for step in (2, 3, 8, 9)]


def test_the_file_just_written_is_never_removed(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1)
    save(folder, 9)
    path = save(folder, 3)
    assert path.exists()


def test_leftovers_of_a_killed_writer_go_and_foreign_files_stay(tmp_path):
    (tmp_path / (file_name(RUN, 3) + ".tmp")).write_bytes(b"half")
    (tmp_path / "notes.tmp").write_text("mine", encoding="utf-8")
    folder = CheckpointFolder(tmp_path)
    assert names(folder) == ["notes.tmp"]
    assert folder.newest() is None


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_files_and_nothing_else(tmp_path, monkeypatch, call):
    folder = CheckpointFolder(tmp_path, keep=1)
    save(folder, 1)

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(folder, 2)
    monkeypatch.undo()
    assert names(folder) == [file_name(RUN, 1)]
    save(folder, 2)
    assert names(folder) == [file_name(RUN, 2)]


def test_a_disk_that_is_really_full(tmp_path):
    """The device answers as a full disk does, at the first byte."""
    folder = CheckpointFolder(tmp_path, keep=1)
    save(folder, 1)
    (tmp_path / f"{file_name(RUN, 2)}.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFullError, match="No space left"):
        save(folder, 2)
    assert names(folder) == [file_name(RUN, 1)]
    save(folder, 2)
    assert names(folder) == [file_name(RUN, 2)]


@pytest.mark.parametrize(
    ("sizes", "spare", "fits"),
    [
        (0.9, False, False),
        (1.0, False, True),
        (1.9, True, False),
        (2.0, True, True),
    ],
)
def test_room_is_looked_for_before_anything_is_written(tmp_path, monkeypatch, sizes, spare, fits):
    folder, data = CheckpointFolder(tmp_path), bytes(1_000_000)
    free = int(sizes * len(data))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(os, "fsync", lambda _: written.append(1))
    written = []
    if fits:
        folder.save(RUN, 1, data, spare=spare)
        assert written
        return
    with pytest.raises(DiskFullError, match=rf"{sizes:.1f} MB free, and {1 + spare}.0 MB should"):
        folder.save(RUN, 1, data, spare=spare)
    assert not written
    assert names(folder) == []


def test_other_troubles_are_not_called_a_full_disk(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "bad")))
    with pytest.raises(CheckpointError) as caught:
        save(folder, 1)
    assert not isinstance(caught.value, DiskFullError)


def test_an_unusable_folder_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CheckpointError, match="Cannot write checkpoints"):
        CheckpointFolder(tmp_path / "file")


WRITER = """
import sys
from types import SimpleNamespace
from p2pnode.train.checkpoint import CheckpointFolder
from tests.train.test_checkpoint import save
folder = CheckpointFolder(sys.argv[1], keep=2)
print("ready", flush=True)
for step in range(1, 21):
    save(folder, step)
    print(step, flush=True)
"""


def test_a_killed_writer_leaves_a_good_newest_file(tmp_path):
    """SIGKILL at some moment of a save; what was reported saved can be read."""
    for after in (1, 3, 6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        saved = 0
        for line in writer.stdout:
            saved = 0 if line == "ready\n" else int(line)
            if saved == after:
                writer.kill()
                break
        saved = max([saved, *(int(line) for line in writer.stdout if line.strip().isdigit())])
        writer.wait()
        newest = CheckpointFolder(tmp_path, keep=2).newest(RUN)
        assert newest is not None
        assert newest[1].step >= saved
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_sizes_are_known_from_the_header():
    meta = codec.parse_header(GOOD)
    assert codec.total_size(meta, codec.header_size(GOOD)) == len(GOOD)
    assert layout_of(meta.config.model).size * 12 < len(GOOD)
