"""The commands that train: `join` and `demo`, their options and what they hand over.

May import: types, demo, join, protocol.code, config, node_config, limits, errors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from p2pnode.commands.types import (
    Commands,
    add_command,
    natural,
    node_at_step,
    node_list,
    port,
    positive,
    rate,
    short_text,
)
from p2pnode.config import PRESETS, RunOptions
from p2pnode.errors import UsageError
from p2pnode.limits import LIMITS
from p2pnode.node_config import (
    NodeConfig,
    TextChoice,
    default_home,
    ice_servers,
    room_code,
    signal_url,
)

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


def add_join(commands: Commands) -> None:
    join = add_command(
        commands, "join", _join, "join a room and train; the first in a room is its host", JOIN_HELP
    )
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
    room.add_argument("--port", type=port, default=8765, help="port for --serve (default 8765)")
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
        help="host: ask for each machine (default), only for those never let in, or let "
        "everyone with the code in",
    )
    room.add_argument(
        "--start-when",
        type=positive,
        metavar="N",
        help="host: start by itself when N nodes, this one included, are connected",
    )
    _add_run_options(join)
    local = join.add_argument_group("this machine")
    local.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="PATH",
        help="host: continue from a checkpoint, or from the newest good one of a folder; without "
        "PATH, or with `auto`, from the newest good one in --out",
    )
    local.add_argument(
        "--init",
        type=Path,
        metavar="DIR",
        help="host: start from the weights of a model of the same shape, exported with "
        "`export --to hf`",
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
        type=positive,
        default=100,
        metavar="STEPS",
        help="steps between checkpoints (default 100)",
    )
    local.add_argument(
        "--keep", type=positive, default=3, metavar="N", help="checkpoints kept (default 3)"
    )
    local.add_argument(
        "--no-keep-best",
        action="store_false",
        dest="keep_best",
        help="do not keep the state of the lowest held-out loss (best-run-….safetensors) too",
    )
    local.add_argument(
        "--audit",
        type=rate,
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
        type=positive,
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
    local.add_argument(
        "--sample-every",
        type=natural,
        default=0,
        metavar="STEPS",
        help="let the model write some text every so many steps (default 0: never)",
    )
    local.add_argument(
        "--sample-prompt",
        type=short_text,
        default="The ",
        metavar="TEXT",
        help="what it goes on from (default 'The ')",
    )
    local.add_argument(
        "--track",
        choices=("trackio", "wandb", "tensorboard"),
        default=None,
        help="also hand the figures of every step to this tool, on this machine alone "
        "(pip install 'p2pnode[trackio]' and so on)",
    )
    local.add_argument("--json-events", action="store_true", help="print events as JSON lines")


def add_demo(commands: Commands) -> None:
    demo = add_command(
        commands,
        "demo",
        _demo,
        "watch several nodes on this machine train one model to one hash",
        DEMO_HELP,
    )
    demo.add_argument(
        "--nodes", type=positive, default=3, metavar="N", help="node processes (default 3)"
    )
    demo.add_argument(
        "--kill",
        type=node_at_step,
        action="append",
        default=[],
        metavar="NODE@STEP",
        help="SIGKILL a node in the middle of a step; node 1 is the host",
    )
    demo.add_argument(
        "--join",
        type=node_at_step,
        action="append",
        default=[],
        metavar="NODE@STEP",
        help="start one more node when a step begins",
    )
    demo.add_argument(
        "--reference-nodes",
        type=node_list,
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
        help="text: a file, a folder, a pattern, http(s)://, hf:// or another fsspec URL; plain "
        "text, .jsonl(.gz|.zst), or .parquet, which is read by row groups while the run goes on; "
        "`fineweb-edu` is the 10BT sample (default: the built-in English corpus)",
    )
    run.add_argument(
        "--column",
        default="text",
        metavar="NAME",
        help="column of .parquet and .jsonl files that holds the text (default text)",
    )
    run.add_argument(
        "--tokenizer",
        default=None,
        metavar="FILE",
        help="a Hugging Face tokenizer.json, by path or hub name (default: the bytes themselves; "
        "members get it from the host)",
    )
    run.add_argument("--steps", type=positive, default=None, help="optimizer steps")
    run.add_argument(
        "--slots",
        type=positive,
        default=None,
        help="micro-batches per step, shared out among the nodes",
    )
    run.add_argument("--micro-batch", type=positive, default=None, help="sequences per micro-batch")
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
    run.add_argument(
        "--early-stop",
        type=natural,
        default=0,
        metavar="N",
        help="end the run when N held-out losses in a row are not below the best before them "
        "(default 0: never)",
    )
    shape = {
        "width": "width of the model",
        "layers": "layers of the model",
        "heads": "attention heads of a layer",
        "ffn": argparse.SUPPRESS,
        "seq-len": "tokens of a sequence",
    }
    for name, told in shape.items():
        run.add_argument(f"--{name}", type=positive, default=None, metavar="N", help=told)


def _run_options(arguments: argparse.Namespace) -> RunOptions:
    return RunOptions(**{name: getattr(arguments, name) for name in RunOptions.__struct_fields__})


def _text(arguments: argparse.Namespace) -> TextChoice:
    return TextChoice(arguments.data, arguments.column, arguments.tokenizer)


def _join(arguments: argparse.Namespace) -> int:
    import asyncio

    from p2pnode.join import join
    from p2pnode.protocol.code import Invite, parse_invite

    given = room_code(arguments.room, arguments.room_file)
    if arguments.nearby and (arguments.room or arguments.room_file):
        raise UsageError("--nearby is for joining without a room code; give one or the other.")
    invite = parse_invite(given) if given is not None and not arguments.nearby else Invite("")
    if arguments.guest and not invite.code and not arguments.nearby:
        raise UsageError("--guest joins a room that is there: give the host's code with --room.")
    if arguments.start_when is not None and arguments.start_when > LIMITS.peers:
        raise UsageError(f"--start-when: a room holds at most {LIMITS.peers} nodes.")
    server = arguments.signal or invite.server
    if arguments.serve and server:
        raise UsageError("--serve starts a signaling server here; leave out the other server.")
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
        init=arguments.init,
        audit=arguments.audit,
        checkpoint_every=arguments.checkpoint_every,
        keep=arguments.keep,
        keep_best=arguments.keep_best,
        sample_every=arguments.sample_every,
        sample_prompt=arguments.sample_prompt,
        track=arguments.track,
        json_events=arguments.json_events,
    )
    serve = (arguments.bind, arguments.port) if arguments.serve else None
    return asyncio.run(
        join(config, _run_options(arguments), _text(arguments), arguments.resume, serve)
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
            text=_text(arguments),
            options=_run_options(arguments),
            json=arguments.json,
        )
    )
