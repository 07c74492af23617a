"""`bench bits`: the same short training under other processors, compilers, libraries and threads.

Each variant is a process of its own that prints one hash (`bits_run`). All must be equal.
May import: errors, train.arithmetic; of bench: bits_run, machine, rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from p2pnode.bench.bits_run import Report
from p2pnode.bench.machine import numpy_features
from p2pnode.bench.rounds import table
from p2pnode.errors import BenchmarkError
from p2pnode.train.arithmetic import ALIAS

_RUN = ("-m", "p2pnode.bench.bits_run")
_CLEARED = ("P2PNODE_NO_NUMBA", "NPY_DISABLE_CPU_FEATURES")


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to compute."""

    name: str
    backend: str
    """What must have computed: `numba` or `reference`."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    threads: str = "1"
    interpreter: tuple[str, ...] = (sys.executable,)


Run = Callable[[Variant], Report]


def variants(also: Sequence[str] = ()) -> Iterator[Variant]:
    """Every variant this machine can run. also: commands that start other Python interpreters."""
    yield Variant("this processor", "numba", threads="1,2,4")
    for name, processor, needed in (
        ("AVX2", "haswell", "avx2"),
        ("SSE4.2", "nehalem", "sse4.2"),
        ("SSE2", "x86-64", "sse2"),
    ):
        if needed in _features():
            older = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
            yield Variant(name, "numba", older)
    # numba's cache does not know the level, so this variant has a cache of its own.
    weak = {"NUMBA_OPT": "1", "NUMBA_CACHE_DIR": str(_cache() / "level-1")}
    yield Variant("optimisation level 1", "numba", weak)
    plain = {"P2PNODE_NO_NUMBA": "1"}
    yield Variant("reference", "reference", plain)
    if features := numpy_features():
        disabled = plain | {"NPY_DISABLE_CPU_FEATURES": " ".join(features)}
        yield Variant(f"reference, numpy without {', '.join(features)}", "reference", disabled)
    if "sse2" in _features():
        other = plain | {"OPENBLAS_CORETYPE": "Nehalem"}
        yield Variant("reference, OpenBLAS for Nehalem", "reference", other)
    for command in also:
        interpreter = tuple(shlex.split(command))
        yield Variant(f"{interpreter[0]}, compiled", "numba", {}, "1,2", interpreter)
        yield Variant(f"{interpreter[0]}, reference", "reference", plain, "1", interpreter)


def _features() -> set[str]:
    """What this processor has, by LLVM's names; nothing where numba does not work."""
    try:
        binding = importlib.import_module("llvmlite.binding")
    except ImportError:
        return set()
    return {name for name, has in binding.get_host_cpu_features().items() if has}


def _cache() -> Path:
    try:
        compiling = importlib.import_module(f"{ALIAS}.jit.compile")
    except ImportError:
        raise BenchmarkError(
            "Numba cannot be imported here, so there is nothing to compare the reference with."
        ) from None
    return Path(compiling.cache_directory() or os.devnull)


def run_variant(variant: Variant) -> Report:
    """Run it. Raises BenchmarkError with its last line if it gives no report."""
    present = {name: value for name, value in os.environ.items() if name not in _CLEARED}
    command = [*variant.interpreter, *_RUN, "--threads", variant.threads]
    try:
        done = subprocess.run(
            command,
            env=present | dict(variant.environment),
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C is for us; run() ends the child
        )
    except OSError as error:
        raise BenchmarkError(f"{variant.interpreter[0]} cannot be started: {error}.") from None
    try:
        return msgspec.json.decode(done.stdout, type=Report)
    except msgspec.MsgspecError:
        told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BenchmarkError(f"Variant {variant.name!r} gave no hash: {told}") from None


def main(argv: Sequence[str] | None = None, run: Run = run_variant) -> int:
    """Print a row for every variant. Raises BenchmarkError unless all have one hash."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--also", action="append", default=[])
    options = parser.parse_args(argv)
    rows, wrong, expected = [], [], ""
    for variant in variants(options.also):
        start = time.perf_counter()
        report = run(variant)
        if fault := _fault(variant, report):
            wrong.append(f"{variant.name}: {fault}")
        for threads, found in report.hashes.items():
            expected = expected or found
            if found != expected:
                wrong.append(f"{variant.name}, {threads} thread(s): {found[:16]}")
        seconds = f"{time.perf_counter() - start:.0f}"
        counts = ", ".join(report.hashes)
        found = ", ".join(sorted({value[:16] for value in report.hashes.values()}))
        rows.append((variant.name, report.target, counts, found, seconds))
        print(f"{variant.name}: {found}", file=sys.stderr, flush=True)
    print(table(("variant", "compiled for", "threads", "hash", "seconds"), rows))
    if wrong:
        raise BenchmarkError("Not the same bits: " + "; ".join(wrong) + ".")
    print(f"\nAll the same: {expected}")
    return 0


def _fault(variant: Variant, report: Report) -> str:
    """Why a variant's hash would show nothing, or an empty string."""
    if report.backend != variant.backend:
        return f"{report.backend} kernels ran instead of {variant.backend}"
    if report.demoted:
        return f"these kernels failed their gates: {', '.join(report.demoted)}"
    if report.unused:
        return f"these operations did not run: {', '.join(report.unused)}"
    return ""
