"""`python -m p2pnode.bench.bits_run`: a short training through every kernel, as one hash.

Prints one JSON object (`Report`). Runs wherever the kernels run, with numpy and msgspec alone.
May import: config, errors, train.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import platform
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pnode.config import RunConfig, RunOptions
from p2pnode.train import model
from p2pnode.train.arithmetic import ALIAS, kernels
from p2pnode.train.data import Dataset
from p2pnode.train.decoder import Decoder
from p2pnode.train.open_data import open_dataset
from p2pnode.train.state import little_endian
from p2pnode.train.trainer import Trainer
from p2pnode.train.weights import Weights

# Widths are no multiples of a tile; a slot has rows enough for four threads.
SHAPE = {"width": 44, "layers": 2, "heads": 2, "ffn": 90, "seq_len": 98}
BATCH = {"micro_batch": 4, "slots": 4, "steps": 4, "warmup": 1, "lr": 0.01}
_PATTERNS = 65_536


class Report(msgspec.Struct, frozen=True):
    """What a machine found."""

    backend: str
    target: str
    """What the kernels were compiled for, or the machine."""
    demoted: tuple[str, ...]
    unused: tuple[str, ...]
    """Operations that did not run: should be none."""
    hashes: dict[str, str]
    """Number of threads -> SHA-256 (hex) over everything computed."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", default="1")
    threads = [int(count) for count in parser.parse_args(argv).threads.split(",")]
    data = open_dataset("builtin")
    trainer = Trainer(_run_config(data), data)
    hashes = {}
    for count in threads:
        kernels.use_threads(count)
        trainer.restart(trainer.config, None)
        hashes[str(count)] = train(trainer)
    ops = trainer.kernels
    unused = set(importlib.import_module(f"{ALIAS}.reference").FORMS) - set(ops.counts)
    report = Report(ops.backend, _target(ops), tuple(ops.demoted), tuple(sorted(unused)), hashes)
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")


def _target(ops: kernels.Kernels) -> str:
    if ops.backend != "numba":
        return platform.machine()
    target = importlib.import_module(f"{ALIAS}.jit.target")
    quads = "none" if target.QUADS is None else target.QUADS.instruction.rpartition(".")[0]
    return f"{target.CPU}, {target.LANES} lanes, {target.WORDS}, quads: {quads}"


def train(trainer: Trainer) -> str:
    """Train from the first state to the end; SHA-256 (hex) over gates, probe, exp and log of 65,536
    bit patterns, gradients, weights, moments, grid and losses of every step, and logits at the end.
    """
    ops, run, data = trainer.kernels, trainer.config, trainer.dataset
    digest = hashlib.sha256(kernels.gates_digest().encode() + kernels.probe(ops))

    def see(*values: NDArray[np.float32] | NDArray[np.int32]) -> None:
        for value in values:
            digest.update(little_endian(value.reshape(-1)))

    patterns = kernels.random_u64(1, "patterns", np.arange(_PATTERNS)).astype(np.uint32)
    see(ops.exp(patterns.view(np.float32)))
    normal = (patterns % np.uint32(0x7F000000)) + np.uint32(0x00800000)
    see(ops.log(normal.view(np.float32)))

    for step in range(run.steps):
        slots = [trainer.compute_slot(step, slot) for slot in range(run.slots)]
        total = trainer.add([q for _, q in slots])
        largest = [max(of) for of in zip(*(evidence.max_abs for evidence, _ in slots), strict=True)]
        info = trainer.apply(step, total, largest)
        trainer.commit(step)
        state = trainer.committed
        see(total, state.weights, state.m, state.v)
        losses = [evidence.loss for evidence, _ in slots]
        digest.update(repr((losses, largest, state.position.exponents, info.grad_norm)).encode())
    held = trainer.heldout_loss()
    digest.update(repr(held.loss).encode())

    weights = Weights(ops, run.model, trainer.committed.weights)
    inputs, _ = data.heldout_slot(0, run)
    see(model.logits(weights, inputs))
    decoder = Decoder(weights)
    for token in inputs[0, :40].tolist():
        see(decoder.feed(token))
    return digest.hexdigest()


def _run_config(data: Dataset) -> RunConfig:
    return RunOptions(seed=1, eval_every=0, **SHAPE, **BATCH).config(  # type: ignore[arg-type]
        arithmetic_version=kernels.ARITHMETIC_VERSION,
        gates_digest=kernels.gates_digest(),
        data=data.manifest.hash(),
    )


if __name__ == "__main__":
    main()
