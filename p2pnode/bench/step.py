"""`bench step`: forward and backward of one slot against PyTorch, and where its time goes.

May import: config, errors, train, siblings.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from p2pnode.bench import goals
from p2pnode.bench.machine import blas_kernel, processor_name
from p2pnode.bench.rounds import measure, table
from p2pnode.config import ModelConfig
from p2pnode.errors import UsageError
from p2pnode.train import model as decoder
from p2pnode.train.arithmetic import kernels
from p2pnode.train.layout import layout_of
from p2pnode.train.weights import Weights

BATCH, SEQ_LEN = 8, 128
MODELS = {
    "256 wide, 4 layers, vocabulary 16,512": (256, 4, 4, 672, 16_512),
    "256 wide, 4 layers, vocabulary 256": (256, 4, 4, 672, 256),
    "512 wide, 8 layers, vocabulary 16,512": (512, 8, 8, 1376, 16_512),
}
"""Width, layers, heads, feed-forward width, vocabulary."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every model, or the one asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--against", default="torch")
    parser.add_argument("--models", type=int, nargs="*", default=range(len(MODELS)))
    options = parser.parse_args(argv)
    against = set(options.against.split(",")) - {"numpy", ""}
    print(f"processor: {processor_name()}; BLAS: {blas_kernel()}")
    print(f"rounds: {options.rounds}, threads: {options.threads}\n")
    for index in options.models:
        _measure(list(MODELS)[index], options.rounds, options.threads, against)


def _measure(name: str, rounds: int, threads: int, against: set[str]) -> None:
    width, layers, heads, ffn, vocab = MODELS[name]
    model = ModelConfig(
        vocab=vocab, width=width, layers=layers, heads=heads, ffn=ffn, seq_len=SEQ_LEN
    )
    rng = np.random.default_rng(1)
    flat = (rng.standard_normal(layout_of(model).size) * 0.02).astype(np.float32)
    inputs, targets = (rng.integers(0, vocab, (BATCH, SEQ_LEN)).astype(np.int32) for _ in range(2))
    ops = kernels.load()
    kernels.use_threads(threads)

    def step(ops: kernels.Kernels) -> float:
        # The weights are prepared anew, though a node does that once for all slots of a step.
        loss, _ = decoder.loss_and_gradient(Weights(ops, model, flat), inputs, targets)
        return loss / 2**24 / inputs.size

    def on(count: int) -> float:
        kernels.use_threads(count)
        return step(ops)

    candidates: dict[str, Callable[[], float]] = {"exact": lambda: on(threads)}
    if threads > 1:
        candidates["exact, one thread"] = lambda: on(1)
    if against:
        candidates |= _torch(model, flat, inputs, targets, threads, against)
    losses = {name: run() for name, run in candidates.items()}
    times = measure(candidates, rounds, threads=threads)
    rows = [
        (
            candidate,
            f"{times.median(candidate) * 1e3:.0f}",
            f"{inputs.size / times.median(candidate):.0f}",
            f"{times.speed('exact', candidate):.2f}",
            f"{losses[candidate]:.5f}",
        )
        for candidate in candidates
    ]
    print(f"{name}: {flat.size / 1e6:.1f} M parameters, {BATCH} x {SEQ_LEN} tokens\n")
    head = ("forward and backward", "ms", "tokens/s", "exact is faster by", "loss")
    print(f"{table(head, rows)}\n\n{_profile(ops, step)}\n", flush=True)
    if threads > 1:
        alone = ("exact", "exact, one thread")
        own = measure({which: candidates[which] for which in alone}, rounds)
        print(f"The calling thread computes 1/{own.speed(*alone):.2f} of it itself.\n", flush=True)
    index = list(MODELS).index(name)
    reached = [
        goals.Goal("forward and backward", other, bounds[index]).row(
            [(name, times.speed("exact", other))]
        )
        for other, bounds in (("torch eager", goals.EAGER), ("torch.compile", goals.COMPILED))
        if other in candidates
    ]
    if reached:
        print(f"{table(goals.HEAD, reached)}\n", flush=True)


def _torch(*arguments: Any) -> dict[str, Callable[[], float]]:
    *model, threads, against = arguments
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise UsageError(
            "PyTorch is not installed; install torch, or use `--against numpy`."
        ) from None
    torch.set_num_threads(threads)
    torch_model = importlib.import_module("p2pnode.bench.torch_model")
    steps: dict[str, Callable[[], float]] = torch_model.steps(*model, "compile" in against)
    return steps


def _profile(ops: kernels.Kernels, step: Callable[[kernels.Kernels], float]) -> str:
    """Share of every operation in the CPU time of one step, with the Python code before it."""
    spent: defaultdict[str, float] = defaultdict(float)
    last = time.thread_time()

    def watch(name: str, arguments: tuple[Any, ...], result: Any) -> None:
        nonlocal last
        now = time.thread_time()
        spent[name] += now - last
        last = now

    step(ops.observed(watch))
    total = sum(spent.values())
    return ", ".join(
        f"{name} {seconds * 1e3:.1f} ms ({100 * seconds / total:.0f} %)"
        for name, seconds in sorted(spent.items(), key=lambda item: -item[1])
    )


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
