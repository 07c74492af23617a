"""Compiled and reference forms give the same bits, beyond the fixed inputs of the gates."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kernels
from kernels import gate_cases, jit, reference
from kernels.jit import (
    attention,
    attention_backward,
    layers,
    loss,
    optimizer,
    pack,
    products,
    threads,
)

from .helpers import assert_same_bits, normal

Case = Callable[[kernels.Kernels, int], Any]


def ragged(seed: int) -> tuple[int, int, int]:
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in rng.integers(1, 80, 3))
    return m, n, k if seed % 3 else k + 600


def strewn(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal values times a wide range of row scales, with zeros and subnormals."""
    x = normal(seed, *shape, scale=scale)
    x *= np.exp2(np.random.default_rng(seed).integers(-20, 20, (shape[0], 1))).astype(np.float32)
    return gate_cases.with_specials(x)


def forward_product(k: kernels.Kernels, seed: int) -> Any:
    m, n, inner = ragged(seed)
    return k.linear(strewn(seed, m, inner), strewn(seed + 1, n, inner))


def backward_products(k: kernels.Kernels, seed: int) -> Any:
    m, n, inner = ragged(seed)
    dy, x, w = strewn(seed, m, n), strewn(seed + 1, m, inner), strewn(seed + 2, n, inner)
    wide = k.linear_dw(strewn(seed, inner, m), strewn(seed + 3, inner, n))
    return k.linear_dx(dy, w), k.linear_dw(dy, x), wide


def quantisers(k: kernels.Kernels, seed: int) -> Any:
    m, n, _ = ragged(seed)
    x = strewn(seed, m, n)
    x[m // 2] *= np.float32(2.0**-110)
    return [f(x, limit) for f in (k.quantise_rows, k.quantise_cols) for limit in (127, 2047)]


def norms(k: kernels.Kernels, seed: int) -> Any:
    m, n, _ = ragged(seed)
    x, gain = strewn(seed, m, n, scale=1e-3), normal(seed, n)
    y, inv = k.rmsnorm(x, gain, 1e-5)
    return y, inv, k.rmsnorm_backward(strewn(seed + 1, m, n), x, gain, inv)


def elementwise(k: kernels.Kernels, seed: int) -> Any:
    m, n, _ = ragged(seed)
    a, b, c = (strewn(seed + i, m, n) for i in range(3))
    flat = a.reshape(-1)
    return (
        k.swiglu(a, b),
        k.swiglu_backward(c, a, b),
        k.add(a, b),
        k.exp(flat),
        k.log(np.abs(flat) + np.float32(1e-30)),
    )


def rotary(k: kernels.Kernels, seed: int) -> Any:
    tables = kernels.rope_tables(7 + seed, 2 + 2 * seed)
    x = strewn(seed, 2 * (7 + seed), 3 * (2 + 2 * seed))
    return k.rope(x, *tables), k.rope_backward(x, *tables)


def attend(k: kernels.Kernels, seed: int) -> Any:
    batch, heads, seq_len, dim = 1 + seed % 3, 1 + seed % 2, 5 + 13 * seed, 1 + 7 * seed
    q, key, v, do = (strewn(seed + i, batch * seq_len, heads * dim) for i in range(4))
    q, key = normal(seed, *q.shape, scale=3), normal(seed + 1, *q.shape, scale=3)
    o, saved = k.attention(q, key, v, batch, heads)
    return o, saved, k.attention_backward(do, saved)


def embedding(k: kernels.Kernels, seed: int) -> Any:
    m, n, _ = ragged(seed)
    table = strewn(seed, 11, n)
    ids = np.random.default_rng(seed).integers(0, 11, m).astype(np.int32)
    gradient = normal(seed, 11, n)
    k.embed_backward(strewn(seed + 1, m, n), ids, gradient)
    return k.embed(table, ids), gradient


def losses(k: kernels.Kernels, seed: int) -> Any:
    m, n, _ = ragged(seed)
    targets = np.random.default_rng(seed).integers(0, n, m).astype(np.int32)
    return k.cross_entropy(normal(seed, m, n, scale=5), targets)


def optimizer_step(k: kernels.Kernels, seed: int) -> Any:
    n = 4096 * (seed % 3) + 17 * seed + 1
    w, m, g = (strewn(seed + i, n, 1).reshape(-1) for i in range(3))
    q = k.grid(g, -20, 2**27 - 1)
    total = q[0].copy()
    k.grid_add(total, k.grid(m, -20, 2**27 - 1)[0])
    scalars = kernels.adam_scalars(
        lr=0.01, beta1=0.9, beta2=0.95, beta1_power=0.5, beta2_power=0.7,
        eps=1e-8, weight_decay=0.1, clip=0.25,
    )  # fmt: skip
    segments = [(0, 1, True)] + ([(1, n, False)] if n > 1 else [])
    mean = k.dequantise(total, -20, 3)
    return q, total, mean, k.norm(mean), k.adam(w, m, np.abs(m), mean, scalars, segments)


CASES: list[Case] = [
    forward_product,
    backward_products,
    quantisers,
    norms,
    elementwise,
    rotary,
    attend,
    embedding,
    losses,
    optimizer_step,
]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("case", CASES)
def test_same_bits(
    case: Case, seed: int, compiled: kernels.Kernels, reference: kernels.Kernels
) -> None:
    assert_same_bits(case(compiled, seed), case(reference, seed))


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Three threads that share out everything, however small; the numbers of parts that came up."""
    whole = threads.Threads.spread
    parts: set[int] = set()

    def spread(
        self: threads.Threads,
        rows: int,
        unit: int,
        work: Callable[[int, int], bool],
        least: int = 1,
    ) -> bool:
        begun: list[int] = []

        def counted(start: int, stop: int) -> bool:
            begun.append(start)
            return work(start, stop)

        done = whole(self, rows, unit, counted, 1)
        parts.add(len(begun))
        return done

    monkeypatch.setattr(threads.Threads, "spread", spread)
    threads.use(3)
    yield parts
    threads.use(1)


@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("case", CASES)
def test_threads_do_not_show(
    case: Case, seed: int, compiled: kernels.Kernels, reference: kernels.Kernels, split: set[int]
) -> None:
    assert_same_bits(case(compiled, seed), case(reference, seed))
    assert (max(split, default=1) > 1) == (case not in (embedding, optimizer_step))


def test_what_one_thread_refuses_is_refused(compiled: kernels.Kernels, split: set[int]) -> None:
    bad = normal(1, 33, 32)
    bad[-1, -1] = np.nan
    good, ids = normal(2, 33, 32), np.zeros(33, np.int32)
    huge = np.full((33, 32), np.float32(3e38))
    _, saved = compiled.attention(good, good, good, 1, 4)
    for refused in (
        lambda: compiled.quantise_rows(bad),
        lambda: compiled.quantise_cols(bad),
        lambda: compiled.cross_entropy(bad, ids),
        lambda: compiled.attention(huge, huge, good, 1, 4),
        lambda: compiled.attention_backward(huge, saved),
    ):
        with pytest.raises(kernels.NonFiniteInputError):
            refused()
    assert 3 in split


def test_any_order_of_tokens_gives_the_same_rows(compiled: kernels.Kernels) -> None:
    """Rows are independent: a product does not depend on how rows fall into tiles."""
    x, w = normal(1, 40, 33), normal(2, 21, 33)
    order = np.random.default_rng(3).permutation(40)
    assert_same_bits(compiled.linear(x, w)[order], compiled.linear(x[order], w))


def test_every_operation_has_both_forms_and_a_gate() -> None:
    assert set(reference.FORMS) == set(jit.FORMS) == set(gate_cases.GATES)


def test_cases_here_run_every_operation(compiled: kernels.Kernels) -> None:
    before = compiled.counts.copy()
    for case in CASES:
        case(compiled, 1)
    called = {name for name in reference.FORMS if compiled.counts[name] > before[name]}
    assert called == set(reference.FORMS) - {"attention_step"}  # see test_attention


def test_compiled_code_runs_without_the_interpreter_lock() -> None:
    modules = (attention, attention_backward, layers, loss, optimizer, pack, products)
    found = 0
    for module in modules:
        assert module.__file__ is not None
        with open(module.__file__, encoding="utf-8") as source:
            tree = ast.parse(source.read())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and "kernel" in [
                d.id for d in node.decorator_list if isinstance(d, ast.Name)
            ]:
                options = getattr(module, node.name).targetoptions
                assert options["nogil"]
                assert options["error_model"] == "numpy"
                assert not options.get("fastmath")
                assert not options.get("parallel")
                found += 1
    assert found >= len(reference.FORMS)
