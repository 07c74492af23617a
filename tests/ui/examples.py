"""Events of every kind, with what a person is told by them, and figures of a step."""

from __future__ import annotations

from typing import Any

import msgspec

from p2pnode.ui import events as ui
from p2pnode.ui.metrics import Metrics, NodeShare
from tests.train.ledgers import CONFIG

STEP = ui.Step(
    step=7,
    steps=10,
    loss=2.34567,
    grad_norm=1.5,
    lr=0.01,
    tokens_per_s=12345.6,
    slots_here=4,
    nodes=2,
    rss_mb=200.5,
)

FINISHED = ui.Finished(
    step=10,
    hash="ab" * 32,
    loss=1.25,
    checkpoint="/runs/x.safetensors",
    worst_loop_stall_ms=12.6,
    loop_stalls=0,
    peak_rss_mb=321.4,
)

STARTED = ui.RunStarted(
    run="0123abcd",
    parameters=50_000,
    steps=10,
    slots=16,
    tokens_per_step=2048,
    first_step=0,
    backend="numba",
)

EXAMPLES: list[tuple[ui.Event, tuple[str, ...] | None]] = [
    (ui.Info(text="hello"), ("hello",)),
    (ui.Warn(text="careful"), ("warning: careful",)),
    (
        ui.Invite(server="http://h:1", code="a-b-c", command="python -m p2pnode join"),
        ("a-b-c", "python -m p2pnode join", "You are the host"),
    ),
    (ui.Waiting(host="aaaa-bbbb"), ("Waiting for the host",)),
    (ui.Knock(peer="aaaa-bbbb", name="bob"), ("bob (aaaa-bbbb) asks to join.",)),
    (
        ui.Knock(peer="aaaa-bbbb", name="bob", words="one two"),
        ("bob (aaaa-bbbb) asks to join without a code", "only if its terminal shows: one two"),
    ),
    (ui.Compare(host="aaaa-bbbb", words="one two"), ("one two", "(aaaa-bbbb)", "say no")),
    (ui.Joined(peer="aaaa-bbbb", name="bob", connected=2), ("bob (aaaa-bbbb)", "2 with you")),
    (ui.Joined(peer="aa", name="bob", connected=2, turn=True), ("is connected via TURN; 2",)),
    (
        ui.Left(peer="aaaa-bbbb", name="bob", reason="silent", connected=1),
        ("bob (aaaa-bbbb) left: silent", "1 still"),
    ),
    (STARTED, ("50,000 parameters", "10 steps of 16 slots;", "numba kernels")),
    (msgspec.structs.replace(STARTED, first_step=5), ("16 slots, from step 5;",)),
    (ui.Computing(step=3, slots=4), None),
    (STEP, ("step 7/10", "loss 2.3457", "12,346 tokens/s", "2 nodes", "4 slots here")),
    (msgspec.structs.replace(STEP, nodes=1), ("1 node,",)),
    (ui.HeldOut(step=50, loss=2.5), ("step 50", "held-out loss 2.5000")),
    (ui.Sample(step=50, text="The\n end"), ("step 50 writes: The\\n end",)),
    (ui.Checkpoint(step=50, path="/runs/x"), ("Saved step 50 to /runs/x",)),
    (ui.Checkpoint(step=50, path="/runs/y", best=True), ("lowest held-out loss so far, to",)),
    (
        FINISHED,
        ("Finished at step 10: loss 1.2500\n", "hash " + "ab" * 32, "/runs/x.safetensors", "13 ms"),
    ),
    (msgspec.structs.replace(FINISHED, loss=None), ("Finished at step 10\n",)),
]


RUN = CONFIG.run_id().hex()[:8]


def metrics(step: int, **changes: Any) -> Metrics:
    fields: dict[str, Any] = {
        "run": RUN,
        "step": step,
        "loss": 3.0,
        "heldout": None,
        "tokens": 96,
        "grad_norm": 1.0,
        "lr": 0.01,
        "seconds": 2.0,
        "tokens_per_s": 48.0,
        "nodes": (NodeShare("aaaa-aaaa", 3, 36.0), NodeShare("bbbb-bbbb", 1, 12.0)),
        "bytes_in": 2_000_000,
        "bytes_out": 1_000_000,
        "compute_s": 1.0,
        "wire_s": 0.5,
        "wait_s": 0.5,
    }
    return Metrics(**fields | changes)
