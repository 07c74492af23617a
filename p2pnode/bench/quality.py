"""`bench quality`: does the exact step train as well as plain float32?

Pairs of runs share everything but the arithmetic: initial weights, batches, schedule, optimizer.
One is the product's own (int8 and 12-bit products, gradients on the integer grid), the other
PyTorch's in float32. What is compared is the loss on held-out text at the end.
May import: config, errors, train, siblings; torch through torch_model.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

import msgspec

from p2pnode.bench.rounds import table
from p2pnode.config import RunConfig, RunOptions
from p2pnode.errors import BenchmarkError, P2PNodeError, UsageError
from p2pnode.train.arithmetic import kernels
from p2pnode.train.data import Dataset
from p2pnode.train.open_data import open_dataset
from p2pnode.train.trainer import Trainer

SETTINGS = {
    "width": 96, "layers": 2, "heads": 3, "ffn": 256, "seq_len": 128,
    "micro_batch": 2, "slots": 4, "warmup": 30,
}  # fmt: skip
HELDOUT_SLOTS = 64
ALLOWED, ALLOWED_ERROR = 0.01, 0.007
"""Nats: the mean difference may be ALLOWED plus two standard errors, which are ALLOWED_ERROR at
most."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train every pair, print a line for each and the table. Raises BenchmarkError if the quality
    is not shown to be the same."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rates", default="0.0005,0.001")
    parser.add_argument("--data", default="builtin")
    options = parser.parse_args(argv)
    try:
        twin = importlib.import_module("p2pnode.bench.float_run")
    except ImportError:
        raise UsageError("PyTorch is not installed; install the extra `torch`.") from None
    rates = _rates(options.rates)
    if options.seeds * len(rates) < 2 or options.steps < 1:
        raise UsageError("A comparison takes at least two pairs of runs of one step.")
    data = open_dataset(options.data)
    differences: dict[float, list[float]] = {rate: [] for rate in rates}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for rate in rates:
            run = run_for(seed, rate, options.steps, data)
            start = time.perf_counter()
            ours = train_exact(run, data)
            middle = time.perf_counter()
            theirs = twin.train(run, data)
            differences[rate].append(ours - theirs)
            print(
                f"seed {seed}, rate {rate:g}: exact {ours:.4f}, float32 {theirs:.4f}, "
                f"difference {ours - theirs:+.4f} "
                f"({middle - start:.0f} s, {time.perf_counter() - middle:.0f} s)",
                flush=True,
            )
    text, passed = verdict(differences)
    print(f"\n{text}\n")
    if not passed:
        raise BenchmarkError(
            f"Not shown to be the same: the mean difference may be {ALLOWED} nats plus two "
            f"standard errors, and the standard error {ALLOWED_ERROR}."
        )
    print(
        f"The mean difference is within {ALLOWED} nats plus two standard errors, and the standard "
        f"error within {ALLOWED_ERROR}."
    )
    return 0


def _rates(text: str) -> list[float]:
    try:
        return [float(rate) for rate in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--rates {text!r} is not a list of numbers such as 0.001,0.002."
        ) from None


def run_for(seed: int, rate: float, steps: int, data: Dataset) -> RunConfig:
    """The configuration that both runs of a pair follow."""
    options = RunOptions(seed=seed, lr=rate, steps=steps, eval_every=0, **SETTINGS)  # type: ignore[arg-type]
    config = options.config(
        arithmetic_version=kernels.ARITHMETIC_VERSION,
        gates_digest=kernels.gates_digest(),
        data=data.manifest.hash(),
    )
    return msgspec.structs.replace(config, eval_slots=HELDOUT_SLOTS)


def train_exact(run: RunConfig, data: Dataset) -> float:
    """Held-out loss in nats after all steps, by the product's trainer alone."""
    trainer = Trainer(run, data)
    for step in range(run.steps):
        slots = [trainer.compute_slot(step, slot) for slot in range(run.slots)]
        largest = [max(e) for e in zip(*(e.max_abs for e, _ in slots), strict=True)]
        trainer.apply(step, trainer.add([q for _, q in slots]), largest)
        trainer.commit(step)
    held = trainer.heldout_loss()
    return held.loss / 2**24 / held.tokens


def verdict(differences: Mapping[float, Sequence[float]]) -> tuple[str, bool]:
    """A table of exact less float32 held-out losses (nats) by learning rate, and whether all of
    them together pass."""
    everything = [value for values in differences.values() for value in values]
    rows = [
        (
            name,
            str(len(values)),
            f"{statistics.mean(values):+.4f}",
            f"{_standard_error(values):.4f}",
            f"{min(values):+.3f} to {max(values):+.3f}",
        )
        for name, values in [
            *((f"{rate:g}", values) for rate, values in differences.items()),
            ("all", everything),
        ]
    ]
    error = _standard_error(everything)
    passed = error <= ALLOWED_ERROR and statistics.mean(everything) <= ALLOWED + 2 * error
    head = ("learning rate", "pairs", "mean difference, nats", "standard error", "range")
    return table(head, rows), passed


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


if __name__ == "__main__":
    try:
        sys.exit(main())
    except P2PNodeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
