"""The finder names the operation that was made wrong, whichever it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from p2pnode.train.arithmetic import kernels
from p2pnode.train.finder import Difference, difference_in_apply, difference_in_slot
from p2pnode.train.trainer import Trainer
from tests.train.helpers import compute_set, micro_config, new_trainer

REFERENCE = kernels.load(reference=True)


class Faulty:
    """Reference kernels of which one call gives another bit; `call` counts from 0."""

    def __init__(self, operation: str, call: int = 0, array: int = 0) -> None:
        self.target = (operation, call)
        self.array = array
        self.calls: dict[str, int] = {}
        self.ops = REFERENCE.observed(self._spoil)

    def _spoil(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        number = self.calls[name] = self.calls.get(name, -1) + 1
        if (name, number) == self.target:
            arrays = list(flat_arrays(args[-1] if result is None else result))
            first = arrays[self.array].reshape(-1).view(np.uint8)
            first[0] ^= 1


def flat_arrays(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        yield result
    elif isinstance(result, kernels.Quantised):
        yield from (result.q, result.scale)
    elif isinstance(result, kernels.AttentionSaved):
        for part in (result.q8, result.k8, result.v8, result.peak, result.inverse_sum):
            yield from flat_arrays(part)
    elif isinstance(result, tuple):
        for part in result:
            yield from flat_arrays(part)


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return new_trainer(micro_config(), reference=True)


def in_slot(trainer: Trainer, live: kernels.Kernels) -> Difference | None:
    inputs, targets = trainer.dataset.slot(0, 1, trainer.config)
    return difference_in_slot(live, REFERENCE, trainer.committed, 1, inputs, targets)


def in_apply(trainer: Trainer, live: kernels.Kernels) -> Difference | None:
    work = compute_set(trainer)
    return difference_in_apply(live, REFERENCE, trainer.committed, work.sum, work.max_abs)


SLOT_FAULTS = [
    (("embed",), "embed, lookup"),
    (("rmsnorm", 0), "layers.0.attn_norm, norm, output"),
    (("linear", 0), "layers.0.q, product (int8)"),
    (("linear", 2), "layers.0.v, product (int8)"),
    (("linear", 7), "layers.1.q, product (int8)"),
    (("linear", 14), "embed, product (int8)"),
    (("rope", 3), "layers.1, rotary embedding"),
    (("attention", 1, 7), "layers.1, attention scores (int8 product)"),
    (("attention", 1, 8), "layers.1, attention softmax"),
    (("attention", 1, 0), "layers.1, attention mix of values (int8 product)"),
    (("attention", 0, 5), "layers.0, attention values in int8"),
    (("swiglu", 0), "layers.0, gated activation"),
    (("cross_entropy", 0), "embed, gradient of the loss"),
    (("linear_dw", 0), "embed, gradient of the matrix (12-bit product)"),
    (("linear_dw", 1), "layers.1.down, gradient of the matrix (12-bit product)"),
    (("linear_dx", 4), "layers.1.o, gradient of the input (12-bit product)"),
    (("attention_backward", 1, 2), "layers.0, gradient of attention values (12-bit products)"),
    (("rmsnorm_backward", 0), "norm, norm, gradient of the input"),
    (("quantise_rows", 1), "layers.0.q, quantisation by rows, integers"),
    (("quantise_rows", 0), "layers.0, quantisation by rows, integers"),
    (("embed_backward",), "embed, gradient of the lookup"),
    (("grid", 3), "layers.0.k, gradient on the integer grid"),
]


@pytest.mark.parametrize(("fault", "name"), SLOT_FAULTS, ids=[name for _, name in SLOT_FAULTS])
def test_first_wrong_operation_of_a_slot_is_named(
    trainer: Trainer, fault: tuple[Any, ...], name: str
) -> None:
    assert str(in_slot(trainer, Faulty(*fault).ops)) == name


APPLY_FAULTS = [
    (("dequantise", 2), "layers.0.q, average of the gradient"),
    (("adam", 0), "embed, Adam, weights"),
    (("adam", 5, 2), "layers.0.o, Adam, second moment"),
]


@pytest.mark.parametrize(("fault", "name"), APPLY_FAULTS, ids=[name for _, name in APPLY_FAULTS])
def test_first_wrong_operation_of_an_apply_is_named(
    trainer: Trainer, fault: tuple[Any, ...], name: str
) -> None:
    assert str(in_apply(trainer, Faulty(*fault).ops)) == name


def test_sound_kernels_show_no_difference(trainer: Trainer) -> None:
    live = kernels.load()
    assert in_slot(trainer, live) is None
    assert in_apply(trainer, live) is None


def test_a_refusal_on_one_side_is_a_difference(trainer: Trainer) -> None:
    def refuse(name: str, args: tuple[Any, ...], result: Any) -> None:
        if name == "rope":
            raise kernels.NonFiniteInputError("not finite")

    live = REFERENCE.observed(refuse)
    assert str(in_slot(trainer, live)) == "layers.0, rotary embedding"
    inputs, targets = trainer.dataset.slot(0, 1, trainer.config)
    found = difference_in_slot(REFERENCE, live, trainer.committed, 1, inputs, targets)
    assert str(found) == "layers.0, rotary embedding"


def test_every_operation_that_is_watched_has_a_name(trainer: Trainer) -> None:
    """A new operation in the model must be named too: the finder would raise KeyError."""
    seen: set[str] = set()
    live = REFERENCE.observed(lambda name, args, result: seen.add(name))
    in_slot(trainer, live)
    in_apply(trainer, live)
    assert {"attention", "linear_dw", "adam", "norm", "cross_entropy"} <= seen
