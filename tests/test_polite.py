"""Polite kills and closed terminals: commands end by them as by Ctrl-C, and nohup is heeded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no such signals")

COMMAND = """
import os, signal, sys, time
from p2pnode import cli
def run(arguments):
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    time.sleep(0.2)
    return 0
class Parser:
    def parse_args(self, argv):
        self.run = run
        return self
cli.parser = Parser
before = signal.getsignal(signal.SIGTERM)
code = cli.main([])
assert signal.getsignal(signal.SIGTERM) is before
sys.exit(code)
"""

JOIN = """
import asyncio, os, signal
from p2pnode.join import _signals
class Node:
    def leave(self):
        print("left")
async def main():
    with _signals(Node()):
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.2)
        print("trains")
asyncio.run(main())
"""


def run(script: str, *arguments: str, nohup: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    if nohup:
        command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_command_ends_as_by_ctrl_c(name: str) -> None:
    done = run(COMMAND, name)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_command_under_nohup_outlives_its_terminal() -> None:
    assert run(COMMAND, "SIGHUP", nohup=True).returncode == 0
    assert run(COMMAND, "SIGTERM", nohup=True).returncode == 130


@pytest.mark.parametrize("nohup", [False, True])
def test_a_node_under_nohup_outlives_its_terminal(nohup: bool) -> None:
    done = run(JOIN, nohup=nohup)
    assert done.stdout == ("trains\n" if nohup else "left\ntrains\n"), done.stderr


def test_sigint_is_there_also_where_it_is_ignored() -> None:
    """A shell that starts a job in the background has it ignored; nodes heed it all the same."""
    script = "from p2pnode.polite import ending_signals; print(*ending_signals())"
    command = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", sys.executable, "-c", script]
    said = subprocess.check_output(command, text=True, timeout=60)
    assert said.split() == [str(int(signal.SIGINT)), str(int(signal.SIGTERM))]
