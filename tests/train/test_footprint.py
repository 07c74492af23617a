"""The memory a run is said to take, against what it takes."""

import dataclasses
import importlib
import tracemalloc

import msgspec
import pytest

from p2pnode.config import PRESETS
from p2pnode.limits import LIMITS, MIB
from p2pnode.train import footprint as module
from p2pnode.train.arithmetic import ALIAS
from p2pnode.train.footprint import Footprint, footprint, megabytes
from p2pnode.train.layout import layout_of
from tests.train.helpers import new_trainer, run_config


@pytest.mark.parametrize(
    ("micro_batch", "changes"),
    [
        (2, {}),
        (2, {"seq_len": 512}),
        (8, {"layers": 2}),
        (2, {"width": 192, "ffn": 512}),
    ],
)
def test_activations_are_what_a_slot_takes(
    micro_batch: int, changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = msgspec.structs.replace(PRESETS["tiny"].model, **changes)
    config = run_config("tiny", micro_batch=micro_batch, model=model)
    trainer = new_trainer(config)
    trainer.compute_slot(0, 0)  # quantised weights are kept from here on
    workspace = importlib.import_module(f"{ALIAS}.workspace")
    monkeypatch.setattr(workspace, "_buffers", workspace._Buffers())  # buffers count again
    tracemalloc.start()
    trainer.compute_slot(0, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    measured = peak - 4 * layout_of(config.model).size  # the gradient itself
    said = footprint(config, 0).activations
    assert 0.8 * measured < said < 1.3 * measured


def test_the_parts_are_counted() -> None:
    config = run_config("tiny")
    size = layout_of(config.model).size
    need = footprint(config, 1_000)
    assert need.states == 2 * need.frozen == 24 * size
    assert need.kept == LIMITS.kept_steps * 4 * size
    assert need.text == 3_000
    assert need.spooled == 0
    assert need.total == sum(dataclasses.astuple(need))
    large = LIMITS.shared_data_bytes + 1
    assert footprint(config, large).text == 2 * large, "too much to be handed to members"


def test_compiling_takes_memory_too() -> None:
    config = run_config("nano")
    warm, cold = footprint(config, 0), footprint(config, 0, compiling=True)
    assert cold.total - warm.total == module.COMPILING
    assert "compiling" in str(cold)
    assert "compiling" not in str(warm)


def test_of_a_large_model_most_averages_lie_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_config("tiny")
    step = 4 * layout_of(config.model).size
    monkeypatch.setattr(module, "LIMITS", dataclasses.replace(LIMITS, kept_bytes=2 * step))
    need = footprint(config, 0)
    assert need.kept == 4 * step
    assert need.spooled == (LIMITS.kept_steps - 4) * step
    assert need.total == sum(dataclasses.astuple(need)) - need.spooled
    assert str(need).endswith(f"on disk, for the moment, averages {megabytes(need.spooled)}")


def test_words() -> None:
    assert megabytes(270_400_000) == "270 MB"
    assert megabytes(2_240_000_000) == "2.2 GB"
    need = Footprint(220 * MIB, 24, 12, 27, 32, 0, 6, 5, 10_000_000)
    assert str(need).startswith("program 231 MB, model and optimizer 0 MB")
    assert str(need).endswith("text 10 MB")
    assert module.PROGRAM == 220 * MIB


def test_without_audits_no_older_states_are_kept() -> None:
    config = run_config("nano")
    assert footprint(config, 0, audits=False).audits == 0
    parameters = layout_of(config.model).size
    assert footprint(config, 0).audits >= 2 * 12 * parameters
