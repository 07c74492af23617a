"""`report`: what a run was, as a Markdown summary with drawings of its loss and throughput.

Loss comes from the ledger, which is the same at every node; speed, traffic and time from this
node's metrics. May import: signatures, train, protocol, ui.metrics, config, errors, and
`signaling.messages`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from p2pnode.config import RunConfig
from p2pnode.errors import LedgerError, UsageError
from p2pnode.protocol.identity import short_id
from p2pnode.signatures import file_of, read
from p2pnode.train.heldout import best
from p2pnode.train.layout import layout_of
from p2pnode.train.ledger_lines import Entry, Measured, read_lines, the_ledger
from p2pnode.ui.metrics import Metrics, read_metrics
from signaling.messages import peer_id

UNIT = float(1 << 24)
"""Losses are integers in units of 2^-24 nats."""
WINDOW = 2_000
"""Points of a line that are drawn at most: more cannot be told apart."""


def report(run: Path, out: Path | None, say: Callable[[str], object] = print) -> int:
    """Write report.md, report.svg and report.png to `out` (None: the run's folder). Raises
    LedgerError, UsageError."""
    path = the_ledger(run)
    losses = _Losses()
    config = None
    for line, made_by in read_lines(path):
        losses.add(line.entry)
        config = made_by
    if config is None:
        raise LedgerError(f"{path} holds no step.")
    out = out or path.parent
    newest = {one.step: one for one in read_metrics(path.parent, path.stem.removeprefix("run-"))}
    metrics = [newest[step] for step in sorted(newest)]
    figure = _draw(losses, metrics)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for kind in ("svg", "png"):
            figure.savefig(out / f"report.{kind}", dpi=120)
        text = _summary(path, config, losses, metrics)
        (out / "report.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write to {out}: {error.strerror}.") from None
    say(text)
    say(f"Written: {out / 'report.md'}, report.svg, report.png")
    return 0


class _Losses:
    """What is told of a ledger. Memory: the drawn points, and the held-out losses."""

    def __init__(self) -> None:
        self.count = 0
        self.tokens = 0
        self.first = self.last = 0.0
        self.state = ""
        """Of the last step."""
        self.points: list[tuple[int, float]] = []
        """Of every n-th step, n a power of two: between WINDOW and twice as many if there are."""
        self.held: list[Measured] = []
        self._every = 1

    def add(self, entry: Entry) -> None:
        """The next step."""
        loss = entry.loss / entry.tokens / UNIT
        if not self.count:
            self.first = loss
        if self.count % self._every == 0:
            self.points.append((entry.step, loss))
            if len(self.points) > 2 * WINDOW:
                self._every *= 2
                del self.points[1::2]
        self.count += 1
        self.tokens += entry.tokens
        self.last, self.state = loss, entry.state
        if entry.heldout is not None:
            self.held.append((entry.step, *entry.heldout))


def _draw(run: _Losses, metrics: Sequence[Metrics]) -> Any:
    """A figure of two drawings: losses, and tokens per second of each node."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("Drawings need matplotlib: pip install 'p2pnode[report]'") from None
    figure = Figure(figsize=(9, 7), layout="constrained")
    FigureCanvasAgg(figure)  # no window system is looked for
    losses, speeds = figure.subplots(2, 1, sharex=True)
    losses.plot(*zip(*run.points, strict=True), label="training")
    held = [(step, loss / tokens / UNIT) for step, loss, tokens in run.held]
    if held:
        losses.plot(*zip(*held, strict=True), marker="o", markersize=3, label="held out")
    losses.set_ylabel("loss, nats per token")
    losses.legend()
    names = list(dict.fromkeys(share.node for one in metrics for share in one.nodes))
    every = max(1, len(metrics) // WINDOW)
    steps = [one.step for one in metrics[::every]]
    rates = [
        [sum(s.tokens_per_s for s in one.nodes if s.node == name) for one in metrics[::every]]
        for name in names
    ]
    if steps:
        speeds.stackplot(steps, rates, labels=names, step="pre")
        speeds.legend(loc="lower left", fontsize="small")
    speeds.set_ylabel("tokens per second")
    speeds.set_xlabel("step")
    for axes in (losses, speeds):
        axes.grid(alpha=0.3)
    return figure


def _summary(path: Path, config: RunConfig, losses: _Losses, metrics: Sequence[Metrics]) -> str:
    model = config.model
    rows: list[tuple[str, str]] = [
        (
            "model",
            f"{layout_of(model).size:,} parameters: width {model.width}, {model.layers} layers, "
            f"{model.heads} heads, {model.seq_len} tokens, vocabulary {model.vocab:,}",
        ),
        ("data", f"manifest {config.data[:16]}, tokenizer {config.tokenizer[:16]}"),
        (
            "steps",
            f"{losses.count:,} of {config.steps:,}, each {config.slots} slots of "
            f"{config.tokens_per_slot:,} tokens; {losses.tokens:,} tokens in all",
        ),
        ("seed", str(config.seed)),
        ("learning rate", f"{config.lr:g}, warm-up {config.warmup}"),
        ("training loss", f"{losses.first:.4f} at step 1, {losses.last:.4f} at the last"),
    ]
    held = losses.held
    lowest = best(held)
    if lowest is not None:
        rows.append(
            (
                "held-out loss",
                f"{held[-1][1] / held[-1][2] / UNIT:.4f} at step {held[-1][0]}; lowest "
                f"{lowest[1] / lowest[2] / UNIT:.4f} at step {lowest[0]}",
            )
        )
    rows += _measured(metrics)
    rows.append(("final state", f"`{losses.state}`"))
    signers = {short_id(peer_id(bytes.fromhex(s.key))): s.step for s in read(file_of(path))}
    told = ", ".join(f"{who} up to step {step}" for who, step in signers.items())
    rows.append(("ledger", f"`{path.name}`, signed by {told or 'nobody'} (`p2pnode verify`)"))
    return "\n".join(
        (
            f"# Run {path.stem.removeprefix('run-')}",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in rows),
            "",
            "![loss and throughput](report.svg)",
            "",
        )
    )


def _measured(metrics: Sequence[Metrics]) -> Iterable[tuple[str, str]]:
    """Rows of what this node's machine saw."""
    timed = [one for one in metrics if one.seconds > 0]
    if not timed:
        return
    seconds = sum(one.seconds for one in timed)
    speed = sum(one.tokens for one in timed) / seconds
    middle = statistics.median(one.tokens_per_s for one in timed)
    yield "throughput", f"{speed:,.0f} tokens/s over all steps seen here, median {middle:,.0f}"
    slots: Counter[str] = Counter()
    for one in metrics:
        slots.update({share.node: share.slots for share in one.nodes})
    total = max(1, sum(slots.values()))
    parts = ", ".join(f"{node} {count / total:.0%}" for node, count in slots.most_common())
    yield "slots by node", parts
    compute, wire, wait = (
        sum(getattr(one, name) for one in timed) / seconds
        for name in ("compute_s", "wire_s", "wait_s")
    )
    yield "time here", f"computing {compute:.0%}, transfers {wire:.0%}, waiting {wait:.0%}"
    received, sent = sum(o.bytes_in for o in metrics), sum(o.bytes_out for o in metrics)
    yield "traffic here", f"{received / 1e6:,.1f} MB in, {sent / 1e6:,.1f} MB out"
