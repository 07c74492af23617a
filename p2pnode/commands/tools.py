"""The commands beside training: `rehearse`, `devices`, `reproduce`, `verify` and `report`.

May import: siblings, rehearse.faults, node_config, errors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from p2pnode.commands.types import Commands, add_command, natural, positive, step_range
from p2pnode.errors import UsageError
from p2pnode.node_config import TextChoice, default_home

REHEARSE_HELP = """Run the step protocol in a simulated network, with a toy model, through
disasters drawn from a seed. Whatever happens, every node that lives must end
with the state of the undisturbed one-node run. A run that breaks this promise
is reduced to the faults that matter and printed with the command that runs it
again; the exit code is then 20.

Kinds of faults: crash, restart, wipe (restart without its disk), freeze, clock
(suspended, then the clock leaps), slow, flap, oneway, stall (bulk of one link
vanishes), missing (a pair without a link), partition, signaling (the server is
away), delay, reorder, duplicate, join, leave, stop, change (of settings),
full (a disk), data (goes away), lack (text does not come for a while), text (a
machine reads other text), wrong (a machine computes or says something wrong);
`none` for none."""

VERIFY_HELP = """Compute steps of a run again, from the nearest checkpoint before them, and
compare each with the ledger, and every checkpoint on the way with the state it
should hold. Says which step, tensor and operation differ first; the exit code is
then 18, or 12 if it is this machine that computes wrong."""

REPRODUCE_HELP = """A node that meets a wrong result saves a folder `wrong-run-…` in --out. This
computes the result again, with this machine's kernels and with the reference,
and says who was right and which operation differs first."""


def add_rehearse(commands: Commands) -> None:
    rehearse = add_command(
        commands,
        "rehearse",
        _rehearse,
        "run the protocol through simulated disasters",
        REHEARSE_HELP,
    )
    which = rehearse.add_mutually_exclusive_group()
    which.add_argument(
        "--seeds", type=positive, default=200, metavar="N", help="how many runs (default 200)"
    )
    which.add_argument("--seed", type=natural, metavar="S", help="this run alone")
    rehearse.add_argument(
        "--first-seed", type=natural, default=0, metavar="S", help="the first run (default 0)"
    )
    rehearse.add_argument(
        "--nodes",
        type=positive,
        default=None,
        metavar="N",
        help="machines at the start, up to 16 (default: one to five, by the seed)",
    )
    rehearse.add_argument(
        "--faults", default=None, metavar="LIST", help="kinds of faults (default: all of them)"
    )
    rehearse.add_argument(
        "--only",
        default=None,
        metavar="NUMBERS",
        help="with --seed: of its faults only those of these numbers",
    )
    rehearse.add_argument(
        "--jobs", type=positive, default=1, metavar="N", help="processes (default 1)"
    )
    rehearse.add_argument(
        "--trace", action="store_true", help="with --seed: print every event and effect"
    )


def add_devices(commands: Commands) -> None:
    devices = commands.add_parser(
        "devices",
        help="list, forget, block or allow the machines this host has decided about",
        description="Machines that were let in or blocked at this machine's prompt. `join "
        "--approve known` lets known ones in without a question; blocked ones are never asked "
        "about.",
    )
    devices.set_defaults(run=_devices)
    devices.add_argument(
        "action", nargs="?", choices=("list", "forget", "block", "allow"), default="list"
    )
    devices.add_argument("id", nargs="?", help="a device's id, or its beginning")
    devices.add_argument(
        "--home",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder of this machine's key (default: the user's settings folder, or P2PNODE_HOME)",
    )


def add_reproduce(commands: Commands) -> None:
    reproduce = add_command(
        commands,
        "reproduce",
        _reproduce,
        "compute again what a bundle of a wrong result disputes",
        REPRODUCE_HELP,
    )
    reproduce.add_argument("bundle", type=Path, help="the folder")


def add_verify(commands: Commands) -> None:
    verify = add_command(
        commands,
        "verify",
        _verify,
        "compute steps of a run again and compare them with its ledger",
        VERIFY_HELP,
    )
    verify.add_argument(
        "folder", type=Path, metavar="RUN", help="a run's folder (--out), or a ledger file in it"
    )
    verify.add_argument(
        "--steps",
        type=step_range,
        default=(None, None),
        metavar="A:B",
        help="steps to verify, both included; A: and :B are open (default: all)",
    )
    verify.add_argument(
        "--data", default=None, metavar="PATH", help="the run's text, as it was given to `join`"
    )
    verify.add_argument(
        "--column", default="text", metavar="NAME", help="the same, for tables (default text)"
    )
    verify.add_argument(
        "--threads", type=positive, default=1, metavar="N", help="threads that compute (default 1)"
    )


def add_report(commands: Commands) -> None:
    report = add_command(
        commands,
        "report",
        _report,
        "summarise a run, with drawings of its loss and throughput",
        "Write report.md, report.svg and report.png. Needs matplotlib: "
        "pip install 'p2pnode[report]'",
    )
    report.add_argument(
        "folder", type=Path, metavar="RUN", help="a run's folder (--out), or a ledger file in it"
    )
    report.add_argument(
        "--to", type=Path, default=None, metavar="DIR", help="where to (default: the run's folder)"
    )


def _rehearse(arguments: argparse.Namespace) -> int:
    from p2pnode.commands.rehearse import MOST_NODES, Options, rehearse
    from p2pnode.rehearse.faults import ALL, Kind

    known = {kind.value: kind for kind in Kind}
    kinds = ALL
    if arguments.faults is not None:
        names = [] if arguments.faults == "none" else arguments.faults.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(
                f"There is no fault {unknown[0]!r}; there are {', '.join(known)} and none."
            )
        kinds = tuple(kind for kind in ALL if kind.value in names)
    only = None
    if arguments.only is not None:
        parts = [] if arguments.only == "none" else arguments.only.split(",")
        if not all(part.isdecimal() for part in parts):
            raise UsageError(f"--only takes numbers such as 0,2 or none, not {arguments.only!r}")
        only = tuple(int(part) for part in parts)
    if arguments.nodes is not None and arguments.nodes > MOST_NODES:
        raise UsageError(f"--nodes can be at most {MOST_NODES}")
    one = arguments.seed is not None
    return rehearse(
        Options(
            first=arguments.seed if one else arguments.first_seed,
            seeds=1 if one else arguments.seeds,
            nodes=arguments.nodes,
            kinds=kinds,
            trace=arguments.trace,
            only=only,
            jobs=arguments.jobs,
        )
    )


def _devices(arguments: argparse.Namespace) -> int:
    from p2pnode.commands.devices import devices

    return devices(arguments.home or default_home(), arguments.action, arguments.id)


def _report(arguments: argparse.Namespace) -> int:
    from p2pnode.commands.report import report

    return report(arguments.folder, arguments.to)


def _verify(arguments: argparse.Namespace) -> int:
    from p2pnode.commands.verify import verify

    first, last = arguments.steps
    text = TextChoice(arguments.data, arguments.column)
    return verify(arguments.folder, first=first, last=last, text=text, threads=arguments.threads)


def _reproduce(arguments: argparse.Namespace) -> int:
    from p2pnode.commands.reproduce import reproduce

    return reproduce(arguments.bundle)
