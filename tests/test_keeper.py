"""What a commit leaves behind, and how members share their ledgers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from p2pnode import ledger_share
from p2pnode.errors import CheckpointError
from p2pnode.keeper import CommitResult
from p2pnode.ledger_share import LedgerShare
from p2pnode.protocol import effects
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.lobby import LedgerLines, LedgerSigned, LedgerWant, LobbyMessage
from p2pnode.room import Room
from p2pnode.signatures import Signatures, file_of, read
from p2pnode.train.arithmetic import kernels
from p2pnode.train.checkpoint import load
from p2pnode.train.evidence import HeldOut
from p2pnode.train.heldout import LAG
from p2pnode.train.ledger import Ledger
from p2pnode.train.trainer import Trainer
from p2pnode.ui.events import Event, Warn
from p2pnode.worker import Worker
from tests.harness.jobs import Bench
from tests.train.helpers import loaded_once
from tests.train.ledgers import CONFIG, entry, ledger_of

SECONDS = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "load", loaded_once)


def losses(monkeypatch: pytest.MonkeyPatch, values: dict[int, int]) -> None:
    """Held-out losses by step."""

    def heldout_loss(self: Trainer) -> HeldOut:
        return HeldOut(self.committed_step, values[self.committed_step], 10)

    monkeypatch.setattr(Trainer, "heldout_loss", heldout_loss)


def best_files(folder: Path) -> list[str]:
    return [path.name[-20:-12] for path in sorted(folder.glob("best-*"))]


def test_the_best_state_is_kept_beside_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses(monkeypatch, {1: 50, 2: 40, 3: 45, 4: 40, 5: 30})
    bench = Bench(tmp_path, every=1, eval_every=1)
    kept = [bench.advance(step).best is not None for step in range(1, 6)]
    assert kept == [True, True, False, False, True]
    assert best_files(tmp_path) == ["00000005"]
    assert load(next(tmp_path.glob("best-*"))).hash() == bench.trainer.committed_hash
    names = [path.name for path in tmp_path.glob("run-*.safetensors")]
    assert len(names) == 3, "rotation goes on beside it"
    assert bench.folder.newest()[0].name.startswith("run-")  # type: ignore[index]
    bench.folder.discard(bench.trainer.config, 4)
    assert best_files(tmp_path) == []


def test_the_best_state_is_known_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses(monkeypatch, {1: 50, 2: 40, 3: 45, 4: 39})
    bench = Bench(tmp_path, every=2, eval_every=1)
    bench.advance(1), bench.advance(2)
    again = Bench(tmp_path, every=2, eval_every=1)
    again.trainer.restore(bench.trainer.snapshot())
    assert again.advance(3).best is None
    assert again.advance(4).best is not None


@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_early_stop_is_a_function_of_the_ledger(
    patience: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses(monkeypatch, {1: 50, 2: 60, 3: 49, 4: 49, 5: 51, 6: 70})
    bench = Bench(tmp_path, eval_every=1, early_stop=patience)
    stops = [bench.advance(step).stop_after for step in range(1, 7)]
    expected = {0: [None] * 6, 1: [None] + [2 + LAG] * 5, 2: [None] * 4 + [5 + LAG] * 2}
    assert stops == expected.get(patience, [None] * 5 + [6 + LAG])


def test_a_run_that_is_resumed_stops_where_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger has lines beyond the checkpoint, and one beyond the end."""
    losses(monkeypatch, {1: 50, 2: 60, 3: 61, 4: 62, 5: 63})
    bench = Bench(tmp_path, eval_every=1, early_stop=1)
    start = bytes(bench.trainer.snapshot())
    for step in range(1, 6):
        bench.advance(step)
    whole = bench.ledger.path.read_bytes()
    again = Bench(tmp_path, eval_every=1, early_stop=1)
    again.trainer.restore(start)
    assert [again.advance(step).stop_after for step in (1, 2, 3, 4)] == [None, 4, 4, 4]
    assert again.ledger.path.read_bytes() == whole
    again.jobs.final()
    assert again.ledger.step == 4
    assert whole.startswith(again.ledger.path.read_bytes())


def test_who_lacks_lines_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses(monkeypatch, {1: 50, 2: 60, 3: 61})
    ahead = Bench(tmp_path / "a", eval_every=1, early_stop=1)
    ahead.advance(1), ahead.advance(2)
    late = Bench(tmp_path / "b", eval_every=1, early_stop=1)
    late.trainer.restore(ahead.trainer.snapshot())
    taken = late.jobs.commit(effects.Commit(2, late.trainer.committed_hash, None, ()))
    assert (taken.stop_after, taken.missing) == (None, (1, 2))
    result = late.advance(3)
    assert (result.stop_after, result.missing) == (None, (1, 2))
    late.ledger.fill(ahead.ledger.lines(1, 1 << 20))
    assert late.ledger.step == 3


def test_a_ledger_that_cannot_be_written_is_a_problem_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, every=1)

    def full(*_: object) -> None:
        raise CheckpointError("Cannot write x: No space left on device.")

    monkeypatch.setattr(Ledger, "record", full)
    result = bench.advance(1)
    assert "No space left" in result.problem
    assert "lacks step 1" in result.problem
    assert (result.signs, result.checkpoint is not None) == (None, True)
    monkeypatch.undo()
    assert bench.advance(2).missing == (1, 1)


def test_a_checkpoint_is_signed_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, every=2)
    results: list[CommitResult] = [bench.advance(step) for step in range(1, 5)]
    digests = [bench.ledger.digest_at(step) for step in range(1, 5)]
    assert [result.signs for result in results] == [None, (2, digests[1]), None, (4, digests[3])]
    assert bench.jobs.final()[1] == (4, digests[3])


# Members


class Member:
    """A ledger share whose messages go straight to other members."""

    def __init__(self, folder: Path, seed: bytes, steps: list[int], worker: Worker) -> None:
        self.identity = Identity(seed * 32)
        self.peer = self.identity.peer_id
        self.ledger = ledger_of(folder, steps)
        self.others: dict[bytes, Member] = {}
        self.shown: list[Event] = []
        self.heard: list[LobbyMessage] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.share = LedgerShare(
            self.ledger,
            Signatures(file_of(self.ledger.path)),
            CONFIG.run_id(),
            self.identity,
            worker=worker,
            tell=lambda peer, message: self.others[peer].hear(self, message),
            links=lambda: self.others,
            key_of=lambda peer: self.others[peer].identity.key,
            name_of=lambda peer: peer.hex()[:4],
            show=self.shown.append,
            spawn=self.spawn,
        )

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)

    def hear(self, sender: Member, message: LobbyMessage) -> None:
        self.heard.append(message)
        assert isinstance(message, LedgerSigned | LedgerWant | LedgerLines)
        self.share.take(sender.peer, message)

    def sign(self) -> None:
        newest = self.ledger.newest()
        assert newest is not None
        self.share.signed_here(*newest)

    def signers(self) -> set[tuple[str, int]]:
        return {(one.key, one.step) for one in read(file_of(self.ledger.path))}


def linked(*members: Member) -> None:
    for member in members:
        member.others = {other.peer: other for other in members if other is not member}


async def settled(*members: Member) -> None:
    async def wait() -> None:
        while any(tasks := [task for m in members for task in m.tasks if not task.done()]):
            await asyncio.gather(*tasks)

    await asyncio.wait_for(wait(), SECONDS)
    for member in members:
        for task in member.tasks:
            task.result()


@pytest.fixture
async def make(tmp_path: Path) -> Any:
    worker = Worker()
    names = iter("abcdefgh")

    def one(steps: list[int]) -> Member:
        name = next(names)
        return Member(tmp_path / name, name.encode(), steps, worker)

    yield one
    worker.close()


Make = Callable[[list[int]], Member]


async def test_members_sign_and_keep_what_agrees(make: Make) -> None:
    alice, bob = make([1, 2, 3]), make([1, 2, 3])
    linked(alice, bob)
    alice.sign(), bob.sign()
    await settled(alice, bob)
    both = {(alice.identity.key.hex(), 3), (bob.identity.key.hex(), 3)}
    assert alice.signers() == bob.signers() == both
    assert not alice.shown


async def test_who_signs_another_ledger_is_named(make: Make) -> None:
    alice, bob = make([1, 2]), make([1, 2])
    bob.ledger.record(entry(3), CONFIG)
    alice.ledger.record(entry(3, loss=5), CONFIG)
    linked(alice, bob)
    bob.sign()
    await settled(alice, bob)
    assert [type(event) for event in alice.shown] == [Warn]
    assert "signed another ledger" in str(alice.shown[0])
    assert alice.signers() == set()


async def test_signatures_that_come_early_are_checked_later(make: Make) -> None:
    alice, bob = make([1, 2, 3]), make([1])
    linked(alice, bob)
    alice.sign()
    await settled(alice, bob)
    assert bob.signers() == set()
    bob.ledger.record(entry(2), CONFIG), bob.ledger.record(entry(3), CONFIG)
    bob.sign()
    await settled(alice, bob)
    assert len(bob.signers()) == 2


async def test_a_false_signature_counts_for_nothing(make: Make) -> None:
    alice, bob = make([1, 2]), make([1, 2])
    linked(alice, bob)
    digest = alice.ledger.digest
    alice.share.take(bob.peer, LedgerSigned(CONFIG.run_id(), 2, digest, bytes(64)))
    alice.share.take(bob.peer, LedgerSigned(bytes(32), 2, digest, bytes(64)))
    await settled(alice, bob)
    assert alice.signers() == set()
    await asyncio.wait_for(alice.share.complete(2, 0.3), SECONDS)
    assert not alice.share._signed


async def test_missing_lines_are_fetched_and_then_signed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(ledger_share.LIMITS, ledger_part_bytes=1_500)
    monkeypatch.setattr(ledger_share, "LIMITS", small)
    alice, late = make([*range(1, 12)]), make([10, 11])
    late.ledger.anchor(9, entry(9).state)
    linked(alice, late)
    late.share.lacks(late.ledger.missing)
    late.share.lacks(late.ledger.missing)  # it has been asked for
    alice.sign()
    waiting = asyncio.gather(alice.share.complete(11, SECONDS), late.share.complete(11, SECONDS))
    await asyncio.wait_for(waiting, SECONDS)
    await settled(alice, late)
    assert late.ledger.path.read_bytes() == alice.ledger.path.read_bytes()
    assert sum(isinstance(message, LedgerWant) for message in alice.heard) > 2
    assert len(late.signers()) == 2


async def test_a_liar_is_not_asked_again(make: Make) -> None:
    liar, honest, late = make([1, 2]), make([*range(1, 5)]), make([4])
    for step in (3, 4):
        liar.ledger.record(entry(step, loss=1), CONFIG)
    liar.ledger.cut(2)
    liar.ledger.record(lie(3), CONFIG)
    late.ledger.anchor(3, entry(3).state)
    late.others = {liar.peer: liar}
    liar.others = {late.peer: late}
    late.share.lacks(late.ledger.missing)
    await settled(liar, late)
    assert "another state" in str(late.shown[0])
    assert late.ledger.step == 0
    linked(liar, honest, late)
    late.share._asked_at = float("-inf")
    late.share.lacks(late.ledger.missing)
    await settled(liar, honest, late)
    assert late.ledger.step == 4
    late.share.take(liar.peer, LedgerLines(CONFIG.run_id(), b"x\n"))  # nobody asked it
    await settled(late)
    assert len(late.shown) == 1


def lie(step: int) -> Any:
    return msgspec.structs.replace(entry(step), state="e" * 64)


def test_who_asks_for_ever_and_reads_nothing_fills_no_queue() -> None:
    sent: list[dict[str, Any]] = []
    mesh = SimpleNamespace(send=lambda *_, **options: sent.append(options))
    for message in (
        LedgerLines(bytes(32), b""),
        LedgerWant(bytes(32), 1),
        LedgerSigned(bytes(32), 1, bytes(32), bytes(64)),
    ):
        Room.tell(SimpleNamespace(mesh=mesh), b"p" * 32, message)  # type: ignore[arg-type]
    assert [options["key"] for options in sent] == ["LedgerLines", "LedgerWant", "LedgerSigned"]


async def test_nobody_waits_for_long(make: Make) -> None:
    alice, silent = make([1]), make([1])
    linked(alice, silent)
    alice.sign()
    await asyncio.wait_for(alice.share.complete(1, 0.3), SECONDS)
    alice.others = {}
    await asyncio.wait_for(alice.share.complete(1, SECONDS), SECONDS / 2)
    await settled(alice, silent)
