"""The command line: `python -m p2pnode join | demo | generate | …`.

Parses, checks, and hands over; heavy modules are imported only by the command that needs them.
May import: everything below.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from p2pnode import __version__
from p2pnode.bench.command import add_bench
from p2pnode.config import PRESETS, RunOptions
from p2pnode.errors import P2PNodeError, UsageError
from p2pnode.node_config import NodeConfig, default_home, ice_servers, room_code, signal_url
from p2pnode.protocol.text import visible

EXIT_CODES = """exit codes:
  0    done, or left cleanly              8    the run's configuration or arithmetic differs
  1    an unexpected error (a bug)        9    training text missing or different
  2    a flag makes no sense              10   checkpoint unreadable or unwritable
  3    an impossible run configuration    11   address or port not available
  4    signaling server not reachable     12   this machine computes wrong bits
  5    room code mistyped, weak, unknown  13   this node's state differed from the group's
  6    the host refused or removed us     14   training produced NaN or infinity
  7    another protocol version           15   this node's key file unusable, or used twice
  16   the run does not fit in memory     20   a rehearsed run broke the promise
                                          21   a benchmark could not be made
                                          130  interrupted before anything could be saved
"""

JOIN_HELP = """Join a room and train. The first machine in a room is its host: it is
asked to approve each machine that joins, types `start`, and its run options
below decide what is trained.

  on the first machine:   python -m p2pnode join --serve
  on the others:          the command that the first one prints

Machines may come and go while it trains; at the end every machine holds the same checkpoint.
Type `help` at the prompt for the commands there."""

DEMO_HELP = """Start a signaling server and several nodes on this machine, over real WebRTC on
loopback only, and train one model. Ends with the loss, every node's hash (all
equal) and a checkpoint."""

REHEARSE_HELP = """Run the step protocol in a simulated network, with a toy model, through
disasters drawn from a seed. Whatever happens, every node that lives must end
with the state of the undisturbed one-node run. A run that breaks this promise
is reduced to the faults that matter and printed with the command that runs it
again; the exit code is then 20.

Kinds of faults: crash, restart, wipe (restart without its disk), freeze, clock
(suspended, then the clock leaps), slow, flap, oneway, stall (bulk of one link
vanishes), missing (a pair without a link), partition, signaling (the server is
away), delay, reorder, duplicate, join, leave, stop, full (a disk), data (goes
away), wrong (a machine computes or says something wrong); `none` for none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    # One BLAS thread beside the computing thread; set before numpy is first imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    arguments = parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that it cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")
    code = 0
    try:
        _set_up_log(os.environ.get("P2PNODE_LOG"))
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except P2PNodeError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; that is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


class _VisibleFormatter(logging.Formatter):
    """Whoever wrote the words of a record (a peer, a TURN server, a library that quotes them): a
    message is one line, and the terminal obeys nothing but the line ends of tracebacks."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(visible(line) for line in super().format(record).split("\n"))


def _set_up_log(level: str | None) -> None:
    """Warnings of everybody to standard error; with a level also our own records of it. Raises
    UsageError."""
    known = logging.getLevelNamesMapping()
    if level and level.upper() not in known:
        raise UsageError(f"P2PNODE_LOG is {level!r}; it can be {', '.join(known).lower()}")
    handler = logging.StreamHandler()
    form = "%(relativeCreated)d %(name)s %(message)s" if level else "%(message)s"
    handler.setFormatter(_VisibleFormatter(form))
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(handler)
    if level:
        logging.getLogger("p2pnode").setLevel(known[level.upper()])


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="python -m p2pnode",
        description="Train one language model together on spare computers, peer to peer.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"p2pnode {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_join(commands)
    _add_demo(commands)
    _add_generate(commands)
    _add_rehearse(commands)
    _add_devices(commands)
    add_bench(commands)
    _add_reproduce(commands)
    return top


def _add_join(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    join = commands.add_parser(
        "join",
        help="join a room and train; the first in a room is its host",
        description=JOIN_HELP,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    join.set_defaults(run=_join)
    room = join.add_argument_group("room")
    room.add_argument(
        "--room",
        metavar="CODE",
        help="room code or invite CODE@SERVER (or P2PNODE_ROOM); a host without one makes one",
    )
    room.add_argument(
        "--room-file", type=Path, metavar="FILE", help="read the room code from a file"
    )
    room.add_argument(
        "--nearby",
        action="store_true",
        help="no code: meet machines behind the same public address (the first one is the host); "
        "six words to compare appear at both terminals, and both owners are asked",
    )
    room.add_argument("--signal", metavar="URL", help="signaling server (or P2PNODE_SIGNAL)")
    room.add_argument(
        "--serve", action="store_true", help="run the signaling server in this process too"
    )
    room.add_argument("--port", type=_port, default=8765, help="port for --serve (default 8765)")
    room.add_argument(
        "--bind",
        default="0.0.0.0",
        metavar="ADDRESS",
        help="address for --serve (default 0.0.0.0: every interface)",
    )
    room.add_argument(
        "--guest",
        action="store_true",
        help="never become host: end with an error if the room has none",
    )
    room.add_argument(
        "--name", help="how others see this machine (default: a word made from its key)"
    )
    room.add_argument(
        "--approve",
        choices=("ask", "known", "all"),
        default="ask",
        help="host: ask for each machine (default), only for those never let in before, or let "
        "everyone with the code in",
    )
    room.add_argument(
        "--start-when",
        type=_positive,
        metavar="N",
        help="host: start by itself when N nodes, this one included, are connected",
    )
    _add_run_options(join)
    local = join.add_argument_group("this machine")
    local.add_argument(
        "--resume",
        metavar="PATH",
        help="host: continue from a checkpoint; `auto` takes the newest in --out",
    )
    local.add_argument(
        "--out",
        type=Path,
        default=Path("p2pnode-runs"),
        metavar="DIR",
        help="checkpoints and logs (default ./p2pnode-runs)",
    )
    local.add_argument(
        "--home",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder of this machine's key (default: the user's settings folder, or P2PNODE_HOME)",
    )
    local.add_argument(
        "--checkpoint-every",
        type=_positive,
        default=100,
        metavar="STEPS",
        help="steps between checkpoints (default 100)",
    )
    local.add_argument(
        "--keep", type=_positive, default=3, metavar="N", help="checkpoints kept (default 3)"
    )
    local.add_argument(
        "--audit",
        type=_rate,
        default=0.01,
        metavar="RATE",
        help="share of other nodes' work that is computed again here, to find wrong results that "
        "show in no other way: 0 (never) to 1 (all); default 0.01. Costs about as much of this "
        "machine's time as the share says",
    )
    local.add_argument(
        "--reference",
        action="store_true",
        help="compute with the numpy reference kernels (slow, same bits)",
    )
    local.add_argument(
        "--threads",
        type=_positive,
        default=None,
        metavar="N",
        help="threads that compute (default: physical cores less one); the bits are the same",
    )
    local.add_argument(
        "--addresses",
        choices=("auto", "loopback", "all", "relay"),
        default="auto",
        help="addresses offered to peers (default: loopback if the server is on loopback, else "
        "all; relay: only through TURN, so that the others do not learn this machine's address)",
    )
    local.add_argument(
        "--stun",
        action="append",
        default=[],
        metavar="URL",
        help="stun:HOST:PORT instead of the signaling server's; may be repeated",
    )
    local.add_argument(
        "--turn",
        action="append",
        default=[],
        metavar="URL",
        help="relay for networks that let nothing else through: turn:USER:PASSWORD@HOST:PORT, with "
        "?transport=tcp where UDP is blocked, turns: for TLS; may be repeated (or P2PNODE_TURN); "
        "replaces those that the signaling server lends",
    )
    local.add_argument("--json-events", action="store_true", help="print events as JSON lines")


def _add_run_options(command: argparse.ArgumentParser, preset: str = "tiny") -> None:
    run = command.add_argument_group("run (used if this node is the host)")
    sizes = "; ".join(f"{name}: {value.about}" for name, value in PRESETS.items())
    run.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        default=preset,
        help=f"model size (default {preset}). {sizes}",
    )
    run.add_argument(
        "--data",
        metavar="PATH",
        default=None,
        help="a text file or a folder of them (default: the built-in English corpus)",
    )
    run.add_argument("--steps", type=_positive, default=None, help="optimizer steps")
    run.add_argument(
        "--slots",
        type=_positive,
        default=None,
        help="micro-batches per step, shared out among the nodes",
    )
    run.add_argument(
        "--micro-batch", type=_positive, default=None, help="sequences per micro-batch"
    )
    run.add_argument("--lr", type=float, default=None, help="peak learning rate")
    run.add_argument("--warmup", type=int, default=None, help="steps of linear warm-up")
    run.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the weights and the order of the data (default 0)",
    )
    run.add_argument(
        "--eval-every",
        type=int,
        default=50,
        metavar="STEPS",
        help="steps between held-out losses, 0 for never (default 50)",
    )
    for name in ("width", "layers", "heads", "ffn", "seq-len"):
        run.add_argument(
            f"--{name}",
            type=_positive,
            default=None,
            help=argparse.SUPPRESS if name == "ffn" else f"model {name}",
        )


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="watch several nodes on this machine train one model to one hash",
        description=DEMO_HELP,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.set_defaults(run=_demo)
    demo.add_argument(
        "--nodes", type=_positive, default=3, metavar="N", help="node processes (default 3)"
    )
    demo.add_argument(
        "--kill",
        type=_node_at_step,
        action="append",
        default=[],
        metavar="NODE@STEP",
        help="SIGKILL a node in the middle of a step; node 1 is the host",
    )
    demo.add_argument(
        "--join",
        type=_node_at_step,
        action="append",
        default=[],
        metavar="NODE@STEP",
        help="start one more node when a step begins",
    )
    demo.add_argument(
        "--reference-nodes",
        type=_node_list,
        default=(),
        metavar="NODES",
        help="nodes that compute with the numpy reference kernels, e.g. 2,3",
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="DIR",
        help="new folder for checkpoints and logs (default ./p2pnode-runs/demo-1, -2, …)",
    )
    demo.add_argument(
        "--json", action="store_true", help="end with one JSON object on the last line"
    )
    _add_run_options(demo, preset="nano")


def _add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    generate = commands.add_parser(
        "generate",
        help="print text from a checkpoint",
        description="Print text that continues a prompt: the same text on every machine for the "
        "same seed.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    generate.set_defaults(run=_generate)
    generate.add_argument(
        "checkpoint", type=Path, help="a checkpoint file, or a folder: its newest one"
    )
    generate.add_argument("--prompt", default="The ", help="text to continue (default 'The ')")
    generate.add_argument(
        "--tokens",
        type=_positive,
        default=300,
        metavar="N",
        help="how many bytes to make (default 300)",
    )
    generate.add_argument(
        "--temperature", type=float, default=0.8, help="0 always takes the likeliest (default 0.8)"
    )
    generate.add_argument(
        "--top-k", type=int, default=40, help="choose among the K likeliest, 0 for all (default 40)"
    )
    generate.add_argument("--seed", type=int, default=0, help="seed of the choices (default 0)")
    generate.add_argument(
        "--reference", action="store_true", help="use the numpy reference kernels"
    )


def _add_rehearse(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    rehearse = commands.add_parser(
        "rehearse",
        help="run the protocol through simulated disasters",
        description=REHEARSE_HELP,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rehearse.set_defaults(run=_rehearse)
    which = rehearse.add_mutually_exclusive_group()
    which.add_argument(
        "--seeds", type=_positive, default=200, metavar="N", help="how many runs (default 200)"
    )
    which.add_argument("--seed", type=_natural, metavar="S", help="this run alone")
    rehearse.add_argument(
        "--first-seed", type=_natural, default=0, metavar="S", help="the first run (default 0)"
    )
    rehearse.add_argument(
        "--nodes",
        type=_positive,
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
        "--jobs", type=_positive, default=1, metavar="N", help="processes (default 1)"
    )
    rehearse.add_argument(
        "--trace", action="store_true", help="with --seed: print every event and effect"
    )


def _add_devices(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _add_reproduce(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="compute again what a bundle of a wrong result disputes",
        description="A node that meets a wrong result saves a folder `wrong-run-…` in --out. This "
        "computes the result again, with this machine's kernels and with the reference, and says "
        "who was right and which operation differs first.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    reproduce.set_defaults(run=_reproduce)
    reproduce.add_argument("bundle", type=Path, help="the folder")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0.0 <= rate <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return rate


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535; 0 takes a free one)")
    return int(text)


def _node_at_step(text: str) -> tuple[int, int]:
    node, at, step = text.partition("@")
    if not (at and node.isdigit() and step.isdigit() and int(node) >= 1 and int(step) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE@STEP, such as 2@10")
    return int(node), int(step)


def _node_list(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdigit() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of node numbers, such as 2,3")
    return tuple(int(part) for part in parts)


def _run_options(arguments: argparse.Namespace) -> RunOptions:
    return RunOptions(**{name: getattr(arguments, name) for name in RunOptions.__struct_fields__})


def _join(arguments: argparse.Namespace) -> int:
    import asyncio

    from p2pnode.join import join
    from p2pnode.protocol.code import Invite, parse_invite

    given = room_code(arguments.room, arguments.room_file)
    if arguments.nearby and (arguments.room or arguments.room_file):
        raise UsageError("--nearby is for joining without a room code; give one or the other")
    invite = parse_invite(given) if given is not None and not arguments.nearby else Invite("")
    server = arguments.signal or invite.server
    if arguments.serve and server:
        raise UsageError("--serve starts a signaling server here; leave out the other server")
    config = NodeConfig(
        signal="" if arguments.serve else signal_url(server),
        code=invite.code or None,
        name=arguments.name or "",
        home=arguments.home or default_home(),
        out=arguments.out,
        nearby=arguments.nearby,
        guest=arguments.guest,
        approve=arguments.approve,
        start_when=arguments.start_when,
        reference=arguments.reference,
        threads=arguments.threads,
        addresses=arguments.addresses,
        ice_servers=ice_servers(arguments.stun, arguments.turn),
        audit=arguments.audit,
        checkpoint_every=arguments.checkpoint_every,
        keep=arguments.keep,
        json_events=arguments.json_events,
    )
    serve = (arguments.bind, arguments.port) if arguments.serve else None
    return asyncio.run(
        join(config, _run_options(arguments), arguments.data, arguments.resume, serve)
    )


def _demo(arguments: argparse.Namespace) -> int:
    from p2pnode.demo import Plan, demo, next_folder

    return demo(
        Plan(
            nodes=arguments.nodes,
            kills=tuple(arguments.kill),
            joins=tuple(arguments.join),
            reference=arguments.reference_nodes,
            out=arguments.out or next_folder(Path("p2pnode-runs")),
            data=arguments.data,
            options=_run_options(arguments),
            json=arguments.json,
        )
    )


def _devices(arguments: argparse.Namespace) -> int:
    from p2pnode.devices_command import devices

    return devices(arguments.home or default_home(), arguments.action, arguments.id)


def _generate(arguments: argparse.Namespace) -> int:
    from p2pnode.generate_command import generate

    return generate(
        arguments.checkpoint,
        prompt=arguments.prompt,
        tokens=arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        seed=arguments.seed,
        reference=arguments.reference,
    )


def _reproduce(arguments: argparse.Namespace) -> int:
    from p2pnode.reproduce_command import reproduce

    return reproduce(arguments.bundle)


def _rehearse(arguments: argparse.Namespace) -> int:
    from p2pnode.rehearse.faults import ALL, Kind
    from p2pnode.rehearse_command import MOST_NODES, Options, rehearse

    known = {kind.value: kind for kind in Kind}
    kinds = ALL
    if arguments.faults is not None:
        names = [] if arguments.faults == "none" else arguments.faults.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(
                f"there is no fault {unknown[0]!r}; there are {', '.join(known)} and none"
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
