"""What a node can do wrongly with right operations: in its share of a step, or in applying it.

May import: p2pnode.train.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from p2pnode.train.arithmetic import kernels
from p2pnode.train.data import Dataset
from p2pnode.train.evidence import GradientSum, SlotEvidence
from p2pnode.train.gradient import exact_sum, slot_gradient
from p2pnode.train.state import State
from p2pnode.train.update import apply_update
from p2pnode.train.weights import Weights

Work = tuple[list[SlotEvidence], GradientSum]


class Node:
    """A sound node; the faults below override what they spoil."""

    name = "sound"

    def __init__(self, ops: kernels.Kernels, data: Dataset) -> None:
        self.ops = ops
        self.data = data

    def slot(self, state: State, slot: int) -> tuple[SlotEvidence, GradientSum]:
        inputs, targets = self.data.slot(state.step, slot, state.config)
        weights = Weights(self.ops, state.config.model, state.weights)
        return slot_gradient(weights, state, slot, inputs, targets)

    def contribute(self, before: State, state: State, slots: Sequence[int]) -> Work:
        """Evidence and sum of some slots of the step that goes on from `state`."""
        parts = [self.slot(state, slot) for slot in slots]
        return [evidence for evidence, _ in parts], exact_sum(self.ops, [q for _, q in parts])

    def apply(self, state: State, total: GradientSum, evidence: Sequence[SlotEvidence]) -> State:
        largest = [max(of) for of in zip(*(e.max_abs for e in evidence), strict=True)]
        return apply_update(self.ops, state, total, largest).state


def with_position(state: State, **changes: object) -> State:
    return dataclasses.replace(state, position=msgspec.structs.replace(state.position, **changes))


class StaleGrid(Node):
    name = "the grid does not move"

    def apply(self, state: State, total: GradientSum, evidence: Sequence[SlotEvidence]) -> State:
        new = super().apply(state, total, evidence)
        return with_position(new, exponents=state.position.exponents)


class GridOfItsOwnSlots(Node):
    name = "the grid follows its own slots only"

    def apply(self, state: State, total: GradientSum, evidence: Sequence[SlotEvidence]) -> State:
        quiet = [0] * len(evidence[0].max_abs)
        own = [msgspec.structs.replace(e, max_abs=tuple(quiet)) for e in evidence[1:]]
        return super().apply(state, total, [evidence[0], *own])


class StepCounterOff(Node):
    name = "Adam's step counter is off by one"

    def apply(self, state: State, total: GradientSum, evidence: Sequence[SlotEvidence]) -> State:
        config = state.config
        ahead = with_position(
            state,
            beta1_power=state.position.beta1_power * config.beta1,
            beta2_power=state.position.beta2_power * config.beta2,
        )
        new = super().apply(ahead, total, evidence)
        return with_position(
            new,
            beta1_power=state.position.beta1_power * config.beta1,
            beta2_power=state.position.beta2_power * config.beta2,
        )


class RateOfTheNextStep(Node):
    name = "learning rate of the next step"

    def apply(self, state: State, total: GradientSum, evidence: Sequence[SlotEvidence]) -> State:
        ahead = with_position(state, step=state.step + 1)
        return with_position(super().apply(ahead, total, evidence), step=state.step + 1)


class SlotTwice(Node):
    name = "a slot added twice"

    def contribute(self, before: State, state: State, slots: Sequence[int]) -> Work:
        evidence, total = super().contribute(before, state, slots)
        return evidence, exact_sum(self.ops, [total, self.slot(state, slots[0])[1]])


class SlotMissing(Node):
    name = "a slot left out of the sum"

    def contribute(self, before: State, state: State, slots: Sequence[int]) -> Work:
        evidence, _ = super().contribute(before, state, slots)
        return evidence, self.slot(state, slots[0])[1]


class ElementFlipped(Node):
    name = "one bit of the sum flipped"

    def contribute(self, before: State, state: State, slots: Sequence[int]) -> Work:
        evidence, total = super().contribute(before, state, slots)
        total[total.size // 2] ^= 1
        return evidence, total


class OldWeights(Node):
    name = "weights of the step before"

    def contribute(self, before: State, state: State, slots: Sequence[int]) -> Work:
        stale = dataclasses.replace(state, weights=before.weights)
        return super().contribute(before, stale, slots)


class OldGrid(Node):
    name = "gradients on the grid of the step before"

    def contribute(self, before: State, state: State, slots: Sequence[int]) -> Work:
        stale = with_position(state, exponents=before.position.exponents)
        return super().contribute(before, stale, slots)


class OtherData(Node):
    name = "text of another slot"

    def contribute(self, before: State, state: State, slots: Sequence[int]) -> Work:
        evidence, total = super().contribute(before, state, [slot + 1 for slot in slots])
        named = [msgspec.structs.replace(e, slot=s) for e, s in zip(evidence, slots, strict=True)]
        return named, total


class LossInvented(Node):
    name = "another loss than the slot has"

    def contribute(self, before: State, state: State, slots: Sequence[int]) -> Work:
        evidence, total = super().contribute(before, state, slots)
        return [msgspec.structs.replace(e, loss=e.loss + 1) for e in evidence], total


FAULTS: list[type[Node]] = [
    StaleGrid, GridOfItsOwnSlots, StepCounterOff, RateOfTheNextStep, SlotTwice, SlotMissing,
    ElementFlipped, OldWeights, OldGrid, OtherData, LossInvented,
]  # fmt: skip

NodeMaker = Callable[[kernels.Kernels, Dataset], Node]


def same_work(a: Work, b: Work) -> bool:
    return a[0] == b[0] and np.array_equal(a[1], b[1])
