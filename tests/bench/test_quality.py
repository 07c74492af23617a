"""`bench quality`: its pairs differ in nothing but the arithmetic, and its verdict can be no."""

from __future__ import annotations

import sys

import msgspec
import pytest

from p2pnode.bench import quality
from p2pnode.errors import UsageError
from p2pnode.train.open_data import open_dataset


@pytest.mark.parametrize(
    ("differences", "passed"),
    [
        ({0.001: [0.01, -0.01, 0.012], 0.002: [-0.005, 0.004, 0.0]}, True),
        ({0.001: [0.03, 0.031, 0.032], 0.002: [0.03, 0.029, 0.028]}, False),  # worse for certain
        ({0.001: [0.1, -0.1, 0.1], 0.002: [-0.1, 0.1, -0.1]}, False),  # nothing is certain
        ({0.001: [0.0], 0.002: [0.0]}, True),
    ],
)
def test_verdict(differences: dict[float, list[float]], passed: bool) -> None:
    text, found = quality.verdict(differences)
    assert found is passed
    assert text.count("\n") == 4


@pytest.mark.parametrize("options", [["--rates", "fast"], ["--seeds", "0"], ["--steps", "0"]])
def test_impossible_options_are_refused(options: list[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is in an extra of its own")
    with pytest.raises(UsageError):
        quality.main(options)


def test_without_torch_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "p2pnode.bench.float_run", raising=False)
    monkeypatch.delitem(sys.modules, "p2pnode.bench.torch_model", raising=False)
    with pytest.raises(UsageError, match="PyTorch is not installed"):
        quality.main([])


def test_a_pair_begins_and_goes_on_alike() -> None:
    """Eight steps move the loss by almost a nat, and the two runs a thousandth apart at most; a
    warm-up that is one step shorter moves them ten times as far."""
    pytest.importorskip("torch", reason="PyTorch is in an extra of its own")
    from p2pnode.bench import float_run

    data = open_dataset("builtin")
    run = quality.run_for(3, 0.004, 8, data)
    exact, plain = quality.train_exact(run, data), float_run.train(run, data)
    assert exact < 4.8
    assert exact == pytest.approx(plain, abs=1e-3)
    assert exact != plain
    other = msgspec.structs.replace(run, warmup=run.warmup - 1)
    assert abs(float_run.train(other, data) - plain) > 5e-3
