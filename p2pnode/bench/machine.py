"""The environment of a measurement: one thread, no variable that slows a BLAS, a chosen processor.

May import: errors.
"""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence

from p2pnode.errors import UsageError

SLOWING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_DEBUG_CPU_TYPE")
"""Set on some machines for the sake of old libraries; they make current ones slow."""

PROCESSORS: dict[str, dict[str, str]] = {
    "host": {},
    "avx2": {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "",
        "OPENBLAS_CORETYPE": "Haswell",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "sse": {
        "NUMBA_CPU_NAME": "nehalem",
        "NUMBA_CPU_FEATURES": "",
        "OPENBLAS_CORETYPE": "Nehalem",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}
"""Older processors of the same family: what each library is told to use at most. The clock and the
caches stay those of this machine."""

LACKING: dict[str, tuple[str, ...]] = {
    "host": (),
    "avx2": ("AVX512", "X86_V4"),
    "sse": ("AVX", "FMA", "F16C", "X86_V3", "X86_V4"),
}
"""How the names begin of numpy's features that they do not have."""


def environment(processor: str, threads: int, present: Mapping[str, str]) -> dict[str, str]:
    """The variables of a measuring process."""
    chosen = {name: value for name, value in present.items() if name not in SLOWING}
    count = str(threads)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        chosen[name] = count
    if newer := _newer(processor):
        chosen["NPY_DISABLE_CPU_FEATURES"] = " ".join(newer)
    return chosen | PROCESSORS[processor]


def numpy_features() -> list[str]:
    """The features beyond its baseline that numpy uses here."""
    try:
        found = importlib.import_module("numpy._core._multiarray_umath")
        return [name for name in found.__cpu_dispatch__ if found.__cpu_features__[name]]
    except (ImportError, AttributeError, KeyError):  # not a public interface
        return []


def _newer(processor: str) -> list[str]:
    """Those of them that the older processor lacks."""
    return [name for name in numpy_features() if name.startswith(LACKING[processor])]


def run_in_own_process(module: str, arguments: Sequence[str], processor: str, threads: int) -> int:
    """Run `python -m module arguments` with that environment; its exit code."""
    if processor != "host" and platform.machine().lower() not in ("x86_64", "amd64"):
        raise UsageError("--as can imitate older processors of the x86 family only.")
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command,
        env=environment(processor, threads, os.environ),
        check=False,
        start_new_session=True,  # Ctrl-C is for us; run() ends the child
    ).returncode


def blas_kernel() -> str:
    """The kernels numpy's BLAS has chosen, e.g. `OpenBLAS Haswell, 1 thread`."""
    try:
        threadpoolctl = importlib.import_module("threadpoolctl")
    except ImportError:
        return "unknown (install threadpoolctl to see it)"
    importlib.import_module("numpy")
    found = [
        f"{info['internal_api']} {info.get('architecture') or '?'} {info['version']}, "
        f"{info['num_threads']} thread(s)"
        for info in threadpoolctl.threadpool_info()
        if info["user_api"] == "blas" and "numpy" in info["filepath"]
    ]
    return "; ".join(found) or "unknown"


def processor_name() -> str:
    """The processor as the system names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
            for line in cpuinfo:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
