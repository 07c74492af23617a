"""The facade the compute thread calls: slots in, integer gradients, states and hashes out.

Steps are numbered from 0: step t takes the state with t applied steps to t + 1. A step is applied
to a copy; the old state is kept until `commit`, so that the step can be verified or taken back.
Not thread-safe: one thread at a time.

May import: the rest of `train`, config, errors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2pnode.config import RunConfig
from p2pnode.errors import (
    CheckpointError,
    NonFiniteError,
    P2PNodeError,
    RunMismatchError,
)
from p2pnode.train import codec, model
from p2pnode.train.arithmetic import kernels, refusals
from p2pnode.train.data import Dataset
from p2pnode.train.evidence import (
    AppliedInfo,
    GradientSum,
    HeldOut,
    SlotEvidence,
    VerifyResult,
)
from p2pnode.train.finder import Difference, difference_in_apply, difference_in_slot
from p2pnode.train.gradient import checksum, exact_sum, slot_gradient
from p2pnode.train.layout import F32, layout_of
from p2pnode.train.state import State
from p2pnode.train.update import apply_update, initial_state
from p2pnode.train.weights import Weights


class TrainerError(P2PNodeError):
    """A call does not fit the trainer's position (a programming error, or a plan from elsewhere)
    or its data (a sum of the wrong length, or that contradicts its checksum)."""


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A step that was applied but not committed, with all that verifying it needs."""

    state: State
    hash: bytes
    total: GradientSum
    max_abs: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Lent:
    """A state that is kept beyond its commit, to be computed on later."""

    state: State
    weights: Weights


class Trainer:
    """One node's training state and the operations on it."""

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        *,
        reference: bool = False,
        first: F32 | None = None,
    ) -> None:
        """Start from the run's initial state. `reference` computes without compiled kernels.
        first: the weights that `config.init` names, float32 [P].

        Raises ConfigError, DataError, or RunMismatchError if the run asks for other arithmetic.
        """
        config.check()
        dataset.check(config)
        if (config.arithmetic_version, config.gates_digest) != (
            kernels.ARITHMETIC_VERSION,
            kernels.gates_digest(),
        ):
            raise RunMismatchError(
                f"The run uses arithmetic version {config.arithmetic_version} "
                f"({config.gates_digest[:12]}), this node has {kernels.ARITHMETIC_VERSION} "
                f"({kernels.gates_digest()[:12]}). Use the same version of p2pnode everywhere."
            )
        self.config = config
        self.dataset = dataset
        self.kernels = kernels.load(reference=reference)
        self._reference = self.kernels if reference else None
        self._pending: _Pending | None = None
        self._spare: tuple[F32, F32, F32] | None = None
        self._weights: Weights | None = None
        self._lent: dict[int, Lent] = {}
        self._first = first
        self._adopt(initial_state(config.at(0), first))

    def _adopt(self, state: State) -> None:
        self._committed = state
        self._committed_hash = state.hash()
        self._pending = None
        self._weights = None

    @property
    def parameters(self) -> int:
        """Length of the flat parameter and gradient vectors."""
        return layout_of(self.config.model).size

    @property
    def tensors(self) -> tuple[str, ...]:
        """Tensor names in layout order, which is the order of `SlotEvidence.max_abs`."""
        return layout_of(self.config.model).names

    @property
    def step(self) -> int:
        """Applied steps, a pending one included."""
        return self.newest.step

    @property
    def committed_step(self) -> int:
        return self._committed.step

    @property
    def state_hash(self) -> bytes:
        """Hash (32 bytes) of the newest state, a pending one included."""
        return self._committed_hash if self._pending is None else self._pending.hash

    @property
    def committed(self) -> State:
        """The committed state. Its arrays are used again after the next commit, unless lent."""
        return self._committed

    @property
    def committed_hash(self) -> bytes:
        """Hash (32 bytes) of the committed state, which `snapshot` holds."""
        return self._committed_hash

    @property
    def expected_probe(self) -> bytes:
        """What `kernels.probe` (32 bytes) gives on every sound machine."""
        return kernels.probe_expected()

    @property
    def newest(self) -> State:
        """The newest state, a pending one included."""
        return self._committed if self._pending is None else self._pending.state

    # Contributing

    def compute_slot(
        self, step: int, slot: int, *, reference: bool = False
    ) -> tuple[SlotEvidence, GradientSum]:
        """The gradient of one slot of the current step, or of the one that is pending: evidence and
        int32 [parameters].

        Raises NonFiniteError if the slot has none, ArithmeticUnsoundError if the machine's
        floating-point mode cannot be trusted.
        """
        state = self.newest
        if step == self._committed.step:
            state = self._committed
        if step != state.step or not 0 <= slot < self.config.slots:
            raise TrainerError(
                f"slot {slot} of step {step} was asked for at step {state.step} of a run with "
                f"{self.config.slots} slots"
            )
        return self._slot(Lent(state, self._weights_of(state)), slot, reference)

    def _slot(self, at: Lent, slot: int, reference: bool) -> tuple[SlotEvidence, GradientSum]:
        step, w = at.state.step, at.weights
        if reference:
            w = Weights(self._reference_kernels(), self.config.model, at.state.weights)
        inputs, targets = self.dataset.slot(step, slot, self.config)
        with refusals(f"slot {slot} of step {step}"):
            return slot_gradient(w, at.state, slot, inputs, targets)

    def _weights_of(self, state: State) -> Weights:
        if state is not self.newest:
            return Weights(self.kernels, self.config.model, state.weights)
        if self._weights is None:
            self._weights = Weights(self.kernels, self.config.model, self.newest.weights)
        return self._weights

    def _reference_kernels(self) -> kernels.Kernels:
        if self._reference is None:
            self._reference = kernels.load(reference=True)
        return self._reference

    # States of earlier steps

    def lend(self, step: int) -> Lent | None:
        """Keep the state with `step` applied steps until `let_go`; None if it is not here any
        more. Takes memory (12 bytes for each parameter) once the run has gone on."""
        if step not in self._lent:
            state = self.newest if self.newest.step == step else self._committed
            if state.step != step:
                return None
            self._lent[step] = Lent(state, self._weights_of(state))
        return self._lent[step]

    def let_go(self, step: int) -> None:
        """Nobody computes on the lent state any more."""
        self._lent.pop(step, None)

    def newest_lent(self, limit: int) -> State | None:
        """Of the lent states the one with the most steps, at most `limit`."""
        steps = [step for step in self._lent if step <= limit]
        return self._lent[max(steps)].state if steps else None

    def compute_lent(
        self, step: int, slot: int, *, reference: bool = False
    ) -> tuple[SlotEvidence, GradientSum]:
        """As `compute_slot`, on a lent state. Raises TrainerError if it is not lent."""
        if step not in self._lent or not 0 <= slot < self.config.slots:
            raise TrainerError(f"slot {slot} of step {step} cannot be computed: it is not lent")
        return self._slot(self._lent[step], slot, reference)

    def examine_slot(self, lent: Lent, slot: int) -> tuple[SlotEvidence | None, Difference | None]:
        """What the reference kernels give for a slot of a state that was lent (None: it is not
        finite), and the first operation in which the kernels in use differ from them (None: in
        none, now). Takes many times as long as the slot."""
        state = lent.state
        inputs, targets = self.dataset.slot(state.step, slot, self.config)
        try:
            truth = self._slot(lent, slot, reference=True)[0]
        except NonFiniteError:
            truth = None
        reference = self._reference_kernels()
        found = difference_in_slot(self.kernels, reference, state, slot, inputs, targets)
        return truth, found

    def pending_sums(self, step: int) -> tuple[GradientSum, tuple[int, ...]]:
        """What the pending step was applied from: int32 [parameters], and the largest |q|."""
        pending = self._pending_step(step)
        return pending.total, pending.max_abs

    def examine_pending(self, step: int) -> Difference | None:
        """The same for the apply of the pending step."""
        pending = self._pending_step(step)
        base = dataclasses.replace(self._committed, config=pending.state.config)
        return difference_in_apply(
            self.kernels, self._reference_kernels(), base, pending.total, pending.max_abs
        )

    # Reducing

    def add(self, parts: Sequence[NDArray[np.int32]]) -> GradientSum:
        """Exact sum of int32 vectors of one length (whole gradients or one shard of several sets).

        Raises TrainerError if a sum would leave int32 or the lengths differ.
        """
        if not parts:
            raise TrainerError("a sum of no parts was asked for")
        try:
            return exact_sum(self.kernels, parts)
        except kernels.KernelError as error:
            raise TrainerError(f"gradients cannot be added: {error}") from None

    # Applying

    def apply(
        self,
        step: int,
        total: NDArray[np.int32],
        max_abs: Sequence[int],
        expected_checksum: int | None = None,
    ) -> AppliedInfo:
        """Apply step `step` from the sum of all its slots' gradients, int32 [parameters].

        total: kept, not copied; do not change it until `commit`. max_abs: the largest |q| of any
        slot, per tensor. expected_checksum: the sum of all slots' checksums; a sum that does not
        have it (mod 2**63) is refused. The step stays pending until `commit`. Raises TrainerError,
        NonFiniteError or ArithmeticUnsoundError; each leaves the state as it was.
        """
        if self._pending is not None or step != self._committed.step:
            raise TrainerError(
                f"step {step} cannot be applied at step {self.step}: {self._where()}"
            )
        base = self._base()
        if step >= self.config.steps:
            raise TrainerError(f"step {step} is beyond the run's {self.config.steps} steps")
        if total.dtype != np.int32 or total.shape != (self.parameters,):
            raise TrainerError(f"a sum has {total.size} values, the model {self.parameters}")
        if len(max_abs) != len(self.tensors) or not all(0 <= n < 2**31 for n in max_abs):
            raise TrainerError("the largest gradients are not one 31-bit integer per tensor")
        if expected_checksum is not None and (checksum(total) - expected_checksum) % 2**63:
            raise TrainerError(f"the sum of step {step} does not have its slots' checksum")
        with refusals(f"step {step} was not applied"):
            update = apply_update(self.kernels, base, total, max_abs, self._spare)
        self._spare = None
        state_hash = update.state.hash()
        self._pending = _Pending(update.state, state_hash, total, tuple(max_abs))
        self._weights = None
        return AppliedInfo(step + 1, state_hash, update.grad_norm, update.lr)

    def _base(self) -> State:
        """The committed state under the settings that make the next one."""
        config = self.config.at(self._committed.step + 1)
        return dataclasses.replace(self._committed, config=config)

    def verify(self, step: int) -> VerifyResult:
        """Apply the pending step again from the old state with the reference kernels."""
        pending = self._pending_step(step)
        if self._committed.hash() != self._committed_hash:
            return VerifyResult(step + 1, b"", False, ("committed state",))
        try:
            with refusals(f"step {step} applied again"):
                base = dataclasses.replace(self._committed, config=pending.state.config)
                again = apply_update(
                    self._reference_kernels(), base, pending.total, pending.max_abs
                ).state
        except NonFiniteError:  # the compiled kernels accepted what must be refused
            return VerifyResult(step + 1, b"", False, ("non-finite value",))
        differing = again.differing(pending.state)
        state_hash = again.hash()
        return VerifyResult(step + 1, state_hash, state_hash == pending.hash, differing)

    def commit(self, step: int) -> None:
        """Make the pending step `step` the committed state; the old one is gone."""
        pending = self._pending_step(step)
        old = self._committed
        self._recycle(old)
        self._committed, self._committed_hash = pending.state, pending.hash
        self._pending = None

    def rollback(self) -> None:
        """Forget a pending step; the committed state is the newest again."""
        if self._pending is not None:
            self._recycle(self._pending.state)
            self._pending = None
            self._weights = None

    def _recycle(self, state: State) -> None:
        """Write the next state over this one, unless somebody still computes on it."""
        free = state.step not in self._lent
        self._spare = (state.weights, state.m, state.v) if free else None

    def _pending_step(self, step: int) -> _Pending:
        if self._pending is None or step != self._committed.step:
            raise TrainerError(f"step {step} is not pending: {self._where()}")
        return self._pending

    def _where(self) -> str:
        pending = "none" if self._pending is None else str(self._committed.step)
        return f"{self._committed.step} steps are committed, the pending step is {pending}"

    def turn(self, config: RunConfig) -> None:
        """Go on with the settings of `config`, which has the states that are here in its past.
        Raises RunMismatchError if it has not."""
        if config.at(self.newest.step) != self.newest.config:
            raise RunMismatchError(
                f"The state of step {self.newest.step} is not one of run "
                f"{config.run_id().hex()[:8]}."
            )
        self.config = config

    def restart(self, config: RunConfig, state: State | None) -> None:
        """Drop everything and go on from `state`, or else from the first one, as a part of run
        `config` of the same model and data. Raises RunMismatchError."""
        if state is None:
            state = initial_state(config.at(0), self._first)
        elif config.at(state.step) != state.config:
            raise RunMismatchError(
                f"The state of step {state.step} is not one of run {config.run_id().hex()[:8]}."
            )
        self.config = config
        self._spare = None
        self._lent.clear()
        self._adopt(state)

    # Measuring, saving

    def heldout_loss(self) -> HeldOut:
        """Loss of the committed state on the run's fixed held-out slots; exact."""
        w = Weights(self.kernels, self.config.model, self._committed.weights)
        loss = tokens = 0
        for index in range(self.config.eval_slots):
            inputs, targets = self.dataset.heldout_slot(index, self.config)
            with refusals(f"the held-out loss after {self._committed.step} steps"):
                loss += model.loss(w, inputs, targets)
            tokens += inputs.size
        return HeldOut(self._committed.step, loss, tokens)

    def snapshot(self) -> memoryview:
        """The committed state as canonical bytes: a checkpoint's content, and what joiners get."""
        return codec.encode(self._committed)

    def restore(self, data: bytes | memoryview) -> None:
        """Take up the state in `data`; a pending step is dropped. Raises CheckpointError if it is
        damaged or of another run, and keeps the present state."""
        state = codec.decode(data)
        if state.config != self.config.at(state.step):
            raise CheckpointError(
                f"The checkpoint belongs to run {state.config.run_id().hex()[:8]}, "
                f"this is run {self.config.run_id().hex()[:8]}."
            )
        self._spare = None
        self._adopt(state)
