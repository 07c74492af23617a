"""`python -m p2pnode bench`: its subcommands' options.

May import: siblings.
"""

from __future__ import annotations

import argparse

from p2pnode.bench.machine import PROCESSORS, run_in_own_process
from p2pnode.bench.wire_command import add_exchange, add_wire

HELP = """Measure this machine. Candidates run in turn in every round; ratios are
medians of the ratios within a round. Times are CPU time of one thread.

kernels: the exact products against numpy's float32 product (its BLAS kernel is
named), operations on long vectors against a copy, and whether each figure
reaches what it is held to.
step: forward and backward of one slot against PyTorch (install the extra
`torch`), with a profile.
bits: one short training under older processors, other optimisation, threads and
libraries, compiled and not; all must give one hash.
quality: pairs of trainings, exact and in float32 by PyTorch; their held-out losses.
wire: data channels between two processes, over loopback and emulated links.
exchange: one step among several nodes, beside a broadcast over stock aiortc."""


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` and its subcommands."""
    bench = commands.add_parser(
        "bench",
        help="measure arithmetic and transport on this machine",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = bench.add_subparsers(required=True, metavar="WHAT")
    kernels = parts.add_parser("kernels", help="exact products and vectors against numpy")
    kernels.add_argument(
        "--against", choices=("numpy",), default="numpy", help="what to compare with"
    )
    kernels.set_defaults(run=_run, module="p2pnode.bench.kernels")
    step = parts.add_parser("step", help="forward and backward of one slot against PyTorch")
    step.add_argument(
        "--against",
        default="torch",
        metavar="LIST",
        help="of numpy (nothing beside), torch, compile (torch.compile too); default torch",
    )
    step.add_argument(
        "--models",
        type=int,
        nargs="*",
        choices=range(3),
        metavar="I",
        help="numbers of the models, from 0 to 2",
    )
    step.set_defaults(run=_run, module="p2pnode.bench.step")
    bits = parts.add_parser("bits", help="the same bits under other processors and libraries")
    bits.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="COMMAND",
        help="another Python to run it with, e.g. one of another processor in an emulator",
    )
    bits.set_defaults(run=_bits)
    quality = parts.add_parser("quality", help="held-out losses of exact and float32 training")
    quality.add_argument(
        "--first-seed", type=int, default=0, metavar="N", help="the first seed (default 0)"
    )
    quality.add_argument("--seeds", type=int, default=20, metavar="N", help="seeds (default 20)")
    quality.add_argument("--steps", type=int, default=300, metavar="N", help="steps (default 300)")
    quality.add_argument(
        "--rates",
        default="0.0005,0.001",
        metavar="LIST",
        help="learning rates, a pair of runs for each and every seed (default 0.0005,0.001)",
    )
    quality.add_argument(
        "--data", default="builtin", metavar="PATH", help="training text (default: built in)"
    )
    quality.set_defaults(run=_quality)
    add_wire(parts)
    add_exchange(parts)
    for part in (kernels, step):
        part.add_argument(
            "--threads",
            type=int,
            choices=range(1, 65),
            default=1,
            metavar="N",
            help="threads, 1 to 64 (default 1); beyond 1 also against 1",
        )
        part.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds (default 15)")
        part.add_argument(
            "--as",
            dest="processor",
            choices=tuple(PROCESSORS),
            default="host",
            help="compute as an older x86 processor would: every library is held to what it has",
        )


def _bits(options: argparse.Namespace) -> int:
    from p2pnode.bench import bits

    return bits.main([argument for also in options.also for argument in ("--also", also)])


def _quality(options: argparse.Namespace) -> int:
    arguments = [
        f"--{name}={getattr(options, name.replace('-', '_'))}"
        for name in ("first-seed", "seeds", "steps", "rates", "data")
    ]
    return run_in_own_process("p2pnode.bench.quality", arguments, "host", 1)


def _run(options: argparse.Namespace) -> int:
    arguments = ["--rounds", str(options.rounds), "--threads", str(options.threads)]
    blas_threads = 1
    if options.module.endswith(".step"):
        arguments += ["--against", options.against]
        blas_threads = options.threads
        if options.models:
            arguments += ["--models", *map(str, options.models)]
    return run_in_own_process(options.module, arguments, options.processor, blas_threads)
