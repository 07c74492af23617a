"""What the commands share: how one is added, kinds of arguments, and the exit codes as told.

May import: nothing of ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where a command adds itself."""

EXIT_CODES = """exit codes:
  0    done, or left cleanly              8    the run's configuration or arithmetic differs
  1    an unexpected error (a bug)        9    training text missing or different
  2    a flag makes no sense              10   checkpoint or output unusable
  3    an impossible run configuration    11   address or port not available
  4    signaling server not reachable     12   this machine computes wrong bits
  5    room code mistyped, weak, unknown  13   this node's state differed from the group's
  6    the host refused or removed us     14   training produced NaN or infinity
  7    another protocol version           15   this node's key file unusable, or used twice
  16   the run does not fit in memory     20   a rehearsed run broke the promise
  17   an export cannot be made or read   21   a benchmark could not be made
  18   a run is not what its ledger says  130  interrupted (Ctrl-C, a polite kill)
"""


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    about: str,
) -> argparse.ArgumentParser:
    """A command that `run` carries out; `about` is shown as its lines are."""
    command = commands.add_parser(
        name,
        help=summary,
        description=about,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def natural(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def step_range(text: str) -> tuple[int | None, int | None]:
    """A:B, where either may be left out; A alone is A:A."""
    first, colon, last = text.partition(":")
    if not all(part == "" or (part.isdecimal() and int(part) >= 1) for part in (first, last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of steps, such as 20:40")
    low = int(first) if first else None
    return low, (int(last) if last else None) if colon else low


def short_text(text: str) -> str:
    """Up to 1,000 characters."""
    if len(text) > 1_000:
        raise argparse.ArgumentTypeError(f"{len(text)} characters are more than 1,000")
    return text


def rate(text: str) -> float:
    """A share from 0 to 1."""
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0.0 <= rate <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return rate


def port(text: str) -> int:
    """A port, 0 for any free one."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535; 0 takes a free one)")
    return int(text)


def node_at_step(text: str) -> tuple[int, int]:
    """NODE@STEP."""
    node, at, step = text.partition("@")
    if not (at and node.isdigit() and step.isdigit() and int(node) >= 1 and int(step) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE@STEP, such as 2@10")
    return int(node), int(step)


def node_list(text: str) -> tuple[int, ...]:
    """Numbers of nodes, with commas between."""
    parts = text.split(",")
    if not all(part.isdigit() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of node numbers, such as 2,3")
    return tuple(int(part) for part in parts)
