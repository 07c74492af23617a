"""Loading in other circumstances: without numba, without a cache, with threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import kernels
from kernels.jit import compile as compiling
from kernels.jit import threads

from .helpers import normal

ROOT = Path(__file__).parents[2]

SMALL_RUN = """
import hashlib, sys
import numpy as np
import kernels
{prepare}
k = {load}
rng = np.random.default_rng(7)
x, w = (rng.standard_normal(s).astype(np.float32) for s in ((12, 10), (10, 10)))
digest = hashlib.sha256()
def see(*arrays):
    for a in arrays:
        digest.update(np.asarray(a).tobytes())
y = k.linear(x, w)
see(y, k.linear_dx(y, w), k.linear_dw(y, x))
o, saved = k.attention(y, x, y, 2, 5)
see(o, *k.attention_backward(x, saved))
loss, d = k.cross_entropy(o, np.arange(12, dtype=np.int32) % 10)
h = k.swiglu(o, y)
q, clamps, top = k.grid(k.rmsnorm(h, w[0], 1e-5)[0].reshape(-1), -26, kernels.grid_limit(16))
see(loss, d, h, q, k.norm(k.dequantise(q, -26, 16)))
print(k.backend, digest.hexdigest(), kernels.gates_digest())
"""


def run(load: str, prepare: str = "", **environment: str) -> list[str]:
    """Backend, hash of a few operations' answers and gates digest from a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", SMALL_RUN.format(load=load, prepare=prepare)],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def expected(compiled: kernels.Kernels) -> list[str]:
    return run("kernels.load()")


def test_compiled_and_reference_processes_agree(expected: list[str]) -> None:
    assert expected[0] == "numba"
    assert run("kernels.load(reference=True)") == ["reference", *expected[1:]]
    assert run("kernels.load()", P2PNODE_NO_NUMBA="1") == ["reference", *expected[1:]]


def test_without_numba_nothing_is_missing(expected: list[str]) -> None:
    """numba and llvmlite cannot be imported at all."""
    block = "sys.modules['numba'] = sys.modules['llvmlite'] = None"
    assert run("kernels.load()", prepare=block) == ["reference", *expected[1:]]


def test_cache_goes_where_numba_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.config, "CACHE_DIR", str(tmp_path))
    path = compiling.cache_directory()
    assert path is not None
    assert path.parent == tmp_path


def test_an_unwritable_cache_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the directory should be")
    monkeypatch.setattr(compiling.config, "CACHE_DIR", str(blocked))
    assert compiling.cache_directory() is None
    monkeypatch.setattr(compiling, "_CACHE", None)

    @compiling.kernel
    def double(x):  # type: ignore[no-untyped-def]
        return x + x

    assert double(2.0) == 4.0


def test_cache_key_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba itself would not see an edit of a function inlined from another file."""
    before = compiling._sources()
    package = tmp_path / "kernels"
    (package / "jit").mkdir(parents=True)
    for path in (ROOT / "kernels").glob("*.py"):
        (package / path.name).write_bytes(path.read_bytes())
    for path in (ROOT / "kernels" / "jit").glob("*.py"):
        (package / "jit" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(compiling, "__file__", str(package / "jit" / "compile.py"))
    assert compiling._sources() == before
    with (package / "constants.py").open("a") as constants:
        constants.write("\nONE = np.float32(1.5)\n")
    assert compiling._sources() != before


def test_counts_show_what_ran(compiled: kernels.Kernels) -> None:
    x = np.ones((3, 4), np.float32)
    before = compiled.counts.copy()
    compiled.linear(x, x)
    changes = compiled.counts - before
    assert dict(changes) == {"quantise_rows": 1, "linear": 1}


def test_any_number_of_threads_gives_the_same_bits(compiled: kernels.Kernels) -> None:
    """Also while two threads call kernels at once, and with a value that must be refused."""
    x, w, dy = normal(1, 700, 90), normal(2, 300, 90), normal(3, 700, 300)
    x8, w12 = compiled.quantise_rows(x), compiled.quantise_cols(w)
    bad = dy.copy()
    bad[699, 299] = np.nan

    def bits() -> bytes:
        results = (
            compiled.linear(x, w),
            compiled.linear(x8, w),
            compiled.linear_dx(dy, w12),
            compiled.linear_dw(dy, x),
        )
        for refused in (lambda: compiled.linear_dx(bad, w12), lambda: compiled.linear_dw(bad, x)):
            with pytest.raises(kernels.NonFiniteInputError):
                refused()
        return b"".join(y.tobytes() for y in results)

    expected = bits()
    found: list[bytes] = []
    try:
        for count in (2, 3, 5):
            kernels.use_threads(count)
            callers = [threading.Thread(target=lambda: found.append(bits())) for _ in range(2)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
    finally:
        kernels.use_threads(1)
    assert found == [expected] * 6


def test_threads_share_the_rows_and_pin_their_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []
    monkeypatch.setattr(threads, "pin", lambda: pinned.append(threading.get_ident()))
    parts: list[tuple[int, int]] = []
    try:
        kernels.use_threads(3)
        assert threads.spread(1000, 6, lambda *part: parts.append(part) is None)
        assert not threads.spread(1000, 6, lambda start, stop: stop < 1000)
    finally:
        kernels.use_threads(1)
    assert sorted(parts) == [(0, 336), (336, 672), (672, 1000)]
    assert len(pinned) == 4
    assert threading.get_ident() not in pinned


COLLECTIONS = """
import gc
full = []
gc.collect()
gc.callbacks.append(lambda phase, about: full.append(about) if about["generation"] == 2 else None)
before = [[] for _ in range(1000)]
import kernels
kernels.use_threads(1)
kernels.load()
print(len(full), any(one is before for one in gc.get_objects()))
"""


def test_looking_through_everything_for_garbage_holds_nobody_up():
    """A full collection holds the event loop too, for longer than a stall may last."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTIONS],
        capture_output=True, text=True, check=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "False"]
