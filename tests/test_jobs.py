"""Effects carried out by a real trainer of the smallest preset."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from p2pnode.bundle import ApplyCase, SlotCase, read
from p2pnode.errors import CheckpointError, DataError, NonFiniteError, SourceAwayError
from p2pnode.jobs import PASSING, PartialSet, _int32
from p2pnode.protocol import effects, events, fetch, messages
from p2pnode.protocol.evidence import summarise
from p2pnode.protocol.messages import Shard
from p2pnode.train.arithmetic import kernels
from p2pnode.train.checkpoint import load
from p2pnode.train.data import Dataset
from p2pnode.train.trainer import Trainer
from p2pnode.train.windows import BuiltinText
from tests.harness.jobs import ALL, SLOTS, WHOLE, Bench
from tests.train.helpers import compute_set


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def values(payload: Any) -> np.ndarray:
    return np.frombuffer(payload, "<i4")


# Compute


def test_slot_by_slot_gives_the_sum(bench: Bench) -> None:
    computed = bench.compute(1)
    expected = compute_set(bench.trainer)
    assert (computed.step, computed.slots, computed.reference) == (1, ALL, False)
    assert np.array_equal(values(computed.payload), expected.sum)
    assert [item.slot for item in computed.evidence] == list(ALL)
    for ours, theirs in zip(computed.evidence, expected.evidence, strict=True):
        assert (ours.digest, ours.checksum, ours.loss) == (
            theirs.digest,
            theirs.checksum,
            theirs.loss,
        )
    assert computed.probe == kernels.probe_expected()


def test_any_split_into_sets_gives_the_same_step(tmp_path: Path) -> None:
    hashes = set()
    for number, sets in enumerate([(ALL,), ((0, 3), (1, 2)), ((2,), (0, 1, 3))]):
        bench = Bench(tmp_path / str(number))
        computed = [bench.compute(1, slots) for slots in sets]
        shards = [Shard(index, 3) for index in range(3)]
        sums = []
        for ticket, shard in enumerate(shards):
            low, high = shard.bounds(bench.trainer.parameters)
            parts = tuple(memoryview(c.payload)[4 * low : 4 * high] for c in computed)
            sizes = tuple(len(c.slots) for c in computed)
            first, last = shard.pieces
            digests = tuple(c.pieces[first:last] for c in computed)
            texts = tuple(texts_of(c) for c in computed)
            effect = effects.Reduce(1, shard, ticket, parts, sizes, digests, texts)
            reduced = bench.jobs.reduce(effect)
            assert reduced.read
            assert (reduced.step, reduced.shard, reduced.ticket) == (1, shard, ticket)
            sums.append(reduced.payload)
        summary = summarise([item for c in computed for item in c.evidence])
        hashes.add(bench.jobs.apply(effects.Apply(1, tuple(sums), summary)).state_hash)
    assert len(hashes) == 1


def test_reference_kernels_find_the_same_evidence(bench: Bench) -> None:
    checked = bench.compute(1, (2,), reference=True)
    assert checked.reference
    assert checked.evidence == bench.compute(1, (2,)).evidence


def test_a_stale_set_gives_nothing(bench: Bench) -> None:
    partial = PartialSet(effects.Compute(1, ALL))
    assert bench.jobs.compute_next_slot(partial) is None
    bench.advance(1)
    assert bench.jobs.compute_next_slot(partial) is None
    assert len(partial.evidence) == 1  # nothing was added: the session gives it up
    assert bench.compute(3, (0,)) is None  # of a step that is not there yet


def test_a_slot_without_a_gradient_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Trainer.compute_slot

    def compute_slot(self: Trainer, step: int, slot: int, **options: bool) -> Any:
        if slot == 2:
            raise NonFiniteError("slot 2 of step 0: NaN")
        return original(self, step, slot, **options)

    monkeypatch.setattr(Trainer, "compute_slot", compute_slot)
    partial = PartialSet(effects.Compute(1, ALL))
    assert bench.jobs.compute_next_slot(partial) is None
    assert bench.jobs.compute_next_slot(partial) is None
    refused = bench.jobs.compute_next_slot(partial)
    assert isinstance(refused, events.SetRefused)
    assert (refused.step, refused.slots, refused.slot) == (1, ALL, 2)
    assert "NaN" in refused.reason


# Reduce


@pytest.mark.parametrize("sign", [1, -1])
def test_the_part_with_impossible_values_is_named(bench: Bench, sign: int) -> None:
    most = kernels.grid_limit(SLOTS)
    honest = np.zeros(5, "<i4")
    edge, beyond = honest.copy(), honest.copy()
    edge[3], beyond[3] = sign * 2 * most, sign * (2 * most + 1)

    def reduce(*parts: np.ndarray, sizes: tuple[int, ...]) -> Any:
        raw = tuple(part.tobytes() for part in parts)
        own = ((),) * len(raw)
        return bench.jobs.reduce(effects.Reduce(1, WHOLE, 9, raw, sizes, own, own))

    assert isinstance(reduce(honest, edge, sizes=(2, 2)), events.Reduced)
    refused = reduce(honest, beyond, sizes=(2, 2))
    assert isinstance(refused, events.ReduceRefused)
    assert (refused.part, refused.ticket, refused.step) == (1, 9, 1)
    assert str(2 * most) in refused.reason
    assert isinstance(reduce(beyond, honest, sizes=(3, 1)), events.Reduced)


def test_the_most_negative_integer_is_impossible(bench: Bench) -> None:
    part = np.full(3, -(2**31), "<i4").tobytes()
    refused = bench.jobs.reduce(effects.Reduce(1, WHOLE, 0, (part,), (SLOTS,), ((),), ((),)))
    assert isinstance(refused, events.ReduceRefused)


def test_a_part_with_other_bytes_than_pledged_is_named(bench: Bench) -> None:
    ours, theirs = bench.compute(1, (0, 1)), bench.compute(1, (2, 3))
    shard = Shard(1, 3)
    low, high = shard.bounds(bench.trainer.parameters)
    first, last = shard.pieces
    parts = [bytes(memoryview(c.payload)[4 * low : 4 * high]) for c in (ours, theirs)]
    digests = ((), theirs.pieces[first:last])
    effect = effects.Reduce(1, shard, 0, tuple(parts), (2, 2), digests, ((), ()))
    assert isinstance(bench.jobs.reduce(effect), events.Reduced)
    other = bytearray(parts[1])
    other[-1] ^= 1
    effect = dataclasses.replace(effect, parts=(parts[0], bytes(other)))
    refused = bench.jobs.reduce(effect)
    assert isinstance(refused, events.ReduceRefused)
    assert (refused.part, refused.reason) == (1, "has other bytes than it pledged")


def texts_of(computed: events.Computed) -> tuple[tuple[int, bytes], ...]:
    return tuple((item.slot, item.token_hash) for item in computed.evidence)


def two_parts(bench: Bench) -> effects.Reduce:
    """A sum of a set of this node's own and one of another's."""
    ours, theirs = bench.compute(1, (0, 1)), bench.compute(1, (2, 3))
    payloads = ours.payload, theirs.payload
    digests = (), theirs.pieces
    return effects.Reduce(1, WHOLE, 0, payloads, (2, 2), digests, ((), texts_of(theirs)))


def test_a_part_that_was_computed_on_other_text_is_named(bench: Bench) -> None:
    effect = two_parts(bench)
    assert bench.jobs.reduce(effect).read
    (_, right), (_, second) = effect.texts[1]
    lie = ((), ((2, right), (3, bytes(32))))
    refused = bench.jobs.reduce(dataclasses.replace(effect, texts=lie))
    assert isinstance(refused, events.ReduceRefused)
    assert (refused.part, refused.slot, refused.token_hash) == (1, 3, second)
    assert "slot 3" in refused.reason


def test_text_that_is_not_here_is_not_compared(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    effect = dataclasses.replace(two_parts(bench), texts=((), ((2, bytes(32)), (3, bytes(32)))))

    def away(*_: object) -> Any:
        raise SourceAwayError("the row group is not here")

    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "slot", away)
        reduced = bench.jobs.reduce(effect)
        assert isinstance(reduced, events.Reduced)
        assert not reduced.read
    assert isinstance(bench.jobs.reduce(effect), events.ReduceRefused), "it has come"


def test_who_differs_because_its_own_text_has_changed_stops(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    effect = dataclasses.replace(two_parts(bench), texts=((), ((2, bytes(32)), (3, bytes(32)))))
    monkeypatch.setattr(BuiltinText, "intact", lambda self: False)
    with pytest.raises(DataError, match="memory"):
        bench.jobs.reduce(effect)
    with pytest.raises(DataError, match="memory"):
        bench.jobs.diagnose(effects.Diagnose(1, 0, b"p" * 32, None), None)


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_payloads_may_lie_askew_in_their_message(bench: Bench, offset: int) -> None:
    computed = bench.compute(1)
    message = bytearray(offset) + computed.payload
    askew = memoryview(message)[offset:]
    assert _int32(askew).flags.aligned
    reduced = bench.jobs.reduce(effects.Reduce(1, WHOLE, 0, (askew,), (SLOTS,), ((),), ((),)))
    assert np.array_equal(values(reduced.payload), values(computed.payload))
    apply = effects.Apply(1, (askew,), summarise(computed.evidence))
    assert isinstance(bench.jobs.apply(apply), events.Applied)


# Apply, verify


def refused(bench: Bench, apply: effects.Apply, non_finite: bool = False) -> str:
    """The reason of a refusal that must leave everything as it was."""
    before = bench.trainer.state_hash, bench.trainer.step, bench.trainer.snapshot()
    answer = bench.jobs.apply(apply)
    assert isinstance(answer, events.ApplyRefused)
    assert (answer.step, answer.non_finite) == (apply.step, non_finite)
    assert before == (bench.trainer.state_hash, bench.trainer.step, bench.trainer.snapshot())
    return answer.reason


def test_a_wrong_checksum_is_refused(bench: Bench) -> None:
    apply = bench.applying(1)
    total = values(apply.sums[0]).copy()
    total[17] += 1
    reason = refused(bench, dataclasses.replace(apply, sums=(total.tobytes(),)))
    assert "checksum" in reason
    assert isinstance(bench.jobs.apply(apply), events.Applied)  # the right sum is still welcome


def test_a_sum_of_another_length_is_refused(bench: Bench) -> None:
    apply = bench.applying(1)
    assert "values" in refused(bench, dataclasses.replace(apply, sums=(apply.sums[0][:-4],)))


def test_a_step_out_of_turn_is_refused(bench: Bench) -> None:
    apply = bench.applying(1)
    assert "step" in refused(bench, dataclasses.replace(apply, step=2))
    bench.commit(1, apply)
    assert "step" in refused(bench, apply)


def test_a_state_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    """Weights at the edge of binary32, which the step pushes over it."""
    bench = Bench(tmp_path)
    step = bench.applying(1)
    bench.trainer._committed.weights[:] = 3e38
    bench.trainer._committed.m[:] = -3e38
    reason = refused(bench, step, non_finite=True)
    assert "step 0" in reason


def test_info_is_of_the_newest_apply_only(bench: Bench) -> None:
    assert bench.jobs.info(1) is None
    bench.advance(1)
    first = bench.jobs.info(1)
    assert first is not None
    assert first.step == 1
    assert first.grad_norm > 0
    bench.advance(2)
    assert bench.jobs.info(1) is None
    assert bench.jobs.info(2) is not None


def test_verify_finds_the_tensor_that_went_wrong(bench: Bench) -> None:
    bench.jobs.apply(bench.applying(1))
    assert bench.jobs.verify(effects.Verify(1)) == events.Verified(1, None)
    pending = bench.trainer._pending
    assert pending is not None
    pending.state.weights[0] += np.float32(1)
    bench.trainer._pending = dataclasses.replace(pending, hash=pending.state.hash())
    verified = bench.jobs.verify(effects.Verify(1))
    assert (verified.tensor, verified.operation) == (bench.trainer.tensors[0], PASSING)
    (case,) = [read(path).case for path in bench.bundles()]
    assert isinstance(case, ApplyCase)
    assert case.stated == bench.trainer.state_hash.hex() != case.computed


def test_verify_names_the_operation_that_is_made_wrong_each_time(bench: Bench) -> None:
    step = bench.applying(1)
    bench.trainer.kernels = spoilt("adam")
    bench.jobs.apply(step)
    verified = bench.jobs.verify(effects.Verify(1))
    assert (verified.tensor, verified.operation) == ("embed", "Adam, weights")
    assert "wrong-run-" in verified.saved
    (case,) = [read(path).case for path in bench.bundles()]
    assert str(case.difference) == "embed, Adam, weights"


def test_verify_finds_a_wrong_hash_of_a_right_state(bench: Bench) -> None:
    bench.jobs.apply(bench.applying(1))
    assert bench.trainer._pending is not None
    bench.trainer._pending = dataclasses.replace(bench.trainer._pending, hash=bytes(32))
    verified = bench.jobs.verify(effects.Verify(1))
    assert (verified.tensor, verified.operation) == ("state hash", PASSING)


# Commit


def test_commit_reports_what_was_due(tmp_path: Path) -> None:
    bench = Bench(tmp_path, every=2, eval_every=3)
    results = {step: bench.advance(step) for step in range(1, 7)}
    assert [step for step, r in results.items() if r.held_out is not None] == [3, 6]
    assert [step for step, r in results.items() if r.checkpoint is not None] == [2, 4, 6]
    assert all(r.problem is None for r in results.values())
    assert results[3].held_out.step == 3
    assert results[6].checkpoint.name.endswith("-step-00000006.safetensors")


def test_a_checkpoint_is_the_committed_state(tmp_path: Path) -> None:
    bench = Bench(tmp_path, every=1)
    result = bench.advance(1)
    committed = bench.trainer.committed_hash
    bench.jobs.apply(bench.applying(2))  # pending: not to be saved
    assert load(result.checkpoint).hash() == committed
    assert load(bench.jobs.save()).hash() == committed
    assert bench.jobs.save().read_bytes() == bench.jobs.freeze(effects.Freeze(1)).payload


def test_a_full_disk_is_a_problem_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, every=1)
    first = bench.advance(1).checkpoint
    with monkeypatch.context() as full:
        full.setattr(
            "p2pnode.train.checkpoint.os.fsync",
            lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")),
        )
        result = bench.advance(2)
        assert result.checkpoint is None
        assert "No space left on device" in result.problem
        with pytest.raises(CheckpointError, match="No space left"):
            bench.jobs.save()
    assert [path.name for path in tmp_path.glob("*safetensors*")] == [first.name]
    assert bench.advance(3).checkpoint is not None


def test_checkpoints_stop_before_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, every=1)
    first = bench.advance(1).checkpoint
    size = first.stat().st_size
    free = SimpleNamespace(free=size + size // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    result = bench.advance(2)
    assert result.checkpoint is None
    assert "MB free" in result.problem
    assert bench.jobs.save().exists(), "the last one may take the room that is left"


# Freeze, load


def test_a_frozen_state_loads_elsewhere_to_the_same_bits(bench: Bench, tmp_path: Path) -> None:
    for step in (1, 2):
        bench.advance(step)
    frozen = bench.jobs.freeze(effects.Freeze(2))
    assert frozen.state_hash == bench.trainer.committed_hash
    assert frozen.part_hashes == fetch.part_hashes(frozen.payload)
    other = Bench(tmp_path / "other", every=2)
    loaded = other.jobs.load(effects.Load(2, bytearray(frozen.payload)))
    assert loaded == events.Loaded(2, frozen.state_hash)
    # What the core then commits is committed already, and may be due for a checkpoint.
    result = other.jobs.commit(effects.Commit(2, frozen.state_hash, None, ()))
    assert load(result.checkpoint).hash() == frozen.state_hash
    bench.advance(3)
    other.advance(3)
    assert other.trainer.committed_hash == bench.trainer.committed_hash


def test_freeze_holds_the_committed_state_not_the_pending_one(bench: Bench) -> None:
    bench.advance(1)
    expected = bench.jobs.freeze(effects.Freeze(1)).payload
    bench.jobs.apply(bench.applying(2))
    assert bench.jobs.freeze(effects.Freeze(1)).payload == expected


@pytest.mark.parametrize("damage", ["garbage", "cut", "longer", "flip", "other run", "nothing"])
def test_what_is_no_state_of_this_run_is_not_loaded(
    bench: Bench, tmp_path: Path, damage: str
) -> None:
    bench.advance(1)
    good = bytes(bench.jobs.freeze(effects.Freeze(1)).payload)
    header = int.from_bytes(good[:8], "little")
    blob = {
        "garbage": b"\x00" * len(good),
        "cut": good[:-1],
        "longer": good + b"\x00",
        "flip": good[: 8 + header // 2] + b"#" + good[9 + header // 2 :],
        "other run": Bench(tmp_path / "other", seed=8).jobs.freeze(effects.Freeze(0)).payload,
        "nothing": b"",
    }[damage]
    before = bench.trainer.committed_hash, bench.trainer.committed_step
    answer = bench.jobs.load(effects.Load(1, blob))
    assert isinstance(answer, events.LoadRefused)
    assert answer.step == 1
    assert answer.reason
    assert before == (bench.trainer.committed_hash, bench.trainer.committed_step)
    bench.advance(2)


def test_nan_in_a_state_is_not_loaded(bench: Bench) -> None:
    good = bytearray(bench.jobs.freeze(effects.Freeze(0)).payload)
    good[-4:] = np.float32(np.nan).tobytes()
    answer = bench.jobs.load(effects.Load(0, good))
    assert isinstance(answer, events.LoadRefused)
    assert "NaN" in answer.reason


def test_sums_go_to_a_file_without_a_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    done = bench.jobs.spool(effects.Spool(3, (b"one", b"two!")))
    assert done.payloads is not None
    assert (done.step, *map(bytes, done.payloads)) == (3, b"one", b"two!")
    assert [path.suffix for path in tmp_path.iterdir()] == [".ledger"]


def test_sums_are_not_spooled_to_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    done = Bench(tmp_path).jobs.spool(effects.Spool(3, (b"one", b"two!")))
    assert done.payloads is None
    assert "full" in done.reason


def test_a_state_under_way_goes_on_after_a_restart(tmp_path: Path) -> None:
    donor = Bench(tmp_path / "donor")
    frozen = donor.jobs.freeze(effects.Freeze(0))
    blob = fetch.Blob(frozen.payload, frozen.part_hashes)
    part = memoryview(frozen.payload)[messages.PART_BYTES : 2 * messages.PART_BYTES]
    store = effects.Store(
        blob.root, len(frozen.payload), frozen.part_hashes, messages.PART_BYTES, part
    )
    (tmp_path / "joiner").mkdir()
    Bench(tmp_path / "joiner").jobs.store(store)
    joiner = Bench(tmp_path / "joiner")
    found = joiner.jobs.recall(effects.Recall(blob.root))
    assert 1 in found.parts
    assert 0 not in found.parts, "a part that is all zeros is here without having come"
    assert found.blob[messages.PART_BYTES : 2 * messages.PART_BYTES] == part
    fetcher = fetch.Fetcher(b"r" * 16, blob.root, 1 << 30)
    fetcher.restore(found.size, found.hashes, found.blob, found.parts)
    fetcher.set_donors([b"d" * 32])
    assert 1 not in [want.part for _, want in fetcher.requests(0.0)]

    joiner.jobs.load(effects.Load(0, frozen.payload))
    left = [path.suffix for path in (tmp_path / "joiner").iterdir()]
    assert left == [".ledger"], "the parts are of no more use"
    assert joiner.jobs.recall(effects.Recall(blob.root)).parts == frozenset()


def test_a_damaged_part_on_disk_is_fetched_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    frozen = bench.jobs.freeze(effects.Freeze(0))
    root = fetch.Blob(frozen.payload, frozen.part_hashes).root
    size = len(frozen.payload)
    bench.jobs.store(effects.Store(root, size, frozen.part_hashes, 0, b"not this" * 1000))
    assert 0 not in bench.jobs.recall(effects.Recall(root)).parts
    other = b"\0" * len(frozen.part_hashes)  # the hashes do not give the name
    bench.jobs.store(effects.Store(b"n" * 32, size, other, 0, frozen.payload))
    assert bench.jobs.recall(effects.Recall(b"n" * 32)).size == 0


# Others' work, and disputes


def spoilt(operation: str) -> kernels.Kernels:
    """Kernels of which one operation gives a wrong bit each time."""

    def spoil(name: str, args: tuple[Any, ...], result: Any) -> None:
        if name == operation:
            array = args[-1][0] if result is None else result
            array.reshape(-1)[0] += 1

    return kernels.load().observed(spoil)


def audit(bench: Bench, step: int, slots: tuple[int, ...] = ALL, reference: bool = False) -> Any:
    partial = PartialSet(effects.Audit(step, slots, reference))
    event = None
    while event is None:
        event = bench.jobs.audit_next_slot(partial)
    return event


@pytest.mark.parametrize("reference", [False, True])
def test_an_audit_finds_what_its_worker_had_to_pledge(bench: Bench, reference: bool) -> None:
    worker = bench.compute(1, (1, 2))
    assert bench.jobs.lend(1)
    audited = audit(bench, 1, (1, 2), reference)
    assert (audited.step, audited.slots, audited.reference) == (1, (1, 2), reference)
    assert audited.evidence == worker.evidence
    assert audited.pieces == worker.pieces


def test_an_audit_can_be_made_steps_later(bench: Bench) -> None:
    worker = bench.compute(1)
    assert bench.jobs.lend(1)
    for step in (1, 2, 3):
        bench.advance(step)
    audited = audit(bench, 1)
    assert (audited.evidence, audited.pieces) == (worker.evidence, worker.pieces)


def test_what_is_lent_while_a_step_is_pending_is_the_state_before_it(bench: Bench) -> None:
    worker = bench.compute(1)
    bench.jobs.apply(bench.applying(1))
    assert bench.jobs.lend(1)
    assert bench.jobs.lend(2)
    assert not bench.jobs.lend(3)
    assert audit(bench, 1).evidence == worker.evidence
    assert audit(bench, 2).evidence == bench.compute(2).evidence


def test_a_state_that_was_let_go_is_gone(bench: Bench) -> None:
    assert bench.jobs.lend(1)
    bench.advance(1)
    bench.jobs.let_go(1)
    assert audit(bench, 1).evidence is None
    assert not bench.jobs.lend(1)


def test_a_slot_that_is_not_finite_has_no_evidence(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise NonFiniteError("an attention score is NaN")

    assert bench.jobs.lend(1)
    monkeypatch.setattr(bench.trainer, "compute_lent", fail)
    assert audit(bench, 1).evidence == ()


def test_a_diagnosis_names_the_operation_and_saves_a_bundle(bench: Bench) -> None:
    bench.trainer.kernels = spoilt("rope")
    said = bench.compute(1, (2,)).evidence[0]
    lent = bench.jobs.lend(1)
    bench.advance(1)
    bench.trainer.restart(bench.trainer.config, None)  # the run went back meanwhile
    found = bench.jobs.diagnose(effects.Diagnose(1, 2, b"p" * 32, said), lent)
    assert (found.tensor, found.operation) == ("layers.0", "rotary embedding")
    (path,) = bench.bundles()
    assert str(path) in found.saved
    case = read(path).case
    assert isinstance(case, SlotCase)
    assert (case.step, case.slot, case.peer) == (1, 2, (b"p" * 32).hex())
    assert case.stated is not None
    assert case.computed is not None
    assert case.stated.digest == said.digest != case.computed.digest


def test_a_diagnosis_of_sound_kernels_finds_nothing_but_keeps_the_evidence(bench: Bench) -> None:
    said = bench.compute(1, (2,)).evidence[0]
    found = bench.jobs.diagnose(effects.Diagnose(1, 2, b"p" * 32, said), bench.jobs.lend(1))
    assert found.tensor is None
    assert len(bench.bundles()) == 1


def test_a_diagnosis_without_its_state_finds_nothing(bench: Bench) -> None:
    bench.advance(1)
    bench.advance(2)
    found = bench.jobs.diagnose(effects.Diagnose(1, 2, b"p" * 32, None), bench.jobs.lend(1))
    assert (found.tensor, found.saved) == (None, "")


def test_a_bundle_that_cannot_be_written_does_not_end_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    said = bench.compute(1, (2,)).evidence[0]
    found = bench.jobs.diagnose(effects.Diagnose(1, 2, b"p" * 32, said), bench.jobs.lend(1))
    assert "No bundle was saved" in found.saved
