"""`python -m tests.proof`: the arithmetic's proofs at full length (docs/VERIFICATION.md).

sweep   functions of one float over every binary32 pattern, compiled against reference and binary64
oracle  operations against binary32 in integers, on millions of inputs
bugs    which instrument sees which of the seeded bugs, as a table
spots   what one look of a spot check finds, beside uniform choice, and what looks cost
"""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a node; before numpy is imported

import kernels

from . import instruments, oracle, spots, sweep
from .bugs import BUGS
from .faults import FAULTS


def main() -> int:
    """Run one of them; 1 if anything differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    sweeping = commands.add_parser("sweep")
    sweeping.add_argument("names", nargs="*", default=list(sweep.FUNCTIONS), metavar="FUNCTION")
    sweeping.add_argument("--step", type=int, default=1, help="every N-th pattern (default 1)")
    sweeping.set_defaults(run=_sweep)
    checking = commands.add_parser("oracle")
    checking.add_argument("--seeds", type=int, default=50, help="seeds (default 50)")
    checking.add_argument("--count", type=int, default=100_000, help="inputs for each seed")
    checking.set_defaults(run=_oracle)
    spotting = commands.add_parser("spots")
    spotting.add_argument("--looks", type=int, default=4000, help="looks (default 4000)")
    spotting.set_defaults(run=_spots)
    seeding = commands.add_parser("bugs")
    seeding.set_defaults(run=_bugs)
    options = parser.parse_args()
    wrong: bool = options.run(options)
    return int(wrong)


def _sweep(options: argparse.Namespace) -> bool:
    live, reference = kernels.load(), kernels.load(reference=True)
    print(f"{live.backend} against reference; not compiled: {list(live.demoted)}", flush=True)
    wrong = False
    for name in options.names:
        start = told = time.monotonic()

        def progress(found: sweep.Outcome, name: str = name) -> None:
            nonlocal told
            if time.monotonic() > told + 30:
                told = time.monotonic()
                print(f"{name}: {found.patterns / sweep.PATTERNS:.1%}", file=sys.stderr)

        found = sweep.sweep(name, live, reference, options.step, progress)
        print(
            f"{name}: {found.patterns} patterns, {found.differing} differ; error over "
            f"{found.measured}: at most {found.worst:.4f} ulp (at {found.worst_at!r}), mean "
            f"{found.mean:.4f}, {found.misrounded} not the nearest number "
            f"({100 * found.misrounded / max(1, found.measured):.2f} %), {found.near_ties} next to "
            f"a tie; {time.monotonic() - start:.0f} s",
            flush=True,
        )
        wrong |= found.differing > 0
    return wrong


def _oracle(options: argparse.Namespace) -> bool:
    wrong = False
    for title, ops in (("compiled", kernels.load()), ("reference", kernels.load(reference=True))):
        for name, (size, differ) in oracle.differing(
            ops, options.count, range(options.seeds)
        ).items():
            print(f"{title} {name}: {size} answers, {differ} differ", flush=True)
            wrong |= differ > 0
    return wrong


def _spots(options: argparse.Namespace) -> bool:
    for height, width, _ in spots.SHAPES:
        for fault in spots.FAULTS:
            ours, uniform = (
                spots.rate(fault, height, width, options.looks, strata=strata)
                for strata in (True, False)
            )
            print(f"{height} x {width}, {fault}: {ours:.4f}, uniform {uniform:.4f}", flush=True)
    for name in ("linear", "linear_dx", "linear_dw"):
        for shape in spots.SHAPES:
            of = spots.whole(name, *shape, max(1, options.looks // 10))
            print(
                f"whole {name} {shape[0]} x {shape[1]} (inner {shape[2]}): one flipped bit "
                f"{of.found:.3f}; {1e3 * of.seconds:.1f} ms, in which {of.cells} cells chosen "
                f"uniformly find {of.uniform:.4f}",
                flush=True,
            )
    for batch, heads in spots.HEADS:
        last, one = spots.head_rate(batch, heads, options.looks)
        print(
            f"attention, {batch} sequences x {heads} heads: last head {last:.3f}, one head "
            f"{one:.3f}, uniform {1 / (batch * heads):.3f}"
        )
    for preset, slot, looks, count in spots.costs():
        print(
            f"{preset}: {looks:.3f} ms of a slot of {slot:.1f} ms are spot checks, "
            f"{looks / slot:.1%}; {count:.1f} looks in a step",
            flush=True,
        )
    return False


def _bugs(options: argparse.Namespace) -> bool:
    names = list(instruments.INSTRUMENTS)
    print("| bug | in | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 2) + "|")
    counts, missed = dict.fromkeys(names, 0), False
    for bug in BUGS:
        seen = {name: instruments.sees(name, bug) for name in names}
        missed |= not any(seen.values())
        for name in names:
            counts[name] += seen[name]
        marks = " | ".join("x" if seen[name] else "" for name in names)
        print(f"| {bug.name} | `{bug.operation}` | {marks} |", flush=True)
    print(f"| **{len(BUGS)} bugs** | | " + " | ".join(str(counts[name]) for name in names) + " |")
    print("\n| fault of a node | checksum of the sum | recomputation | state hash |")
    print("|---|---|---|---|")
    for kind in FAULTS:
        found = instruments.fault_seen_by(kind)
        missed |= not any(found.values())
        print(f"| {kind.name} | " + " | ".join("x" if s else "" for s in found.values()) + " |")
    return missed


if __name__ == "__main__":
    sys.exit(main())
