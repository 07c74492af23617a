"""`bench kernels`: the exact products against numpy's float32 product, and what lies around them.

May import: train.arithmetic, siblings.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pnode.bench import goals
from p2pnode.bench.goals import ALL_IN, DW, DX, FRESH, INT8, PACKED, TILE, Product
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
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    rounds = options.rounds
    ops = kernels.load()
    print(f"processor: {processor_name()}; BLAS: {blas_kernel()}")
    print(f"kernels: {ops.backend}{_target()}, rounds: {rounds}, CPU time of one thread\n")
    products = list(_products(ops, rounds))
    print(f"Products against numpy float32\n\n{table(PRODUCT_HEAD, list(map(_row, products)))}\n")
    rows, reached = _vectors(ops, rounds)
    print(f"Vectors\n\n{table(VECTOR_HEAD, rows)}\n", flush=True)
    sse = getattr(_part("target"), "LANES", 0) == 4
    held = list(goals.of_products(products, sse=sse, logits=VOCABULARY, cube=SQUARE))
    reached = held if sse else held + reached  # the others are for processors with AVX2
    print(f"Figures to reach\n\n{table(goals.HEAD, reached)}\n")
    if options.threads > 1:
        spread = list(_threads(ops, rounds, options.threads))
        print(f"{options.threads} threads\n\n{table(THREAD_HEAD, spread)}\n")


def _part(name: str) -> Any:
    """A module of the compiled kernels, or None."""
    try:
        return importlib.import_module(f"{ALIAS}.jit.{name}")
    except ImportError:
        return None


def _target() -> str:
    target = _part("target")
    if target is None:
        return ""
    quads = "none" if target.QUADS is None else target.QUADS.instruction
    return f" for {target.CPU}, {target.LANES} lanes, {target.WORDS}, int8 quads: {quads}"


PRODUCT_HEAD = ("product", "M, N, K", "GOP/s", "numpy GFLOP/s", "x numpy", "% of register loop")


def _row(p: Product) -> Sequence[str]:
    return (
        p.kind,
        p.name,
        f"{p.work / p.seconds / 1e9:.0f}",
        f"{p.work / p.numpy / 1e9:.0f}",
        f"{p.times:.2f}",
        f"{100 * p.share:.0f}" if p.share else "-",
    )


def _products(ops: kernels.Kernels, rounds: int) -> Iterator[Product]:
    """One for every kind and shape. Shapes are rows and columns of the result, inner length."""
    for n, k in FORWARD:
        yield from _forward(ops, rounds, TOKENS, n, k)
    yield from _forward(ops, rounds, SQUARE, SQUARE, SQUARE)
    for n, k in BACKWARD:
        yield from _backward(ops, rounds, n, k)


def _forward(ops: kernels.Kernels, rounds: int, m: int, n: int, k: int) -> Iterator[Product]:
    x, w = _normal(1, m, k), _normal(2, n, k)
    turned = np.ascontiguousarray(w.T)
    x8, w8 = ops.quantise_rows(x), ops.quantise_rows(w)
    fresh_x, fresh_w = ops.quantise_rows(x), ops.quantise_rows(w)

    def fresh() -> F32:
        fresh_x.tiles.clear()
        fresh_w.tiles.clear()
        return ops.linear(fresh_x, fresh_w)

    candidates = {
        "numpy": lambda: x @ turned,
        f"{INT8}, {TILE}": lambda: ops.linear(x8, w8),
        f"{INT8}, {PACKED}": lambda: ops.linear(x, w8),
        f"{INT8}, {FRESH}": fresh,
        f"{INT8}, both quantised and packed in the call": lambda: ops.linear(x, w),
    }
    yield from _measured(candidates, rounds, (m, n, k))


def _backward(ops: kernels.Kernels, rounds: int, n: int, k: int) -> Iterator[Product]:
    """Gradients of y[M, N] = x[M, K] @ w[N, K].T."""
    dy, x, w = _normal(1, TOKENS, n), _normal(2, TOKENS, k), _normal(3, n, k)
    dy12, w12 = ops.quantise_rows(dy, 2047), ops.quantise_cols(w)
    yield from _measured(
        {
            "numpy": lambda: dy @ w,
            f"{DX}, {TILE}": lambda: ops.linear_dx(dy12, w12),
            f"{DX}, {PACKED}": lambda: ops.linear_dx(dy, w12),
        },
        rounds,
        (TOKENS, k, n),
    )
    dw = np.empty((n, k), np.float32)
    down, x12 = ops.quantise_cols(dy), ops.quantise_cols(x)
    yield from _measured(
        {
            "numpy": lambda: dy.T @ x,
            f"{DW}, {TILE}": lambda: ops.linear_dw(down, x12, dw),
            f"{DW}, x packed": lambda: ops.linear_dw(dy, x12, dw),
            f"{DW}, {ALL_IN}": lambda: ops.linear_dw(dy, x, dw),
        },
        rounds,
        (n, k, TOKENS),
    )


def _measured(
    candidates: Candidates, rounds: int, shape: tuple[int, int, int]
) -> Iterator[Product]:
    spin, loop = _register_loop()
    times = measure({**candidates, "loop": spin}, rounds) if loop else measure(candidates, rounds)
    work = 2 * math.prod(shape)
    for name in list(candidates)[1:]:
        # A product's time against the loop's for as much work.
        share = times.speed(name, "loop") * work / loop if loop else 0.0
        yield Product(
            name,
            shape,
            times.median(name),
            times.median("numpy"),
            times.speed(name, "numpy"),
            share,
        )


def _register_loop() -> tuple[Callable[[], object], int]:
    """The multiply-adds of int16 pairs on registers alone, and how many operations a call does."""
    count = 20_000
    peak = _part("peak")
    if peak is None:
        return (lambda: None), 0
    return (lambda: peak.spin(3, count)), count * int(peak.OPERATIONS)


VECTOR_HEAD = ("operation", "values", "ms", "GB/s of its bytes", "memcpy GB/s", "x its bytes' time")


def _vectors(ops: kernels.Kernels, rounds: int) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    """Operations on long vectors against a copy of one of them, and exp against numpy's.

    Rows under `VECTOR_HEAD` and under `goals.HEAD`.
    """
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
    rows, figures = [], []
    for name, (_, per_value) in memory.items():
        rows.append(_vector_row(times, name, "copy", g.size, per_value))
        figures.append((name, 8 / per_value / times.speed(name, "copy")))
    pack = _packing(x)
    small_times = measure(
        {
            "copy": lambda: np.copyto(small, x),
            "quantise": lambda: ops.quantise_rows(x, 2047),
            "quantise and pack": pack,
            "numpy": lambda: np.exp(flat),
            "exp": lambda: ops.exp(flat),
        },
        rounds,
    )
    rows.append(_vector_row(small_times, "quantise", "copy", x.size, 8))
    rows.append(_vector_row(small_times, "quantise and pack", "copy", x.size, 8))
    rows.append(_vector_row(small_times, "exp", "copy", x.size, 8))
    packing = 1 / small_times.speed("quantise and pack", "copy")
    reached = [
        goals.VECTORS.row(figures),
        goals.QUANTISE.row([("1024, 768", packing)]),
        goals.EXP.row([(str(flat.size), 1 / small_times.speed("exp", "numpy"))]),
    ]
    return rows, reached


def _packing(x: F32) -> Callable[[], object]:
    """Quantises x[M, K] by rows to 12 bits, straight into the words that a product reads."""
    products, pack = _part("products"), _part("pack")
    if products is None:
        return lambda: kernels.load().quantise_rows(x, 2047)
    words = pack.row_words(*x.shape, 2)
    scale = np.empty(x.shape[0], np.float32)
    forms = words.view(np.int16), words.view(np.int8)
    count = x.shape[1] // 2
    return lambda: products._quantise_rows_chunk(
        x, np.float32(2047), *forms, scale, count, False, np.int32(0), True
    )


def _vector_row(times: Times, name: str, copy: str, size: int, per_value: int) -> Sequence[str]:
    """per_value: bytes read and written for each of `size` values; a copy moves 8."""
    moved = size * per_value
    return (
        name,
        str(size),
        f"{times.median(name) * 1e3:.2f}",
        f"{moved / times.median(name) / 1e9:.1f}",
        f"{8 * size / times.median(copy) / 1e9:.1f}",
        f"{8 / per_value / times.speed(name, copy):.2f}",
    )


THREAD_HEAD = ("operation", "shape", "times as fast", "calling thread computes a 1/")


def _threads(ops: kernels.Kernels, rounds: int, count: int) -> Iterator[Sequence[str]]:
    """Every kind of operation on `count` threads against itself on one.

    The clock needs an otherwise idle machine. What the calling thread computes itself does not: it
    waits for the others without computing, so it tells how far work was shared out.
    """
    n, k = BACKWARD[-1]
    dy, x, w = _normal(1, TOKENS, n), _normal(2, TOKENS, k), _normal(3, n, k)
    x8, w8 = ops.quantise_rows(x), ops.quantise_rows(w)
    w12, x12 = ops.quantise_cols(w), ops.quantise_cols(x)
    q = _normal(4, TOKENS, 256)
    _, saved = ops.attention(q, q, q, 8, 4)
    dw = np.empty((n, k), np.float32)
    runs: dict[str, tuple[str, Callable[[], object]]] = {
        "int8 product": (f"{TOKENS}, {n}, {k}", lambda: ops.linear(x8, w8)),
        "12-bit dX": (f"{TOKENS}, {k}, {n}", lambda: ops.linear_dx(dy, w12)),
        "12-bit dW": (f"{n}, {k}, {TOKENS}", lambda: ops.linear_dw(dy, x12, dw)),
        "attention": ("8 x 128, 4 heads of 64", lambda: ops.attention(q, q, q, 8, 4)),
        "attention, backward": ("the same", lambda: ops.attention_backward(q, saved)),
    }

    def on(threads: int, run: Callable[[], object]) -> Callable[[], object]:
        def timed() -> object:
            kernels.use_threads(threads)
            return run()

        return timed

    for name, (shape, run) in runs.items():
        runs_on = {"one": on(1, run), "all": on(count, run)}
        clock, own = measure(runs_on, rounds, threads=count), measure(runs_on, rounds)
        yield name, shape, f"{clock.speed('all', 'one'):.2f}", f"{own.speed('all', 'one'):.2f}"
    kernels.use_threads(1)


def _normal(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


if __name__ == "__main__":
    main()
