"""A library that switches on flush-to-zero, loaded while a node trains, changes no bit."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.train.helpers import micro_config, new_trainer

COMPILER = shutil.which("cc")
SOURCE = """
#include <xmmintrin.h>
__attribute__((constructor)) static void begin(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
"""
"""What gcc adds to a library linked with -ffast-math: flush to zero, denormals are zero."""

pytestmark = pytest.mark.skipif(
    COMPILER is None or platform.machine().lower() not in ("x86_64", "amd64"),
    reason="needs a C compiler and an x86 processor",
)


def in_a_thread(work):
    """Its result; the mode of this thread stays as it is."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    source, library = tmp_path / "fast.c", tmp_path / "fast.so"
    source.write_text(SOURCE)
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", library, source], check=True)
    undisturbed = one_step(new_trainer(micro_config(slots=1)), lambda: None)

    trainer = new_trainer(micro_config(slots=1))
    subnormal = np.array([1e-39], np.float32)

    def disturbed():
        found = one_step(trainer, lambda: ctypes.CDLL(str(library)))
        return found, float((subnormal * np.float32(0.5))[0])

    found, after = in_a_thread(disturbed)
    assert found == undisturbed
    assert trainer.kernels.counts["float_mode_repairs"] >= 1
    assert after != 0.0, "the mode was put right for the rest of the thread too"


def one_step(trainer, disturb) -> bytes:
    """The state's hash after a step in whose middle something happens to the process."""
    trainer.compute_slot(0, 0)
    disturb()
    evidence, total = trainer.compute_slot(0, 0)
    return trainer.apply(0, total, evidence.max_abs).state_hash
