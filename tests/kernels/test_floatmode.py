"""The floating-point mode: broken by hand, it is repaired or refused before a bit can differ."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import kernels
from kernels import floatmode, reference
from kernels.jit import floatmode as control

from .helpers import assert_same_bits, normal

if control.IS_X86:
    WRONG = {"flush to zero": 0x8000, "denormals are zero": 0x0040, "up": 0x4000, "zero": 0x6000}
else:
    WRONG = {"flush to zero": 1 << 24, "up": 1 << 22, "zero": 3 << 22}

TINY = np.full((4, 4), 2.0**-120, np.float32)


@pytest.fixture(params=sorted(WRONG))
def broken(request: pytest.FixtureRequest) -> object:
    """Break this thread's mode; `mend` puts it right afterwards in any case."""
    right = control.read_word()

    class Mode:
        @staticmethod
        def spoil() -> None:
            control.write_word(right | WRONG[request.param])

    yield Mode
    control.write_word(right)


def test_breaking_the_mode_changes_bits(broken: type) -> None:
    """Otherwise the tests below would show nothing."""
    assert floatmode.is_right()
    broken.spoil()
    assert not floatmode.is_right()


def test_compiled_kernels_repair_it_and_count(broken: type, compiled: kernels.Kernels) -> None:
    a, b = TINY * normal(1, 4, 4, scale=1e-3), TINY * np.float32(1e-3)
    expected = compiled.add(a, b)
    repairs = compiled.counts["float_mode_repairs"]
    broken.spoil()
    assert_same_bits(compiled.add(a, b), expected)
    assert compiled.counts["float_mode_repairs"] == repairs + 1
    assert floatmode.is_right()
    compiled.add(a, b)
    assert compiled.counts["float_mode_repairs"] == repairs + 1


def test_reference_kernels_refuse(broken: type, reference: kernels.Kernels) -> None:
    broken.spoil()
    with pytest.raises(kernels.FloatModeError, match="floating-point mode"):
        reference.add(TINY, TINY)


def test_a_mode_that_cannot_be_repaired_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_repair", lambda mask, value: (True, False))
    with pytest.raises(kernels.FloatModeError):
        control.pin()


def test_every_operation_passes_through_the_check() -> None:
    """With a guard that always refuses, no operation gives an answer."""

    def refuse() -> bool:
        raise kernels.FloatModeError("refused")

    guarded = kernels.Kernels("reference", reference.FORMS, refuse)
    x, ids, q = normal(1, 4, 4), np.zeros(4, np.int32), np.zeros(4, np.int8).reshape(1, 2, 2)
    one, flat = np.ones((1, 2), np.float32), normal(1, 4)
    quantised = {
        (limit, rows): kernels.Quantised(
            np.ones((4, 4), np.int8), np.ones(4, np.float32), limit, rows
        )
        for limit in (127, 2047)
        for rows in (True, False)
    }
    saved = kernels.load(reference=True).attention(x, x, x, 2, 2)[1]
    table = np.ones((2, 2), np.float32)
    scalars = kernels.adam_scalars(
        lr=1, beta1=0, beta2=0, beta1_power=0, beta2_power=0, eps=1, weight_decay=0, clip=1
    )
    calls = {
        "exp": (flat,),
        "log": (flat,),
        "quantise_rows": (x,),
        "quantise_cols": (x,),
        "linear": (quantised[127, True], quantised[127, True]),
        "linear_dx": (quantised[2047, True], quantised[2047, False]),
        "linear_dw": (quantised[2047, False], quantised[2047, False]),
        "rmsnorm": (x, flat, 1e-5),
        "rmsnorm_backward": (x, x, flat, flat),
        "rope": (x, table, table),
        "rope_backward": (x, table, table),
        "swiglu": (x, x),
        "swiglu_backward": (x, x, x),
        "add": (x, x),
        "embed": (x, ids),
        "embed_backward": (x, ids, x.copy()),
        "attention": (x, x, x, 2, 2),
        "attention_step": (x[:1], q, one, q, one),
        "attention_backward": (x, saved),
        "cross_entropy": (x, ids),
        "grid": (flat, 0, 5),
        "grid_add": (ids, ids.copy()),
        "dequantise": (ids, 0, 1),
        "norm": (flat,),
        "adam": (flat, flat.copy(), flat.copy(), flat.copy(), scalars, [(0, 4, True)]),
    }
    assert set(calls) == set(reference.FORMS)
    for name, args in calls.items():
        with pytest.raises(kernels.FloatModeError):
            getattr(guarded, name)(*args)


def test_each_thread_is_pinned_by_itself(compiled: kernels.Kernels) -> None:
    """A thread with a broken mode is repaired; the others were never touched."""
    a = TINY * normal(2, 4, 4, scale=1e-3)
    expected = compiled.add(a, a)
    results: list[np.ndarray] = []

    def work() -> None:
        control.write_word(control.read_word() | WRONG["flush to zero"])
        results.append(compiled.add(a, a))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert_same_bits(results[0], expected)


def test_two_threads_at_once_give_the_same_bits(compiled: kernels.Kernels) -> None:
    x, w = normal(1, 200, 64), normal(2, 96, 64)
    q = normal(3, 128, 32)
    expected = (compiled.linear(x, w), compiled.attention(q, q, q, 2, 2)[0])
    shared = compiled.quantise_rows(w)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(30):
            if compiled.linear(x, shared).tobytes() != expected[0].tobytes():
                wrong.append("linear")
            if compiled.attention(q, q, q, 2, 2)[0].tobytes() != expected[1].tobytes():
                wrong.append("attention")

    before = compiled.counts["linear"]
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert compiled.counts["linear"] == before + 60
