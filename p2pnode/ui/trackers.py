"""`--track`: the figures of every step handed to a tool that draws them, on this machine alone.

The libraries block, open files and start processes, so they live in a thread of their own behind a
bounded queue: what they cannot take in time is left out, and if they fail training goes on. Nothing
is sent anywhere: wandb runs in its offline mode (`wandb sync` uploads, if its owner wants that).
May import: ui.events, ui.metrics, errors.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from p2pnode.errors import UsageError, told
from p2pnode.ui.events import Event, Warn
from p2pnode.ui.metrics import Metrics

PROJECT = "p2pnode"
QUEUE = 1_000
"""Steps that may wait for the tool."""
CLOSE_SECONDS = 10.0
"""How long the last figures may take to be written."""
_MODULES = {"trackio": "trackio", "wandb": "wandb", "tensorboard": "tensorboardX"}


class Adapter(Protocol):
    """One tool, open for one run."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class _TensorBoard:
    def __init__(self, folder: Path, run: str) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard" / run))

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    def __init__(self, folder: Path, run: str) -> None:
        import trackio

        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "trackio":  # its lines would stand among ours, or in JSON
                vars(module)["print"] = lambda *words, **options: None
        self._run: Any = trackio.init(
            project=PROJECT,
            name=run,
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


class _Wandb:
    def __init__(self, folder: Path, run: str) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=PROJECT,
            name=run,
            dir=str(folder),
            mode="offline",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),  # the terminal is ours
        )

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


_ADAPTERS: dict[str, Callable[[Path, str], Adapter]] = {
    "trackio": _Trackio,
    "wandb": _Wandb,
    "tensorboard": _TensorBoard,
}


def load_tool(tool: str, folder: Path) -> None:
    """Import its package before anybody waits for this process: that takes seconds. Raises
    UsageError if it is not installed."""
    if tool == "trackio":  # it reads this when it is imported
        os.environ.setdefault("TRACKIO_DIR", str(folder.resolve() / "trackio"))
    try:
        importlib.import_module(_MODULES[tool])
    except ImportError:
        raise UsageError(f"--track {tool} needs a package: pip install 'p2pnode[{tool}]'") from None


class Tracker:
    """Hands metrics to a tool. All methods are called on the event loop, and return at once, but
    `close`."""

    def __init__(self, tool: str, folder: Path, show: Callable[[Event], None]) -> None:
        """`show` may be called from another thread, for the one warning when the tool fails."""
        self._tool = tool
        self._folder = folder
        self._show = show
        self._queue: queue.Queue[Metrics | None] = queue.Queue(QUEUE)
        self._thread = threading.Thread(target=self._main, name=f"track {tool}", daemon=True)
        self._lost = 0
        self._thread.start()

    def write(self, metrics: Metrics) -> None:
        """One step; left out if too many wait."""
        try:
            self._queue.put_nowait(metrics)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write what waits, for some seconds at most."""
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(CLOSE_SECONDS)
        if self._lost:
            self._show(Warn(text=f"{self._tool} lacks {self._lost} steps: it was too slow."))

    def _main(self) -> None:
        adapter: Adapter | None = None
        run = ""
        try:
            while (metrics := self._queue.get()) is not None:
                if adapter is None or metrics.run != run:
                    if adapter is not None:
                        adapter.close()
                    run = metrics.run
                    adapter = _ADAPTERS[self._tool](self._folder, run)
                adapter.log(values_of(metrics), metrics.step)
            if adapter is not None:
                adapter.close()
        except Exception as error:  # every tool has its own
            self._show(
                Warn(text=f"--track {self._tool} ends here: {type(error).__name__}: {told(error)}")
            )
            while self._queue.get() is not None:
                pass


def values_of(metrics: Metrics) -> dict[str, float]:
    """What is drawn of a step, by name."""
    values = {
        "loss": metrics.loss,
        "grad_norm": metrics.grad_norm,
        "lr": metrics.lr,
        "tokens_per_s": metrics.tokens_per_s,
        "nodes": float(len(metrics.nodes)),
        "bytes_in": float(metrics.bytes_in),
        "bytes_out": float(metrics.bytes_out),
        "compute_s": metrics.compute_s,
        "wire_s": metrics.wire_s,
        "wait_s": metrics.wait_s,
    }
    if metrics.heldout is not None:
        values["heldout"] = metrics.heldout
    for share in metrics.nodes:
        values[f"tokens_per_s/{share.node}"] = share.tokens_per_s
    return values
