"""The divergence finder: computes a slot or an optimizer step twice, with the kernels in use and
with the reference kernels, and names the first tensor and operation whose bits differ.

Both run the code of `gradient` and `update`; only the operations are watched. So the list of what
happened cannot get out of step with what is computed.

May import: arithmetic, data, gradient, layout, state, update, weights, windows, config.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pnode.config import ModelConfig
from p2pnode.train.arithmetic import kernels
from p2pnode.train.gradient import slot_gradient
from p2pnode.train.layout import F32
from p2pnode.train.state import State
from p2pnode.train.update import apply_update
from p2pnode.train.weights import Weights
from p2pnode.train.windows import Tokens


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that came out differently. `tensor`: a parameter's name, or `layers.N` for
    what flows between parameters."""

    tensor: str
    operation: str

    def __str__(self) -> str:
        return f"{self.tensor}, {self.operation}"


_PARAMETER: dict[str, tuple[str, ...]] = {
    "embed": ("lookup",),
    "embed_backward": ("gradient of the lookup",),
    "linear": ("product (int8)",),
    "linear_dx": ("gradient of the input (12-bit product)",),
    "linear_dw": ("gradient of the matrix (12-bit product)",),
    "rmsnorm": ("norm, output", "norm, inverse root"),
    "rmsnorm_backward": ("norm, gradient of the input", "norm, gradient of the gain"),
    "grid": ("gradient on the integer grid", "clamped values", "largest gradient"),
    "dequantise": ("average of the gradient",),
    "adam": ("Adam, weights", "Adam, first moment", "Adam, second moment"),
}
"""Operations on one parameter, with a phrase for each array that they give."""

_BETWEEN: dict[str, tuple[str, ...]] = {
    "add": ("residual sum",),
    "attention": (
        "attention mix of values (int8 product)",
        "attention queries in int8",
        "attention queries, scales",
        "attention keys in int8",
        "attention keys, scales",
        "attention values in int8",
        "attention values, scales",
        "attention scores (int8 product)",
        "attention softmax",
    ),
    "attention_backward": (
        "gradient of attention queries (12-bit products)",
        "gradient of attention keys (12-bit products)",
        "gradient of attention values (12-bit products)",
    ),
    "cross_entropy": ("loss", "gradient of the loss"),
    "norm": ("norm of the whole gradient, for clipping",),
    "rope": ("rotary embedding",),
    "rope_backward": ("gradient of the rotary embedding",),
    "swiglu": ("gated activation",),
    "swiglu_backward": ("gradient of the gate", "gradient of the gated input"),
    "quantise_rows": ("quantisation by rows, integers", "quantisation by rows, scales"),
    "quantise_cols": ("quantisation by columns, integers", "quantisation by columns, scales"),
}
"""Operations on what flows between parameters."""

_CAUSE_FIRST = {"attention": (1, 2, 3, 4, 5, 6, 7, 8, 0)}
"""In which order an operation makes what it gives, where that is not the order it gives it in."""

WHOLE = "all tensors"


def difference_in_slot(
    live: kernels.Kernels,
    reference: kernels.Kernels,
    state: State,
    slot: int,
    inputs: Tokens,
    targets: Tokens,
) -> Difference | None:
    """What the kernels `live` do differently in the gradient of one slot; None: nothing, now.

    inputs, targets: int32 [B, T]. Takes some times as long as the slot.
    """

    def compute(watch: _Watch) -> None:
        w = _WatchedWeights(watch, state.config.model, state.weights)
        slot_gradient(w, state, slot, inputs, targets)

    return _first(live, reference, state, compute)


def difference_in_apply(
    live: kernels.Kernels,
    reference: kernels.Kernels,
    state: State,
    total: NDArray[np.int32],
    max_abs: Sequence[int],
) -> Difference | None:
    """The same for the optimizer step from `state` (see `apply_update`)."""
    return _first(
        live, reference, state, lambda watch: apply_update(watch.ops, state, total, max_abs)
    )


_Entry = tuple[Difference, bytes]


class _Found(Exception):
    """Ends the second pass at the first difference."""

    def __init__(self, difference: Difference) -> None:
        self.difference = difference


def _first(
    live: kernels.Kernels,
    reference: kernels.Kernels,
    state: State,
    compute: Callable[[_Watch], object],
) -> Difference | None:
    done: list[_Entry] = []
    refusal = _refused(compute, _Watch(live, state, done.append))
    expected = iter(done)

    def compare(entry: _Entry) -> None:
        other = next(expected, None)
        if other != entry:
            raise _Found(entry[0])

    try:
        other_refusal = _refused(compute, _Watch(reference, state, compare))
    except _Found as found:
        return found.difference
    rest = next(expected, None)
    if rest is not None:  # the reference refused what the kernels in use computed
        return rest[0]
    if refusal != other_refusal:
        return Difference(WHOLE, f"refused as not finite by one side only ({refusal})")
    return None


def _refused(compute: Callable[[_Watch], object], watch: _Watch) -> str:
    """Run; a refusal by the kernels ends it, and is part of the result."""
    try:
        compute(watch)
    except kernels.KernelError as error:
        return type(error).__name__
    return ""


class _Watch:
    """Kernels whose every result is given a name and hashed."""

    def __init__(
        self, ops: kernels.Kernels, state: State, tell: Callable[[_Entry], object]
    ) -> None:
        self.ops = ops.observed(self._saw)
        self.parameter = "embed"
        """The parameter used last: where in the model the computation is."""
        self.of_weights = False
        """A quantisation is of that parameter itself."""
        self._tell = tell
        self._in_order = {name: iter(state.layout.names) for name in ("grid", "dequantise", "adam")}

    def _saw(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        if name in self._in_order:  # called once for each parameter, in their order
            self.parameter = next(self._in_order[name])
        if name == "embed_backward":
            self.parameter = "embed"
        arrays = list(_arrays(args[-1] if result is None else result))
        own = name in _PARAMETER or self.of_weights
        phrases = (_PARAMETER if name in _PARAMETER else _BETWEEN)[name]
        where = WHOLE if name == "norm" else self.parameter if own else _place(self.parameter)
        for i in _CAUSE_FIRST.get(name, range(len(phrases))):
            digest = hashlib.sha256(arrays[i]).digest()
            self._tell((Difference(where, phrases[i]), digest))


class _WatchedWeights(Weights):
    """Weights that tell which of them is used."""

    def __init__(self, watch: _Watch, model: ModelConfig, flat: F32) -> None:
        super().__init__(watch.ops, model, flat)
        self._watch = watch

    def __getitem__(self, name: str) -> F32:
        self._watch.parameter = name
        return super().__getitem__(name)

    def forward(self, name: str) -> kernels.Quantised:
        return self._quantised(super().forward, name)

    def backward(self, name: str) -> kernels.Quantised:
        return self._quantised(super().backward, name)

    def _quantised(
        self, quantise: Callable[[str], kernels.Quantised], name: str
    ) -> kernels.Quantised:
        self._watch.parameter = name
        self._watch.of_weights = True
        try:
            return quantise(name)
        finally:
            self._watch.of_weights = False


def _place(parameter: str) -> str:
    """`layers.3.q` -> `layers.3`; `embed` and `norm` stay."""
    return parameter.rpartition(".")[0] or parameter


def _arrays(result: Any) -> Iterator[bytes]:
    """The bytes of everything an operation gave, in a fixed order."""
    if isinstance(result, np.ndarray):
        yield np.ascontiguousarray(result).tobytes()
    elif isinstance(result, kernels.Quantised):
        yield from _arrays(result.q)
        yield from _arrays(result.scale)
    elif isinstance(result, kernels.AttentionSaved):
        for part in (result.q8, result.k8, result.v8, result.peak, result.inverse_sum):
            yield from _arrays(part)
    elif isinstance(result, tuple):
        for part in result:
            yield from _arrays(part)
    elif isinstance(result, int | np.integer):
        yield str(int(result)).encode()
    else:
        yield float(result).hex().encode()
