"""A session whose core and jobs a test plays."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

from p2pnode.audits import Cost
from p2pnode.keeper import CommitResult
from p2pnode.net.events import Priority
from p2pnode.protocol import effects, events
from p2pnode.protocol.setup import Setup
from p2pnode.session import Session
from p2pnode.train.evidence import AppliedInfo
from p2pnode.train.open_data import open_dataset
from p2pnode.ui import events as ui
from tests.train.helpers import run_config

ME = b"\x01" * 32
PEER = b"\x02" * 32
STEPS = 5
SECONDS = 60.0


class FakeMesh:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.dropped: list[tuple[bytes, str]] = []

    def send(self, peer: bytes, buffers: list[Any], priority: Priority, **options: Any) -> bool:
        self.sent.append((peer, b"".join(bytes(b) for b in buffers), priority, options))
        return True

    def traffic(self) -> tuple[int, int]:
        return (0, 0)

    def drop(self, peer: bytes, reason: str) -> None:
        self.dropped.append((peer, reason))


class ScriptedCore:
    """In place of a step core: answers each event with the next list of effects."""

    def __init__(self, setup: Setup) -> None:
        self.script: list[list[effects.Effect]] = []
        self.heard: list[events.Event] = []
        self.plan = None
        self.applied = 0

    def handle(self, event: events.Event, now: float) -> list[effects.Effect]:
        if isinstance(event, events.Tick):
            return []
        self.heard.append(event)
        return self.script.pop(0) if self.script else []

    def next_deadline(self) -> float:
        return asyncio.get_running_loop().time() + 10.0


class FakeJobs:
    """Writes down what was asked of it; `hold` keeps the computing thread busy."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.entered = threading.Event()
        self.raises: dict[str, BaseException] = {}
        self.result = CommitResult(None, None, None)
        self.rewinds: list[Any] = []
        self.dataset = open_dataset(None)

    def _note(self, what: str) -> None:
        self.entered.set()
        assert self.hold.wait(SECONDS)
        self.ran.append(what)
        if what in self.raises:
            raise self.raises[what]

    def compute_next_slot(self, partial: Any) -> Any:
        slot = partial.remaining[0]
        self._note(f"slot {slot}")
        partial.evidence.append(slot)
        if partial.remaining:
            return None
        return events.Computed(
            partial.effect.step, partial.effect.slots, partial.effect.reference, b"", (), b"", ()
        )

    def reduce(self, effect: Any) -> Any:
        self._note("reduce")
        return events.Reduced(effect.step, effect.shard, effect.ticket, b"")

    def apply(self, effect: Any) -> Any:
        self._note(f"apply {effect.step}")
        return events.Applied(effect.step, bytes(32))

    def verify(self, effect: Any) -> Any:
        self._note(f"verify {effect.step}")
        return events.Verified(effect.step, None)

    def lend(self, step: int) -> bool:
        self._note(f"lend {step}")
        return True

    def let_go(self, step: int) -> None:
        self._note(f"let go {step}")

    def audit_next_slot(self, partial: Any) -> Any:
        slot = partial.remaining[0]
        self._note(f"audit {slot}")
        partial.evidence.append(slot)
        if partial.remaining:
            return None
        return events.Audited(partial.effect.step, partial.effect.slots, False, ())

    def diagnose(self, effect: Any, lent: Any) -> Any:
        self._note(f"diagnose {effect.slot}")
        return events.Diagnosed(effect.step, effect.slot, effect.peer, None, "", "It is in x.")

    def commit(self, effect: Any) -> CommitResult:
        self._note(f"commit {effect.step}")
        return self.result

    def freeze(self, effect: Any) -> Any:
        self._note(f"freeze {effect.step}")
        return events.Frozen(effect.step, bytes(32), b"", b"")

    def load(self, effect: Any) -> Any:
        self._note(f"load {effect.step}")
        return events.Loaded(effect.step, bytes(32))

    def save(self) -> Path:
        self._note("save")
        return Path("saved")

    def final(self) -> tuple[Path, None]:
        return self.save(), None

    def info(self, step: int) -> AppliedInfo:
        return AppliedInfo(step, bytes(32), 1.0, 0.1)


@dataclasses.dataclass
class Stage:
    """A session on a scripted core and fake jobs."""

    session: Session
    core: ScriptedCore
    jobs: FakeJobs
    mesh: FakeMesh
    shown: list[ui.Event]
    audit_cost: Cost

    def do(self, *asked: effects.Effect) -> None:
        """Let the core ask for these effects, all at once."""
        self.core.script.insert(0, list(asked))
        self.session.handle(events.LinkUp(PEER))


def make_setup(**changes: Any) -> Setup:
    config = run_config("nano", steps=STEPS)
    fields: dict[str, Any] = {
        "me": ME,
        "run": config.run_id()[:16],
        "parameters": 10,
        "tensors": 1,
        "slots": config.slots,
        "steps": STEPS,
        "state_hash": bytes(32),
        "boot": 1,
        "probe": bytes(32),
        "members": (ME,),
        "secret": b"",
        "sign": lambda digest: b"",
        "signed": lambda peer, digest, signature: False,
    }
    return Setup(**fields | changes)
