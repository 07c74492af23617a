"""Gates and probe see wrong kernels: each guard is shown to fire on what it guards against."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernels
from kernels import gate_cases, gates, jit, loader, reference, workspace
from kernels.types import AttentionSaved, Quantised

from .helpers import assert_same_bits, normal

Form = Callable[..., Any]
DIGEST = "60ba1cba959e4f9d78e969344a1cfd84479c50668ee177c6bdea7eb573b3f1c4"


def nudged(result: Any) -> Any:
    """The same answer with the last bit of one number changed."""
    if isinstance(result, AttentionSaved):
        return dataclasses.replace(result, peak=nudged(result.peak))
    if isinstance(result, Quantised):
        return dataclasses.replace(result, scale=nudged(result.scale))
    if isinstance(result, tuple):
        return (*result[:-1], nudged(result[-1]))
    if isinstance(result, np.ndarray):
        changed = result.copy()
        changed.view(np.uint8).reshape(-1)[0] ^= 1
        return changed
    return type(result)(result + 1) if isinstance(result, int) else np.nextafter(result, result + 1)


def wrong(name: str) -> Form:
    """The compiled form with one bit wrong."""
    right = jit.FORMS[name]

    def form(*args: Any) -> Any:
        result = right(*args)
        if result is not None:
            return nudged(result)
        target = args[-1][0] if name == "adam" else args[0 if name == "grid_add" else -1]
        target.view(np.uint8).reshape(-1)[-4] ^= 1
        return None

    return form


@pytest.mark.parametrize("name", sorted(reference.FORMS))
def test_one_wrong_bit_demotes_that_kernel_and_no_other(
    name: str, compiled: kernels.Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(jit.FORMS, name, wrong(name))
    loaded = kernels.load()
    assert loaded.backend == "numba"
    assert list(loaded.demoted) == [name]
    assert "differ" in loaded.demoted[name]
    assert loaded._forms[name] is reference.FORMS[name]


def test_a_demoted_product_works_beside_compiled_kernels(
    compiled: kernels.Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("linear_dx", "quantise_rows", "attention"):
        monkeypatch.setitem(jit.FORMS, name, wrong(name))
    mixed = kernels.load()
    x, w = normal(1, 12, 8), normal(2, 8, 8)
    assert_same_bits(mixed.linear(x, w), compiled.linear(x, w))
    assert_same_bits(mixed.linear_dx(x, w), compiled.linear_dx(x, w))
    saved = [k.attention(x, x, x, 2, 2)[1] for k in (mixed, compiled)]
    assert_same_bits(
        mixed.attention_backward(x, saved[0]), compiled.attention_backward(x, saved[1])
    )


SUBTLE: dict[str, Form] = {
    # Answers that are right on ordinary inputs.
    "linear": lambda x, w: (
        reference.FORMS["linear"](x, w) * np.float32(1.0)
        if x.q.shape[1] < 100_000
        else np.zeros((x.scale.size, w.scale.size), np.float32)
    ),
    "add": lambda a, b: np.where(a == -b, np.float32(0.0), a + b) * np.float32(1.0),
    "exp": lambda x: np.where(x > 88.0, reference.FORMS["exp"](x * 0), reference.FORMS["exp"](x)),
    "quantise_rows": lambda x, limit: dataclasses.replace(
        reference.FORMS["quantise_rows"](x, limit),
        q=np.floor(
            x * reference.products.scales(np.max(np.abs(x), 1).view(np.int32), limit)[1][:, None]
            + np.float32(0.5)
        ).astype(np.int8 if limit == 127 else np.int16),
    ),
}


@pytest.mark.parametrize("name", sorted(SUBTLE))
def test_errors_at_the_edges_only_are_found(name: str) -> None:
    """An overflow at the longest inner dimension, a lost -0, the end of exp, ties rounded up."""
    if name == "add":
        minus_zero = np.full((1, 1), -0.0, np.float32)
        assert not np.signbit(SUBTLE["add"](minus_zero, minus_zero)[0, 0])
    assert gates.fault(name, SUBTLE[name]) is not None


def test_a_kernel_that_raises_is_demoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise TypeError("no such lowering")

    monkeypatch.setitem(jit.FORMS, "rope", broken)
    assert "TypeError: no such lowering" in kernels.load().demoted["rope"]


def test_a_kernel_that_leaves_its_buffer_unwritten_is_found() -> None:
    def lazy(x: np.ndarray) -> np.ndarray:
        y = workspace.empty(x.shape, np.float32)
        y[:-1] = reference.FORMS["exp"](x)[:-1]
        return y

    assert "differ" in str(gates.fault("exp", lazy))


def test_a_kernel_that_writes_outside_its_buffer_is_found() -> None:
    def careless(x: np.ndarray) -> np.ndarray:
        y = workspace.empty(x.shape, np.float32)
        y[:] = reference.FORMS["exp"](x)
        y.base[-1] ^= 1  # a byte behind the array
        return y

    assert "outside its arrays" in str(gates.fault("exp", careless))


def test_a_kernel_that_accepts_what_must_be_refused_is_found() -> None:
    def permissive(g: np.ndarray, exponent: int, limit: int) -> Any:
        return reference.FORMS["grid"](np.where(np.isfinite(g), g, np.float32(0)), exponent, limit)

    assert "differ" in str(gates.fault("grid", permissive))


def test_reference_forms_pass_their_own_gates() -> None:
    for name, form in reference.FORMS.items():
        assert gates.fault(name, form) is None


def test_poison_is_gone_after_a_gate(compiled: kernels.Kernels) -> None:
    gates.fault("exp", jit.FORMS["exp"])
    assert workspace.empty(3, np.int8).base is None


def test_gates_digest_is_a_constant() -> None:
    """A change here is a new arithmetic: raise ARITHMETIC_VERSION with it."""
    assert kernels.ARITHMETIC_VERSION == 1
    assert kernels.gates_digest() == DIGEST
    assert len(hashlib.sha256().hexdigest()) == len(DIGEST)


def test_gate_inputs_hold_what_they_promise() -> None:
    x = gate_cases.with_specials(gate_cases.floats("any", 9, 40))
    bits = set(x.view(np.uint32).reshape(-1).tolist())
    assert {0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000} <= bits


def test_probe_passes_on_sound_kernels(
    compiled: kernels.Kernels, reference: kernels.Kernels
) -> None:
    assert len(kernels.probe_expected()) == 32
    before = compiled.counts["linear"]
    assert kernels.probe(compiled) == kernels.probe(reference) == kernels.probe_expected()
    assert compiled.counts["linear"] == before + 1


def test_probe_fails_when_the_live_product_is_wrong(compiled: kernels.Kernels) -> None:
    """Also when it went wrong after the gates."""
    forms = dict(compiled._forms)
    forms["linear"] = wrong("linear")
    broken = kernels.Kernels("numba", forms, lambda: False)
    assert kernels.probe(broken) != kernels.probe_expected()


def test_probe_repeats_the_layout_of_its_operands(
    compiled: kernels.Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packing is part of what can break, so packed operands must not be kept between probes."""
    kernels.probe(compiled)
    pack = jit.products.right_rows

    def mispack(words: np.ndarray) -> np.ndarray:
        out = pack(words)
        out[5] ^= 1
        return out

    monkeypatch.setattr(jit.products, "right_rows", mispack)
    assert kernels.probe(compiled) != kernels.probe_expected()


def test_reference_only_load_says_why() -> None:
    assert loader.load(reference_only=True).backend == "reference"
    assert "asked for" in loader.load(reference_only=True).reason
