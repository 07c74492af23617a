"""`bench bits` gives one hash everywhere, and says so when it does not."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from p2pnode.bench import bits
from p2pnode.bench.bits_run import Report
from p2pnode.errors import BenchmarkError
from p2pnode.train.arithmetic import ALIAS

HASH = "eedf866d5177dcd69fb2edf5d3cc38dbfdf7da4160cfe79b8ae1d40cd2fe4bbf"
"""On every machine. A change here is a new arithmetic, another model or another text."""


def report_of(variant: bits.Variant) -> Report:
    hashes = dict.fromkeys(variant.threads.split(","), HASH)
    return Report(variant.backend, "any", (), (), hashes)


def test_equal_hashes_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert bits.main([], report_of) == 0
    assert f"All the same: {HASH}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hashes": {"1": HASH, "2": HASH, "4": "0" * 64}}, "4 thread"),
        ({"backend": "reference"}, "reference kernels ran instead of numba"),
        ({"demoted": ("adam",)}, "failed their gates: adam"),
        ({"unused": ("norm",)}, "did not run: norm"),
    ],
)
def test_what_would_show_nothing_is_an_error(changes: dict[str, object], told: str) -> None:
    def run(variant: bits.Variant) -> Report:
        report = report_of(variant)
        first = variant.name == "this processor"
        return msgspec.structs.replace(report, **changes) if first else report

    with pytest.raises(BenchmarkError, match=told):
        bits.main([], run)


def test_an_interpreter_that_fails_is_named(tmp_path: Path) -> None:
    for interpreter in ((str(tmp_path / "none"),), ("sh", "-c", "echo no numpy >&2; exit 1")):
        with pytest.raises(BenchmarkError, match=r"cannot be started|no numpy"):
            bits.run_variant(bits.Variant("other", "numba", interpreter=interpreter))


def test_without_numba_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"{ALIAS}.jit.compile", None)
    with pytest.raises(BenchmarkError, match="Numba cannot be imported"):
        bits.main([], report_of)


FAST = ("this processor", "SSE2", "reference, numpy", "reference, OpenBLAS")
"""Whose code is compiled anyway, or cached; the rest takes minutes."""


def check(variant: bits.Variant) -> None:
    report = bits.run_variant(variant)
    assert bits._fault(variant, report) == ""
    assert set(report.hashes.values()) == {HASH}


@pytest.mark.parametrize(
    "variant", [v for v in bits.variants() if v.name.startswith(FAST)], ids=lambda v: v.name
)
def test_the_same_bits(variant: bits.Variant) -> None:
    check(variant)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "variant", [v for v in bits.variants() if not v.name.startswith(FAST)], ids=lambda v: v.name
)
def test_the_same_bits_everywhere(variant: bits.Variant) -> None:
    check(variant)
