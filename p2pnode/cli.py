"""The command line: `python -m p2pnode join | demo | generate | …`.

Parses, checks, and hands over; heavy modules are imported only by the command that needs them.
May import: everything below.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import logging
import os
import sys
from collections.abc import Sequence

from p2pnode import __version__
from p2pnode.bench.command import add_bench
from p2pnode.commands.models import add_eval, add_export, add_generate, add_tokenizer
from p2pnode.commands.tools import add_devices, add_rehearse, add_report, add_reproduce, add_verify
from p2pnode.commands.train import add_demo, add_join
from p2pnode.commands.types import EXIT_CODES
from p2pnode.errors import CheckpointError, P2PNodeError, UsageError
from p2pnode.polite import ended_as_by_ctrl_c
from p2pnode.protocol.text import visible


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    # One BLAS thread beside the computing thread; set before numpy is first imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    _open_closed_streams()
    arguments = parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that it cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")
    code = 0
    try:
        _set_up_log(os.environ.get("P2PNODE_LOG"))
        with ended_as_by_ctrl_c():
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
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Of a file the one who writes it has said so; this is what standard output goes to.
        print(f"error: The output cannot be written: {error.strerror}.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest of it neither
        return CheckpointError.exit_code
    return code


def _open_closed_streams() -> None:
    """Have standard input, output and errors lead to nowhere where they were closed (`>&-`), so
    that no file or socket of ours gets their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
            with contextlib.suppress(OSError):
                os.dup2(getattr(sys, name).fileno(), number)


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
    add_join(commands)
    add_demo(commands)
    add_generate(commands)
    add_eval(commands)
    add_export(commands)
    add_tokenizer(commands)
    add_rehearse(commands)
    add_devices(commands)
    add_bench(commands)
    add_reproduce(commands)
    add_verify(commands)
    add_report(commands)
    return top
