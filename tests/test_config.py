"""Run configurations: bounds, the one spelling, the identity; and the settings of one machine."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest

from p2pnode import node_config
from p2pnode.config import (
    OPTIMIZER_DEFAULTS,
    PRESETS,
    ModelConfig,
    Past,
    RunConfig,
    RunOptions,
    parse_run_config,
)
from p2pnode.errors import ConfigError, UsageError
from p2pnode.limits import LIMITS
from p2pnode.net.signaling_url import DEFAULT_PORT, server_url
from p2pnode.train.layout import layout_of

IDENTITY = {"arithmetic_version": 1, "gates_digest": "a" * 64, "data": "b" * 64}


def config(**options: object) -> RunConfig:
    return RunOptions(**options).config(**IDENTITY)


def raw(**changes: object) -> bytes:
    """A valid configuration's JSON with some fields replaced, whatever they hold."""
    fields = json.loads(config().canonical())
    model = changes.pop("model", {})
    fields["model"] |= model
    return json.dumps(fields | changes).encode()


# Presets


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("nano", 50e3), ("tiny", 0.5e6), ("small", 5e6), ("medium", 25e6)],
)
def test_presets_have_the_size_they_name(preset: str, parameters: float) -> None:
    made = config(preset=preset)
    assert layout_of(made.model).size == pytest.approx(parameters, rel=0.2)
    assert made.steps == PRESETS[preset].steps
    assert made.warmup <= made.steps // 5
    assert made.lr == PRESETS[preset].lr


def test_every_preset_is_tested() -> None:
    assert set(PRESETS) == {"nano", "tiny", "small", "medium"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_of_every_preset_fits_the_messages(preset: str) -> None:
    """Sums of all parameters go in messages of bounded size, also if one node owns them all."""
    assert 4 * layout_of(PRESETS[preset].model).size < LIMITS.bulk_bytes


def test_options_override_the_preset() -> None:
    shape = {"width": 48, "layers": 2, "heads": 4, "ffn": 80, "seq_len": 32}
    rest = {"micro_batch": 3, "slots": 5, "steps": 7, "lr": 0.5, "warmup": 4, "seed": 9}
    made = config(preset="nano", eval_every=0, **shape, **rest)
    assert msgspec.structs.asdict(made.model) == shape | {"vocab": 256}
    assert {name: getattr(made, name) for name in rest} == rest
    assert made.eval_every == 0
    assert made.tokens_per_slot == 96
    for name, value in OPTIMIZER_DEFAULTS.items():
        assert getattr(made, name) == value


def test_short_runs_warm_up_for_a_fifth() -> None:
    assert config(preset="nano", steps=10).warmup == 2
    assert config(preset="nano", steps=1).warmup == 0


def test_unknown_preset_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="no preset 'huge'; there are nano"):
        config(preset="huge")


# One spelling, one identity


def test_canonical_form_is_the_only_one() -> None:
    made = config()
    fields = json.loads(made.canonical())
    assert list(fields) == sorted(fields)
    assert list(fields["model"]) == sorted(fields["model"])
    assert b" " not in made.canonical()
    shuffled = dict(reversed(fields.items())) | {"model": dict(reversed(fields["model"].items()))}
    again = parse_run_config(json.dumps(shuffled, indent=2).encode())
    assert again == made
    assert again.canonical() == made.canonical()


@pytest.mark.parametrize("lr", [0.1 + 0.2, 1e-5, 5e-324, math.nextafter(1.0, 0.0), 1 / 3])
def test_floats_survive_exactly(lr: float) -> None:
    assert parse_run_config(config(lr=lr).canonical()).lr == lr


def test_settings_that_came_later_change_no_older_run() -> None:
    raw = config().canonical()
    assert b"early_stop" not in raw
    assert b"early_stop" in config(early_stop=2).canonical()


def test_run_id_is_the_hash_of_the_canonical_form() -> None:
    made = config()
    assert len(made.run_id()) == 32
    assert made.run_id() == parse_run_config(made.canonical()).run_id()


CHANGED = {
    "arithmetic_version": 2,
    "gates_digest": "c" * 64,
    "data": "c" * 64,
    "tokenizer": "d" * 64,
    "seed": 1,
    "steps": 501,
    "slots": 17,
    "micro_batch": 3,
    "lr": math.nextafter(3e-3, 1.0),
    "warmup": 41,
    "lr_floor": 0.2,
    "beta1": 0.8,
    "beta2": 0.9,
    "eps": 1e-9,
    "weight_decay": 0.2,
    "clip": 2.0,
    "init_std": 0.03,
    "eval_every": 51,
    "eval_slots": 5,
    "early_stop": 3,
    "past": (Past(10, 100, 1e-3, 5),),
    "probe": "a" * 64,
    "init": "e" * 64,
}
CHANGED_MODEL = {"vocab": 512, "width": 192, "layers": 5, "heads": 6, "ffn": 257, "seq_len": 127}


def test_every_field_has_a_part_in_the_identity() -> None:
    """Also one that is added later: it must be listed here."""
    assert {*CHANGED, "model"} == set(RunConfig.__struct_fields__)
    assert set(CHANGED_MODEL) == set(ModelConfig.__struct_fields__)
    made = config()
    variants = [msgspec.structs.replace(made, **{name: value}) for name, value in CHANGED.items()]
    variants += [
        msgspec.structs.replace(made, model=msgspec.structs.replace(made.model, **{name: value}))
        for name, value in CHANGED_MODEL.items()
    ]
    ids = {parse_run_config(variant.canonical()).run_id() for variant in variants}
    assert len(ids | {made.run_id()}) == len(variants) + 1


# Refusals


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *(({name: 0}, name) for name in ("arithmetic_version", "steps", "slots", "micro_batch")),
        ({"steps": 10_000_001}, "steps"),
        ({"slots": 1_025}, "slots"),
        ({"micro_batch": 1_025}, "micro_batch"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"warmup": -1}, "warmup"),
        ({"eval_every": -1}, "eval_every"),
        ({"eval_slots": 0}, "eval_slots"),
        ({"eval_slots": 65}, "eval_slots"),
        ({"gates_digest": "A" * 64}, "gates_digest"),
        ({"data": "a" * 63}, "data"),
        ({"tokenizer": "x" * 65}, "tokenizer"),
        *(({"model": {name: 0}}, name) for name in CHANGED_MODEL),
        ({"model": {"vocab": 131_073}}, "vocab"),
        ({"model": {"width": 8_193}}, "width"),
        ({"model": {"layers": 129}}, "layers"),
        ({"model": {"ffn": 32_769}}, "ffn"),
        ({"model": {"seq_len": 8_193}}, "seq_len"),
        ({"model": {"width": 96, "heads": 5}}, "not a multiple of heads 5"),
        ({"model": {"width": 96, "heads": 32}}, "head dimension 3 must be even"),
        ({"micro_batch": 1_024}, "131,072 tokens|131072 tokens"),
        *(({name: -1e-9}, name) for name in ("lr", "lr_floor", "beta1", "beta2", "weight_decay")),
        *(({name: 0.0}, name) for name in ("eps", "clip", "init_std")),
        *(({name: 1.0}, name) for name in ("beta1", "beta2")),
        *(({name: 1.1}, name) for name in ("lr", "lr_floor", "init_std")),
        ({"weight_decay": 10.1}, "weight_decay"),
        ({"eps": 0.1}, "eps"),
        ({"clip": 2e6}, "clip"),
        ({"lr": "0.1"}, "lr"),
        ({"lr": None}, "lr"),
        ({"steps": 1.5}, "steps"),
        ({"steps": True}, "steps"),
        ({"surprise": 1}, "surprise"),
        ({"model": {"surprise": 1}}, "surprise"),
    ],
)
def test_bounds_are_sentences(change: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_run_config(raw(**change))


FLOATS = ("lr", *OPTIMIZER_DEFAULTS)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", FLOATS)
def test_nan_and_infinity_are_refused(name: str, value: float) -> None:
    """As a value in the process, and as the words that some writers of JSON use for it."""
    with pytest.raises(ConfigError, match=name):
        msgspec.structs.replace(config(), **{name: value}).check()
    with pytest.raises(ConfigError):
        parse_run_config(raw(**{name: value}))


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_numbers_beyond_binary64_are_refused(number: str) -> None:
    with pytest.raises(ConfigError):
        parse_run_config(raw(lr=0.0625).replace(b"0.0625", number.encode()))


@pytest.mark.parametrize(
    "garbage", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"lr":', b'"' * 9]
)
def test_what_is_no_configuration_is_a_sentence(garbage: bytes) -> None:
    with pytest.raises(ConfigError, match="not a run configuration"):
        parse_run_config(garbage)


def test_a_missing_field_is_not_guessed() -> None:
    fields = json.loads(config().canonical())
    for name in fields:
        rest = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(ConfigError, match=name):
            parse_run_config(json.dumps(rest).encode())


def test_the_longest_slot_is_allowed() -> None:
    assert config(micro_batch=1_023, seq_len=128).tokens_per_slot == 130_944


def test_impossible_options_are_known_before_anything_runs() -> None:
    RunOptions().check()
    with pytest.raises(ConfigError, match="slots"):
        RunOptions(slots=5_000).check()


# The settings of one machine


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("P2PNODE_HOME", "P2PNODE_ROOM", "P2PNODE_SIGNAL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_flag_beats_the_environment(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("P2PNODE_SIGNAL", "http://there:1/")
    assert node_config.signal_url(None) == "http://there:1"
    assert node_config.signal_url("http://here:2") == "http://here:2"
    bare.setenv("P2PNODE_ROOM", "there")
    assert node_config.room_code(None, None) == "there"
    assert node_config.room_code("here", None) == "here"


def test_no_server_at_all_explains_what_to_do(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="join --serve"):
        node_config.signal_url(None)
    bare.setenv("P2PNODE_SIGNAL", "")
    with pytest.raises(UsageError, match="P2PNODE_SIGNAL"):
        node_config.signal_url(None)


def test_a_bare_host_name_means_the_usual_port() -> None:
    assert server_url(node_config.signal_url("example.org")).port == DEFAULT_PORT
    assert server_url(node_config.signal_url("http://example.org")).port == 80


def test_room_file(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "room"
    file.write_text("  maple-orbit \n", encoding="utf-8")
    bare.setenv("P2PNODE_ROOM", "other")
    assert node_config.room_code(None, file) == "maple-orbit"
    with pytest.raises(UsageError, match="not by both"):
        node_config.room_code("maple-orbit", file)
    with pytest.raises(UsageError, match="nowhere"):
        node_config.room_code(None, tmp_path / "nowhere")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="Cannot read"):
        node_config.room_code(None, file)


def test_no_code_is_not_an_empty_code(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None lets a host make a code; an empty file or argument is a slip that must be seen."""
    empty = tmp_path / "empty"
    empty.touch()
    assert node_config.room_code(None, None) is None
    assert node_config.room_code(None, empty) == ""
    assert node_config.room_code("", None) == ""
    bare.setenv("P2PNODE_ROOM", "")
    assert node_config.room_code(None, None) is None


@pytest.mark.parametrize(
    ("platform", "variable", "end"),
    [
        ("linux", "XDG_CONFIG_HOME", "p2pnode"),
        ("linux", None, ".config/p2pnode"),
        ("darwin", None, "Library/Application Support/p2pnode"),
        ("win32", "APPDATA", "p2pnode"),
    ],
)
def test_home_follows_the_platform(
    bare: pytest.MonkeyPatch, tmp_path: Path, platform: str, variable: str | None, end: str
) -> None:
    bare.setattr(node_config.sys, "platform", platform)
    bare.setenv("HOME", str(tmp_path))
    bare.delenv("APPDATA", raising=False)
    if variable is not None:
        bare.setenv(variable, str(tmp_path))
    assert node_config.default_home() == tmp_path / end
    bare.setenv("P2PNODE_HOME", str(tmp_path / "mine"))
    assert node_config.default_home() == tmp_path / "mine"


def test_an_empty_variable_is_no_home(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setattr(node_config.sys, "platform", "linux")
    bare.setenv("HOME", str(tmp_path))
    bare.setenv("XDG_CONFIG_HOME", "")
    assert node_config.default_home() == tmp_path / ".config/p2pnode"


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_a_user_without_a_home_is_told(bare: pytest.MonkeyPatch, platform: str) -> None:
    """As in a container that runs under a number which no password file knows."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    bare.setattr(node_config.sys, "platform", platform)
    bare.setattr(Path, "home", homeless)
    for variable in ("XDG_CONFIG_HOME", "APPDATA"):
        bare.delenv(variable, raising=False)
    with pytest.raises(UsageError, match="--home or P2PNODE_HOME"):
        node_config.default_home()


def a_run(**options: object) -> RunConfig:
    return RunOptions(preset="nano", steps=40, lr=1e-3, warmup=4, **options).config(  # type: ignore[arg-type]
        arithmetic_version=1, gates_digest="a" * 64, data="d" * 64
    )


def test_a_run_of_one_setting_has_no_past_in_its_name() -> None:
    assert b"past" not in a_run().canonical()


def test_changed_settings_are_another_run_with_a_past() -> None:
    first = a_run()
    second = first.changed(10, steps=60, lr=None, warmup=None)
    third = second.changed(20, steps=None, lr=5e-4, warmup=0)
    assert parse_run_config(third.canonical()) == third
    for step, made_by in ((0, first), (10, first), (11, second), (20, second), (21, third)):
        assert third.at(step) == made_by
    assert (third.steps, third.lr, third.warmup) == (60, 5e-4, 0)
    assert len({run.run_id() for run in (first, second, third)}) == 3


def test_changing_again_at_an_earlier_step_forgets_the_later_settings() -> None:
    first = a_run()
    second = first.changed(10, steps=60, lr=None, warmup=None)
    assert second.changed(10, steps=80, lr=None, warmup=None) == first.changed(
        10, steps=80, lr=None, warmup=None
    )
    assert second.changed(7, steps=80, lr=None, warmup=None).at(7) == first


@pytest.mark.parametrize(
    ("after", "settings", "said"),
    [
        (10, {}, "already"),
        (10, {"steps": 40}, "already"),
        (0, {"steps": 50}, "no step yet"),
        (10, {"steps": 10}, "must be more"),
        (10, {"lr": 2.0}, "lr is"),
        (10, {"warmup": -1}, "warmup must be at least 0"),
        (10, {"lr": math.nan}, "lr must be a finite number"),
        (10, {"steps": 10**30}, "steps must be at most 10,000,000"),
    ],
)
def test_changes_that_no_run_takes(after: int, settings: dict[str, object], said: str) -> None:
    wanted = {"steps": None, "lr": None, "warmup": None} | settings
    with pytest.raises(ConfigError, match=said):
        a_run().changed(after, **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "past",
    [
        (Past(20, 40, 1e-3, 0), Past(20, 40, 1e-3, 0)),
        (Past(20, 40, 1e-3, 0), Past(10, 40, 1e-3, 0)),
        (Past(40, 40, 1e-3, 0),),
        (Past(20, 10, 1e-3, 0),),
        (Past(20, 40, float("inf"), 0),),
        (Past(20, 40, 3.0, 0),),
    ],
)
def test_a_past_that_cannot_have_been(past: tuple[Past, ...]) -> None:
    with pytest.raises(ConfigError, match="follow each other"):
        msgspec.structs.replace(a_run(), past=past).check()
