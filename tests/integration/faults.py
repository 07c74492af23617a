"""A network that loses and delays datagrams, for node processes started by a test."""

from pathlib import Path

_SHIM = """
import os, random
from asyncio.selector_events import _SelectorDatagramTransport as Transport

loss, delay = float(os.environ["TEST_LOSS"]), float(os.environ["TEST_DELAY"])
chance = random.Random(int(os.environ["TEST_SEED"]))
sendto = Transport.sendto

def lossy(self, data, addr=None):
    if chance.random() < loss:
        with open(os.environ["TEST_LOST"], "ab") as count:
            count.write(b".")
        return
    later = bytes(data)
    self._loop.call_later(delay, lambda: self.is_closing() or sendto(self, later, addr))

Transport.sendto = lossy
"""


def lossy_network(folder: Path, *, loss: float, delay: float, seed: int = 1) -> dict[str, str]:
    """Environment of a process whose UDP datagrams are lost with probability `loss` and arrive
    `delay` seconds late. One byte for each lost datagram is appended to `folder`/lost."""
    hook = folder / "lossy"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(_SHIM)
    return {
        "PYTHONPATH": str(hook),
        "TEST_LOSS": str(loss),
        "TEST_DELAY": str(delay),
        "TEST_SEED": str(seed),
        "TEST_LOST": str(folder / "lost"),
    }
