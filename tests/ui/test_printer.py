"""Printer: a reader that stops holds nobody up, and learns what it has missed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable

from p2pnode.ui.printer import Printer, writer


class Reader:
    """Takes what is written while it is `open`."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked = threading.Event()
        self.got: list[str] = []

    def __call__(self, text: str) -> None:
        self.asked.set()
        self.open.wait()
        self.got.append(text)


def printer(write: Callable[[str], object], waiting: int = 100, patience: float = 0.2) -> Printer:
    return Printer(write, lambda count: f"({count} lost)\n", waiting, patience)


def test_everything_is_written_in_order_before_the_end() -> None:
    reader = Reader()
    reader.open.set()
    with printer(reader) as out:
        for number in range(50):
            print(number, "of", 50, file=out, flush=True)
    assert reader.got == [f"{number} of 50\n" for number in range(50)]


def test_a_reader_that_stopped_blocks_nobody_and_is_told_what_it_missed() -> None:
    reader = Reader()
    with printer(reader, waiting=3, patience=10.0) as out:
        print("first", file=out, flush=True)
        reader.asked.wait()  # it hangs in the writing thread
        for number in range(10):
            print(number, file=out, flush=True)
        reader.open.set()
        while len(reader.got) < 4:
            pass
        print("back", file=out, flush=True)
    assert reader.got == ["first\n", "0\n", "1\n", "2\n", "(7 lost)\n", "back\n"]


def test_the_end_does_not_wait_for_a_reader_that_stopped() -> None:
    reader = Reader()
    with printer(reader) as out:
        print("x", file=out, flush=True)
    assert reader.got == []
    reader.open.set()


def test_a_reader_that_went_away_ends_the_output() -> None:
    calls = []

    def gone(text: str) -> None:
        calls.append(text)
        raise BrokenPipeError

    with printer(gone) as out:
        print("x", file=out, flush=True)
    print("y", file=out, flush=True)
    assert calls == ["x\n"]


def test_a_full_pipe_does_not_abort_the_process_at_its_end() -> None:
    """Through the real thing: a child that prints far more than the pipe holds, never read."""
    code = (
        "import sys; from p2pnode.ui.printer import Printer, writer\n"
        "with Printer(writer(sys.stdout), str, patience=0.2) as out:\n"
        "    for _ in range(100): print('x' * 10_000, file=out, flush=True)\n"
        "print('alive', file=sys.stderr)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stderr.read() == "alive\n"
    assert child.wait() == 0
    child.stdout.close()
    child.stderr.close()


def test_what_the_stream_cannot_show_is_escaped() -> None:
    reading, writing = os.pipe()
    stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(writing, "w")), encoding="ascii")
    writer(stream)("é\n")
    stream.close()
    with open(reading, encoding="ascii") as result:
        assert result.read() == "\\xe9\n"
