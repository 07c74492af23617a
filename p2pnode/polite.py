"""The signals that ask a process to end, and commands that end by them as by Ctrl-C.

May import: nothing of ours.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


def ending_signals() -> list[int]:
    """Ctrl-C, a polite kill and a closed terminal, as far as this system knows them. Whoever has
    the last one ignored (nohup) wants this process to outlive its terminal."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    known = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [
        number
        for number in known
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
    ]


@contextlib.contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Meanwhile a polite kill or a closed terminal raises KeyboardInterrupt, so that nothing is
    left half written and no process behind."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can be told of signals
        return
    previous = {
        number: signal.signal(number, interrupt)
        for number in ending_signals()
        if number != signal.SIGINT  # that does so anyway, or is ignored for a reason
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
