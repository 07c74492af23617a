"""`bench kernels`: the exact products against numpy's float32 product, and what lies around them.

May import: train.arithmetic, siblings.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from p2pnode.bench.machine import blas_kernel, processor_name
from p2pnode.bench.rounds import Candidates, Times, measure, table
from p2pnode.train.arithmetic import ALIAS, kernels

F32 = NDArray[np.float32]

TOKENS, VOCABULARY = 1024, 16_512
FORWARD = ((256, 256), (768, 256), (256, 672), (VOCABULARY, 256), (1024, 1024))
"""(outputs, inputs) of linear layers, for `TOKENS` rows."""
BACKWARD = ((256, 256), (672, 256), (256, 672), (VOCABULARY, 256))
SQUARE = 256
PARAMETERS = 10_000_000


def main(argv: Sequence[str] | None = None) -> None:
    """Print every table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args(argv).rounds
    ops = kernels.load()
    print(f"processor: {processor_name()}; BLAS: {blas_kernel()}")
    print(f"kernels: {ops.backend}{_target()}, rounds: {rounds}, CPU time of one thread\n")
    for title, head, rows in (
        ("Products against numpy float32", PRODUCT_HEAD, _products(ops, rounds)),
        ("Vectors", VECTOR_HEAD, _vectors(ops, rounds)),
    ):
        print(f"{title}\n\n{table(head, list(rows))}\n", flush=True)


def _target() -> str:
    try:
        target = importlib.import_module(f"{ALIAS}.jit.target")
    except ImportError:
        return ""
    quads = "none" if target.QUADS is None else target.QUADS.instruction
    return f" for {target.CPU}, {target.LANES} lanes, {target.WORDS}, int8 quads: {quads}"


PRODUCT_HEAD = ("product", "M, N, K", "GOP/s", "numpy GFLOP/s", "x numpy", "% of register loop")


def _products(ops: kernels.Kernels, rounds: int) -> Iterator[Sequence[str]]:
    """One row for every kind and shape. Shapes are rows and columns of the result, inner length."""
    for n, k in FORWARD:
        yield from _forward(ops, rounds, TOKENS, n, k)
    yield from _forward(ops, rounds, SQUARE, SQUARE, SQUARE)
    for n, k in BACKWARD:
        yield from _backward(ops, rounds, n, k)


def _forward(ops: kernels.Kernels, rounds: int, m: int, n: int, k: int) -> Iterator[Sequence[str]]:
    x, w = _normal(1, m, k), _normal(2, n, k)
    turned = np.ascontiguousarray(w.T)
    x8, w8 = ops.quantise_rows(x), ops.quantise_rows(w)
    candidates = {
        "numpy": lambda: x @ turned,
        "int8, both operands quantised": lambda: ops.linear(x8, w8),
        "int8, weights packed": lambda: ops.linear(x, w8),
        "int8, all in the call": lambda: ops.linear(x, w),
    }
    yield from _rows(candidates, rounds, (m, n, k))


def _backward(ops: kernels.Kernels, rounds: int, n: int, k: int) -> Iterator[Sequence[str]]:
    """Gradients of y[M, N] = x[M, K] @ w[N, K].T."""
    dy, x, w = _normal(1, TOKENS, n), _normal(2, TOKENS, k), _normal(3, n, k)
    dy12, w12 = ops.quantise_rows(dy, 2047), ops.quantise_cols(w)
    yield from _rows(
        {
            "numpy": lambda: dy @ w,
            "12-bit dX, both operands quantised": lambda: ops.linear_dx(dy12, w12),
            "12-bit dX, weights packed": lambda: ops.linear_dx(dy, w12),
        },
        rounds,
        (TOKENS, k, n),
    )
    dw = np.empty((n, k), np.float32)
    yield from _rows(
        {
            "numpy": lambda: dy.T @ x,
            "12-bit dW, all in the call": lambda: ops.linear_dw(dy, x, dw),
        },
        rounds,
        (n, k, TOKENS),
    )


def _rows(
    candidates: Candidates, rounds: int, shape: tuple[int, int, int]
) -> Iterator[Sequence[str]]:
    spin, loop = _register_loop()
    times = measure({**candidates, "loop": spin}, rounds) if loop else measure(candidates, rounds)
    work = 2 * math.prod(shape)
    for name in list(candidates)[1:]:
        share = "-"
        if loop:
            # A product's time against the loop's for as much work.
            share = f"{100 * times.speed(name, 'loop') * work / loop:.0f}"
        yield (
            name,
            ", ".join(map(str, shape)),
            f"{work / times.median(name) / 1e9:.0f}",
            f"{work / times.median('numpy') / 1e9:.0f}",
            f"{times.speed(name, 'numpy'):.2f}",
            share,
        )


def _register_loop() -> tuple[Callable[[], object], int]:
    """The multiply-adds of int16 pairs on registers alone, and how many operations a call does."""
    count = 20_000
    try:
        peak = importlib.import_module(f"{ALIAS}.jit.peak")
    except ImportError:
        return (lambda: None), 0
    return (lambda: peak.spin(3, count)), count * int(peak.OPERATIONS)


VECTOR_HEAD = ("operation", "values", "ms", "GB/s of its bytes", "memcpy GB/s", "x its bytes' time")


def _vectors(ops: kernels.Kernels, rounds: int) -> Iterator[Sequence[str]]:
    """Operations on long vectors against a copy of one of them, and exp against numpy's."""
    g = _normal(1, PARAMETERS) * np.float32(1e-3)
    q, _, _ = ops.grid(g, -27, 2**27 - 1)
    total = np.zeros_like(q)
    out = np.empty_like(g), np.empty_like(g), np.empty_like(g)
    w, m, v = g.copy(), g.copy(), g * g
    copy = np.empty_like(g)
    scalars = kernels.adam_scalars(
        lr=1e-3, beta1=0.9, beta2=0.95, beta1_power=0.9, beta2_power=0.95, eps=1e-8,
        weight_decay=0.1, clip=0.5,
    )  # fmt: skip
    whole = [(0, g.size, True)]
    x = _normal(2, TOKENS, 768)
    small = np.empty_like(x)
    flat = x.reshape(-1)
    memory = {
        "gradient to the grid": (lambda: ops.grid(g, -27, 2**27 - 1), 8),
        "add on the grid": (lambda: ops.grid_add(total, q), 12),
        "flat norm": (lambda: ops.norm(g), 4),
        "dequantise": (lambda: ops.dequantise(q, -27, 16), 8),
        "clip and Adam": (lambda: ops.adam(w, m, v, g, scalars, whole, out), 28),
    }
    times = measure(
        {"copy": lambda: np.copyto(copy, g), **{n: run for n, (run, _) in memory.items()}}, rounds
    )
    for name, (_, per_value) in memory.items():
        yield _vector_row(times, name, "copy", g.size, per_value)
    times = measure(
        {"copy": lambda: np.copyto(small, x), "quantise": lambda: ops.quantise_rows(x, 2047)},
        rounds,
    )
    yield _vector_row(times, "quantise", "copy", x.size, 8)
    times = measure({"numpy": lambda: np.exp(flat), "exp": lambda: ops.exp(flat)}, rounds)
    ratio = times.median("exp") / times.median("numpy")
    yield ("exp", str(flat.size), f"{times.median('exp') * 1e3:.3f}", f"{ratio:.2f} x numpy's",
           "-", "-")  # fmt: skip


def _vector_row(times: Times, name: str, copy: str, size: int, per_value: int) -> Sequence[str]:
    """per_value: bytes read and written for each of `size` values; a copy moves 8."""
    moved = size * per_value
    share = per_value / 8 / times.speed(name, copy) if per_value else 0.0
    return (
        name,
        str(size),
        f"{times.median(name) * 1e3:.2f}",
        f"{moved / times.median(name) / 1e9:.1f}",
        f"{8 * size / times.median(copy) / 1e9:.1f}",
        f"{1 / (times.speed(name, copy) * per_value / 8):.2f}" if share else "-",
    )


def _normal(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


if __name__ == "__main__":
    main()
