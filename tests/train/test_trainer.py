"""The facade: exact sums, one hash whoever computes, apply - verify - commit, save and resume."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest

from p2pnode.errors import (
    ArithmeticUnsoundError,
    CheckpointError,
    ConfigError,
    DataError,
    NonFiniteError,
    RunMismatchError,
)
from p2pnode.train import codec, trainer
from p2pnode.train.arithmetic import kernels
from p2pnode.train.gradient import CHECKSUM_MODULUS, checksum
from p2pnode.train.layout import layout_of
from p2pnode.train.state import State
from p2pnode.train.trainer import TrainerError
from tests.train.helpers import compute_set, micro_config, new_trainer, run_config, train


@pytest.fixture
def micro():
    return new_trainer(micro_config(), reference=True)


def apply_once(t):
    """Apply the next step and leave it pending."""
    result = compute_set(t)
    info = t.apply(t.step, result.sum, result.max_abs)
    return result, info


def poison(t, name, value=np.nan):
    part = next(x for x in layout_of(t.config.model).tensors if x.name == name)
    t._committed.weights[part.start] = value


# What training does


def test_loss_falls():
    t = new_trainer(run_config(warmup=5))
    losses = train(t, 30)
    assert losses[0] == pytest.approx(np.log(256), abs=0.05)
    assert losses[-1] < losses[0] - 1.5
    held = t.heldout_loss()
    assert held.step == 30
    assert held.tokens == 2 * t.config.tokens_per_slot
    assert held.nats_per_token == pytest.approx(losses[-1], abs=0.6)


@pytest.mark.parametrize(
    "sets", [[[0], [1], [2], [3]], [[3, 1], [2, 0]], [[2], [3, 1, 0]]], ids=str
)
def test_any_grouping_of_slots_gives_the_same_state(micro, sets):
    train(micro, 4)
    other = new_trainer(micro.config, reference=True)
    train(other, 4, sets)
    assert other.state_hash == micro.state_hash
    assert other.snapshot() == micro.snapshot()


def test_compiled_and_reference_kernels_give_the_same_state():
    config = run_config(slots=4)
    compiled, reference = new_trainer(config), new_trainer(config, reference=True)
    assert reference.kernels.backend == "reference"
    for _ in range(3):
        a, b = compute_set(compiled), compute_set(reference)
        assert a.evidence == b.evidence
        for t in (compiled, reference):
            assert kernels.probe(t.kernels) == t.expected_probe
        train(compiled, 1)
        train(reference, 1)
        assert compiled.state_hash == reference.state_hash
    assert compiled.heldout_loss() == reference.heldout_loss()


def test_resuming_equals_an_unbroken_run(micro):
    train(micro, 3)
    saved = micro.snapshot()
    train(micro, 3)
    resumed = new_trainer(micro.config, reference=True)
    resumed.restore(saved)
    assert resumed.step == resumed.committed_step == 3
    train(resumed, 1)
    again = new_trainer(micro.config, reference=True)
    again.restore(resumed.snapshot())
    train(again, 2)
    assert again.snapshot() == micro.snapshot()


def test_the_seed_and_every_setting_matter(micro):
    train(micro, 2)
    hashes = {micro.state_hash}
    for change in ({"seed": 8}, {"lr": 0.003}, {"weight_decay": 0.2}, {"clip": 0.5}):
        other = new_trainer(micro_config(**change), reference=True)
        train(other, 2)
        hashes.add(other.state_hash)
    assert len(hashes) == 5


# Evidence


def test_evidence_can_be_recomputed_from_what_it_describes(micro):
    result = compute_set(micro)
    inputs, targets = micro.dataset.slot(0, 2, micro.config)
    facts, gradient = micro.compute_slot(0, 2)
    assert facts == result.evidence[2]
    assert facts.slot == 2
    ids = inputs.astype("<i4").tobytes() + targets.astype("<i4").tobytes()
    assert facts.token_hash == hashlib.sha256(ids).digest()
    assert facts.digest == hashlib.sha256(gradient.astype("<i4").tobytes()).digest()
    assert facts.checksum == checksum(gradient)
    assert facts.tokens == inputs.size == micro.config.tokens_per_slot
    assert facts.clamps == 0
    for t, largest in zip(layout_of(micro.config.model).tensors, facts.max_abs, strict=True):
        assert largest == np.abs(gradient[t.start : t.stop].astype(np.int64)).max()
    assert len({e.digest for e in result.evidence}) == micro.config.slots


def test_the_sum_of_checksums_is_the_checksum_of_the_sum(micro):
    result = compute_set(micro)
    total = sum(e.checksum for e in result.evidence) % CHECKSUM_MODULUS
    assert checksum(result.sum) == total
    info = micro.apply(0, result.sum, result.max_abs, total)
    assert info.step == 1


def test_checksum_is_linear_beyond_one_block_and_sees_every_value():
    rng = np.random.default_rng(1)
    a, b = rng.integers(-(2**30), 2**30, (2, 150_000)).astype(np.int32)
    assert (checksum(a) + checksum(b)) % 2**63 == checksum(a + b)
    for i in (0, 65_535, 65_536, 149_999):
        changed = a.copy()
        changed[i] ^= 1
        assert checksum(changed) != checksum(a)
    swapped = a.copy()
    swapped[[1, 70_000]] = a[[70_000, 1]]
    assert checksum(swapped) != checksum(a)


def test_clamped_gradients_are_counted_and_raise_the_grid(micro):
    state = micro._committed
    position = msgspec.structs.replace(
        state.position, exponents=tuple(-60 for _ in state.position.exponents)
    )
    micro._adopt(State(state.config, position, state.weights, state.m, state.v))
    result = compute_set(micro)
    limit = kernels.grid_limit(micro.config.slots)
    assert all(e.clamps > 0 for e in result.evidence)
    assert max(max(e.max_abs) for e in result.evidence) <= limit
    micro.apply(0, result.sum, result.max_abs)
    assert all(e > -60 for e in micro.newest.position.exponents)


def test_the_grid_follows_the_gradients(micro):
    """From the coarse first grid every tensor comes to use more of its bits, and clamps nothing."""

    def bits_used():
        result = compute_set(micro)
        assert not any(e.clamps for e in result.evidence)
        return [largest.bit_length() for largest in result.max_abs]

    top = kernels.grid_limit(micro.config.slots).bit_length()
    first = bits_used()
    train(micro, 6)
    later = bits_used()
    assert np.median(first) < np.median(later)
    assert top - 14 <= min(later) <= max(later) < top


# Adding


def test_adding_refuses_what_is_not_exact(micro):
    top = np.full(3, 2**31 - 1, np.int32)
    one = np.ones(3, np.int32)
    assert micro.add([top, np.zeros(3, np.int32)]).tolist() == top.tolist()
    assert micro.add([one]) is not one
    for parts in ([top, one], [one, np.ones(4, np.int32)], []):
        with pytest.raises(TrainerError):
            micro.add(parts)
    assert top[0] == 2**31 - 1


def test_full_slots_at_the_limit_fit():
    config = micro_config(slots=1024, micro_batch=1)
    t = new_trainer(config, reference=True)
    limit = kernels.grid_limit(1024)
    part = np.full(5, -limit, np.int32)
    assert t.add([part] * 1024).tolist() == [-limit * 1024] * 5


# Computing slots


def test_slots_of_another_step_or_beyond_the_run_are_refused(micro):
    for step, slot in ((1, 0), (0, 4), (0, -1)):
        with pytest.raises(TrainerError, match="asked for"):
            micro.compute_slot(step, slot)


@pytest.mark.parametrize("reference", [False, True])
def test_a_slot_without_a_gradient_is_named(micro, reference):
    poison(micro, "layers.1.gate")
    with pytest.raises(NonFiniteError, match=r"slot 1 of step 0: .*NaN"):
        micro.compute_slot(0, 1, reference=reference)


def test_the_reference_kernels_can_be_asked_for_one_slot():
    t = new_trainer(micro_config())
    facts, gradient = t.compute_slot(0, 1, reference=True)
    live, live_gradient = t.compute_slot(0, 1)
    assert facts == live
    assert np.array_equal(gradient, live_gradient)


@pytest.mark.parametrize("error", [kernels.FloatModeError, kernels.UnsoundError])
def test_untrustworthy_arithmetic_is_this_machines_fault(micro, monkeypatch, error):
    def refuse(*args):
        raise error("subnormals are flushed")

    apply_once(micro)
    for name in ("slot_gradient", "apply_update"):
        monkeypatch.setattr(trainer, name, refuse)
    monkeypatch.setattr(trainer.model, "loss", refuse)
    for call in (
        lambda: micro.compute_slot(1, 0),
        lambda: micro.verify(0),
        micro.heldout_loss,
    ):
        with pytest.raises(ArithmeticUnsoundError, match="flushed"):
            call()


# Apply, verify, commit


def test_a_step_is_pending_until_committed(micro):
    before = micro.state_hash
    snapshot = micro.snapshot()
    result, info = apply_once(micro)
    assert (info.step, micro.step, micro.committed_step) == (1, 1, 0)
    assert info.state_hash == micro.state_hash != before
    assert info.grad_norm > 0
    assert info.lr == micro.config.lr / 2  # first of two warm-up steps
    assert micro.snapshot() == snapshot
    assert micro.committed_hash == before
    ahead = compute_set(micro)  # of step 1, on the pending state
    with pytest.raises(TrainerError, match="pending"):
        micro.apply(1, ahead.sum, ahead.max_abs)
    micro.commit(0)
    assert (micro.step, micro.committed_step) == (1, 1)
    assert micro.state_hash == info.state_hash
    assert compute_set(micro).evidence == ahead.evidence
    del result


def test_rollback_returns_to_the_old_state(micro):
    train(micro, 2)
    before, snapshot = micro.state_hash, micro.snapshot()
    apply_once(micro)
    micro.rollback()
    assert (micro.step, micro.state_hash, micro.snapshot()) == (2, before, snapshot)
    micro.rollback()
    _, first = apply_once(micro)
    micro.rollback()
    _, second = apply_once(micro)
    assert first == second


def test_verify_agrees_with_a_sound_step(micro):
    _, info = apply_once(micro)
    verdict = micro.verify(0)
    assert verdict.sound
    assert verdict.differing == ()
    assert verdict.state_hash == info.state_hash


def test_verify_names_the_tensor_that_went_wrong(micro, monkeypatch):
    kernel_type = type(micro.kernels)
    real = kernel_type.adam
    result = compute_set(micro)

    def wrong(self, *args):
        w, m, v = real(self, *args)
        w[40] = np.nextafter(w[40], np.float32(1))
        return w, m, v

    monkeypatch.setattr(kernel_type, "adam", wrong)
    bad = micro.apply(0, result.sum, result.max_abs).state_hash
    monkeypatch.undo()
    verdict = micro.verify(0)
    assert not verdict.sound
    assert verdict.differing == ("embed",)
    assert verdict.state_hash != bad
    micro.rollback()
    assert micro.apply(0, result.sum, result.max_abs).state_hash == verdict.state_hash


def test_verify_sees_a_committed_state_that_changed_in_memory(micro):
    apply_once(micro)
    micro._committed.weights[0] += np.float32(1)
    verdict = micro.verify(0)
    assert not verdict.sound
    assert verdict.differing == ("committed state",)


def test_verify_sees_a_step_that_should_have_been_refused(micro, monkeypatch):
    real = trainer.apply_update
    apply_once(micro)

    def refuse(ops, *args):
        if ops is micro._reference_kernels():
            raise kernels.NonFiniteInputError("a gradient is NaN or infinite")
        return real(ops, *args)

    monkeypatch.setattr(trainer, "apply_update", refuse)
    verdict = micro.verify(0)
    assert not verdict.sound
    assert verdict.differing == ("non-finite value",)


def test_calls_out_of_order_are_refused(micro):
    result = compute_set(micro)
    largest = result.max_abs
    for call in (
        lambda: micro.commit(0),
        lambda: micro.verify(0),
        lambda: micro.apply(1, result.sum, largest),
        lambda: micro.apply(0, result.sum[:-1], largest),
        lambda: micro.apply(0, result.sum.astype(np.int64), largest),
        lambda: micro.apply(0, result.sum, largest[:-1]),
        lambda: micro.apply(0, result.sum, [-1] * len(largest)),
        lambda: micro.apply(0, result.sum, largest, checksum(result.sum) + 1),
    ):
        with pytest.raises(TrainerError):
            call()
    micro.apply(0, result.sum, largest)
    for call in (lambda: micro.commit(1), lambda: micro.verify(1)):
        with pytest.raises(TrainerError):
            call()


def test_no_step_beyond_the_last():
    t = new_trainer(micro_config(steps=2), reference=True)
    train(t, 2)
    result = compute_set(t)
    with pytest.raises(TrainerError, match="beyond the run's 2 steps"):
        t.apply(2, result.sum, result.max_abs)


def test_a_non_finite_step_leaves_the_state(micro):
    result = compute_set(micro)
    largest = result.max_abs
    before, saved = micro.state_hash, micro._committed.m[3]
    micro._committed.m[3] = np.inf
    with pytest.raises(NonFiniteError, match="first moment"):
        micro.apply(0, result.sum, largest)
    micro._committed.m[3] = saved
    assert (micro.step, micro.state_hash) == (0, before)
    good = micro.apply(0, result.sum, largest).state_hash
    fresh = new_trainer(micro.config, reference=True)
    assert apply_once(fresh)[1].state_hash == good


def test_buffers_are_used_again(micro):
    """Two states' worth of memory however long the run."""
    seen = set()
    for _ in range(6):
        train(micro, 1)
        seen.add(micro._committed.weights.ctypes.data)
    assert len(seen) == 2


# What is refused at the start, and when a state is taken up


def test_runs_that_cannot_be_ours():
    with pytest.raises(DataError):
        new_trainer(micro_config(data="0" * 64))
    for change in ({"gates_digest": "f" * 64}, {"arithmetic_version": 999}):
        with pytest.raises(RunMismatchError, match="arithmetic version"):
            new_trainer(micro_config(**change))
    with pytest.raises(ConfigError):
        new_trainer(msgspec.structs.replace(micro_config(), lr=float("nan")))


def test_states_of_other_runs_and_damaged_ones_are_refused(micro):
    train(micro, 1)
    other = new_trainer(micro_config(seed=8), reference=True)
    before = micro.state_hash
    with pytest.raises(CheckpointError, match="belongs to run"):
        micro.restore(other.snapshot())
    data = bytearray(micro.snapshot())
    data[-1] ^= 1
    with pytest.raises(CheckpointError, match="damaged"):
        micro.restore(bytes(data))
    with pytest.raises(CheckpointError):
        micro.restore(b"")
    state = micro._committed
    weights = state.weights.copy()
    weights[0] = np.nan
    poisoned = codec.encode(State(state.config, state.position, weights, state.m, state.v))
    with pytest.raises(CheckpointError, match="NaN"):
        micro.restore(poisoned)
    assert (micro.step, micro.state_hash) == (1, before)


def test_restoring_drops_a_pending_step(micro):
    saved = micro.snapshot()
    train(micro, 2)
    apply_once(micro)
    micro.restore(saved)
    assert (micro.step, micro.committed_step) == (0, 0)
    assert compute_set(micro).evidence


def test_changed_settings_go_on_from_the_state() -> None:
    """Three ways to one run: changed on the way, from the start, and from a checkpoint."""
    first = micro_config()
    second = first.changed(3, steps=30, lr=first.lr / 2, warmup=None)
    changed = new_trainer(first, reference=True)
    train(changed, 3)
    before = changed.state_hash
    changed.turn(second)
    assert changed.state_hash == before, "what is there stays what it is"
    saved = changed.snapshot()
    train(changed, 3)
    whole = new_trainer(second, reference=True)
    train(whole, 6)
    assert whole.state_hash == changed.state_hash
    resumed = new_trainer(second, reference=True)
    resumed.restore(saved)
    train(resumed, 3)
    assert resumed.state_hash == changed.state_hash
    unchanged = new_trainer(first, reference=True)
    train(unchanged, 6)
    assert unchanged.state_hash != changed.state_hash
    assert not np.array_equal(
        codec.decode(unchanged.snapshot()).weights, codec.decode(changed.snapshot()).weights
    )


def test_changing_while_a_step_waits_for_its_commit() -> None:
    first = micro_config()
    second = first.changed(2, steps=30, lr=first.lr / 2, warmup=None)
    t = new_trainer(first, reference=True)
    train(t, 1)
    whole = compute_set(t)
    t.apply(1, whole.sum, whole.max_abs)
    t.turn(second)
    assert t.verify(1).sound
    t.commit(1)
    train(t, 2)
    expected = new_trainer(second, reference=True)
    train(expected, 4)
    assert t.state_hash == expected.state_hash


def test_a_change_of_the_past_is_refused_and_restarting_follows_it() -> None:
    first = micro_config()
    second = first.changed(2, steps=30, lr=first.lr / 2, warmup=None)
    t = new_trainer(first, reference=True)
    train(t, 2)
    early = codec.decode(t.snapshot())
    train(t, 1)
    late = codec.decode(t.snapshot())
    with pytest.raises(RunMismatchError):
        t.turn(second)
    with pytest.raises(RunMismatchError):
        t.restart(second, late)
    assert t.step == 3
    t.restart(second, early)
    train(t, 1)
    again = new_trainer(second, reference=True)
    train(again, 3)
    assert t.state_hash == again.state_hash
    t.restart(second, None)
    assert t.step == 0
