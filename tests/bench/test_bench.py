"""The benchmark measures what it says: rounds are paired, the environment is clean, rows add up."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import sys

import pytest

from p2pnode import cli
from p2pnode.bench import command, machine, rounds, step
from p2pnode.bench import kernels as kernel_bench
from p2pnode.errors import UsageError
from p2pnode.train.arithmetic import ALIAS, kernels


def test_ratios_are_taken_within_rounds() -> None:
    """The machine got slower by four from round to round; that must cancel out."""
    times = rounds.Times({"base": [1.0, 4.0, 16.0], "other": [0.5, 2.0, 32.0]})
    assert times.median("base") == 4.0
    assert times.speed("other", "base") == 2.0


def test_candidates_are_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(rounds.time, "thread_time", lambda: float(next(ticks)))
    ran: list[str] = []
    times = rounds.measure({n: lambda n=n: ran.append(n) for n in "ab"}, 3)  # type: ignore[misc]
    assert "".join(ran[4:]) == "ababab"
    assert times.median("a") == 1.0


def test_the_environment_holds_nothing_that_slows_a_blas() -> None:
    given = {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_L2_SIZE": "1", "HOME": "/h"}
    clean = machine.environment("host", 1, given)
    assert clean == {
        "HOME": "/h", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip
    assert machine.environment("sse", 1, given)["OPENBLAS_CORETYPE"] == "Nehalem"


def test_options_reach_the_measuring_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def run(*args: object) -> int:
        seen.append(args)
        return 3

    monkeypatch.setattr("p2pnode.bench.command.run_in_own_process", run)
    assert cli.main(["bench", "step", "--rounds", "2", "--models", "1", "--as", "avx2"]) == 3
    assert seen == [
        (
            "p2pnode.bench.step",
            ["--rounds", "2", "--threads", "1", "--against", "torch", "--models", "1"],
            "avx2",
            1,
        )
    ]


@pytest.mark.parametrize(
    ("number", "known"), [(len(step.MODELS) - 1, True), (len(step.MODELS), False)]
)
def test_only_models_that_there_are_can_be_asked_for(number: int, known: bool) -> None:
    parser = argparse.ArgumentParser()
    command.add_bench(parser.add_subparsers())
    argv = ["bench", "step", "--models", str(number)]
    with contextlib.nullcontext() if known else pytest.raises(SystemExit):
        parser.parse_args(argv)


def test_a_products_row_compares_with_numpy(compiled_ops: kernels.Kernels) -> None:
    (product,) = list(kernel_bench._forward(compiled_ops, 1, 12, 16, 32))[1:2]
    row = kernel_bench._row(product)
    assert row[:2] == ("int8, weights packed", "12, 16, 32")
    assert float(row[4]) > 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MODELS", {"small": (16, 1, 2, 24, 64)})


@pytest.mark.usefixtures("small")
def test_a_steps_table_names_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    step.main(["--rounds", "1", "--against", "numpy"])
    printed = capsys.readouterr().out
    assert "| exact |" in printed
    assert "linear_dw" in printed


@pytest.mark.usefixtures("small")
def test_without_torch_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="PyTorch is not installed"):
        step.main(["--rounds", "1"])


@pytest.mark.usefixtures("small")
def test_a_step_has_the_loss_that_torch_gives(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is in an extra of its own")
    step.main(["--rounds", "1", "--against", "torch"])
    printed = capsys.readouterr().out
    exact, torch = (
        next(line for line in printed.splitlines() if line.startswith(f"| {name} |")).split("|")
        for name in ("exact", "torch eager")
    )
    assert float(exact[5]) == pytest.approx(float(torch[5]), rel=1e-3)


@pytest.fixture(scope="module")
def compiled_ops() -> kernels.Kernels:
    return kernels.load()


def test_threads_are_compared_with_one_and_one_is_left_in_use(
    compiled_ops: kernels.Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_bench, "BACKWARD", ((24, 16),))
    rows = list(kernel_bench._threads(compiled_ops, 1, 2))
    assert [row[0] for row in rows][:3] == ["int8 product", "12-bit dX", "12-bit dW"]
    assert len(rows) == 5
    threads = importlib.import_module(f"{ALIAS}.jit.threads")
    assert threads.Threads.current._count == 1
