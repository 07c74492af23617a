"""Spot checks of attention: sound heads pass, what is wrong in one that is looked at is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernels
from kernels import jit, reference
from kernels.reference import attention
from kernels.spot import SpotChecks
from kernels.spot_attention import chosen_head, chosen_keys

from .helpers import normal

Form = Callable[..., Any]
BATCH, SEQ, HEADS, DIM = 2, 70, 3, 10


def watched(forms: dict[str, Form], **changes: Form) -> kernels.Kernels:
    return kernels.Kernels("numba", {**forms, **changes}, lambda: False, spots=SpotChecks(1))


def both(ops: kernels.Kernels, seed: int = 1, shape: Any = (BATCH, SEQ, HEADS, DIM)) -> None:
    batch, seq, heads, dim = shape
    q, k, v, do = (normal(seed + i, batch * seq, heads * dim) for i in range(4))
    _, saved = ops.attention(q, k, v, batch, heads)
    ops.attention_backward(do, saved)


@pytest.mark.parametrize("forms", [jit.FORMS, reference.FORMS], ids=["compiled", "reference"])
def test_sound_attention_passes(forms: dict[str, Form]) -> None:
    """Ragged tiles, more than one strip, the smallest shapes; rows of zeros and of subnormals."""
    ops = watched(forms)
    for seed, shape in enumerate([(1, 1, 1, 2), (2, 5, 3, 4), (1, 64, 1, 8), (3, 131, 2, 34)]):
        for turn in range(3):
            both(ops, 10 * seed + turn, shape)
    q, k, v, do = (normal(i, BATCH * SEQ, HEADS * DIM) for i in range(4))
    q[::7], k[::5], v[3], do[::3] = 0, 1e-39, 0, 1e-39
    for _ in range(4):
        _, saved = ops.attention(q, k, v, BATCH, HEADS)
        ops.attention_backward(do, saved)
    assert ops.counts["spot_cells"] > 0


def test_a_whole_head_is_compared() -> None:
    ops = watched(reference.FORMS)
    q = normal(1, BATCH * SEQ, HEADS * DIM)
    _, saved = ops.attention(q, q, q, BATCH, HEADS)
    forward = SEQ * (3 * (DIM + 1) + 2 + DIM)
    assert ops.counts["spot_cells"] == forward
    ops.attention_backward(q, saved)
    keys = chosen_keys(2, SEQ).size
    assert ops.counts["spot_cells"] == forward + SEQ * DIM + 2 * keys * DIM


def heads_of(name: str) -> tuple[int, int, int]:
    """Turn, sequence and head of the first look at the operation in `both`."""
    turn = 1 if name == "attention" else 2
    return turn, *chosen_head(turn, BATCH, HEADS)


def spoiled(name: str, part: Callable[[Any], np.ndarray], *place: Any) -> Form:
    """The compiled form with the last bit of numbers of one head wrong."""
    _, b, h = heads_of(name)

    def form(*args: Any) -> Any:
        result = jit.FORMS[name](*args)
        numbers = part(result).view(np.int32)
        if numbers.ndim == 2:
            numbers = numbers.reshape(BATCH, SEQ, HEADS, DIM).transpose(0, 2, 1, 3)
        numbers[(b, h, *place)] ^= 1
        return result

    return form


FORWARD: dict[str, Callable[[Any], np.ndarray]] = {
    "the mix of values": lambda result: result[0],
    "the largest score": lambda result: result[1].peak,
    "the inverse sum": lambda result: result[1].inverse_sum,
}


@pytest.mark.parametrize("what", FORWARD)
@pytest.mark.parametrize("position", [0, 37, SEQ - 1])
def test_one_wrong_number_of_the_head_is_named(what: str, position: int) -> None:
    _, b, h = heads_of("attention")
    place = (position, DIM - 1) if what == "the mix of values" else (position,)
    ops = watched(jit.FORMS, attention=spoiled("attention", FORWARD[what], *place))
    where = f"sequence {b}, head {h}, {what} at position {position}"
    with pytest.raises(kernels.UnsoundError, match=f"in attention, {where}.* is .* and must be"):
        both(ops)


@pytest.mark.parametrize(("output", "name"), list(enumerate(["queries", "keys", "values"])))
@pytest.mark.parametrize("position", [0, 33, SEQ - 1])
def test_one_wrong_gradient_is_named(output: int, name: str, position: int) -> None:
    turn, b, h = heads_of("attention_backward")
    if name != "queries" and position == 33:
        position = int(chosen_keys(turn, SEQ)[3])
    bad = spoiled("attention_backward", lambda result: result[output], position, 4)
    where = f"sequence {b}, head {h}, the gradient of the {name} at position {position}, channel 4"
    with pytest.raises(kernels.UnsoundError, match=f"in attention_backward, {where} is"):
        both(watched(jit.FORMS, attention_backward=bad))


@pytest.mark.parametrize("operand", ["q8", "k8", "v8"])
@pytest.mark.parametrize("what", ["int8", "scale"])
def test_operands_kept_for_the_backward_form_are_compared(operand: str, what: str) -> None:
    """The backward form computes with them: what it gives would agree with itself."""

    def form(*args: Any) -> Any:
        o, saved = jit.FORMS["attention"](*args)
        kept = getattr(saved, operand)
        if what == "int8":
            kept = dataclasses.replace(kept, q=kept.q ^ np.int8(1))
        else:
            kept = dataclasses.replace(kept, scale=kept.scale * np.float32(2))
        return o, dataclasses.replace(saved, **{operand: kept})

    with pytest.raises(kernels.UnsoundError, match=what):
        both(watched(jit.FORMS, attention=form))


def _tile(x: np.ndarray, rows: int, cols: int, by: float) -> np.ndarray:
    """A tile of 6 x 16 in the middle of each matrix (..., T, T) is off."""
    wrong = x.copy()
    wrong[..., rows : rows + 6, cols : cols + 16] *= np.float32(by)
    return wrong


@pytest.mark.parametrize("stage", ["scores", "softmax", "mix"])
def test_a_wrong_tile_inside_the_fused_forward_is_found(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, probabilities, and probabilities x values: none of them is a result of its own."""
    right = getattr(attention, stage)

    def wrong(*args: Any) -> Any:
        if stage == "mix":
            return right(_tile(args[0], 36, 16, 1.05), *args[1:])
        result = right(*args)
        if stage == "softmax":
            return (_tile(result[0], 36, 16, 1.05), *result[1:])
        return _tile(result, 36, 16, 1.05)

    def form(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(attention, stage, wrong)
            return reference.FORMS["attention"](*args)

    ops = watched(reference.FORMS, attention=form)
    with pytest.raises(kernels.UnsoundError, match=r"in attention, .* at position (3[6-9]|4[01])"):
        both(ops)


@pytest.mark.parametrize("product", range(4), ids=["do x v", "ds x k", "ds x q", "a x do"])
def test_a_wrong_tile_of_a_product_inside_the_backward_form_is_found(
    product: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last tile of the left operand: of the last keys where its rows are keys."""
    right, calls = attention._product12, []

    def wrong(left: np.ndarray, other: np.ndarray) -> np.ndarray:
        calls.append(1)
        if len(calls) - 1 == product:
            left = _tile(left, SEQ - 6, max(0, left.shape[-1] - 16), 1.05)
        return right(left, other)

    def form(*args: Any) -> Any:
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(attention, "_product12", wrong)
            return reference.FORMS["attention_backward"](*args)

    ops = watched(reference.FORMS, attention_backward=form)
    with pytest.raises(kernels.UnsoundError, match=r"in attention_backward, .* gradient of the"):
        both(ops)
    assert len(calls) == 4


def test_heads_and_keys_are_chosen_in_strata() -> None:
    drawn = [chosen_head(turn, 4, 5) for turn in range(400)]
    assert 0.4 < drawn.count((3, 4)) / 400 < 0.7
    assert len(set(drawn)) == 20
    seen: set[int] = set()
    for turn in range(100):
        keys = chosen_keys(turn, 45)
        assert {0, 43, 44} <= set(keys.tolist())
        assert keys.size <= 8
        seen |= set(keys.tolist())
    assert seen == set(range(45))
    for length in (1, 2, 6):
        assert (chosen_keys(3, length) < length).all()
        assert (chosen_keys(3, length) >= 0).all()


def test_a_long_sequence_is_compared_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No array of T x T: the largest that the definition is asked for has the rows of a strip."""
    shapes: list[tuple[int, ...]] = []
    right = attention.scores

    def seen(*args: Any) -> Any:
        result = right(*args)
        shapes.append(result.shape)
        return result

    monkeypatch.setattr("kernels.spot_attention.scores", seen)
    both(watched(jit.FORMS), shape=(1, 300, 1, 4))
    assert len(shapes) == 2 * 5
    assert max(shape[0] for shape in shapes) == 64
