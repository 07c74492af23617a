"""Where each named tensor lies in the flat parameter vector.

May import: config.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from p2pnode.config import ModelConfig

F32 = NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One named stretch [start, stop) of the flat vector, row-major in `shape`."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    decays: bool
    """Weight decay applies: true for matrices, false for the embedding and the norms."""
    residual: bool
    """Its output is added to the residual stream; initialised smaller by sqrt(2 * layers)."""

    @property
    def is_norm(self) -> bool:
        return len(self.shape) == 1


@dataclasses.dataclass(frozen=True)
class Layout:
    """All tensors of a model in their fixed order, without gaps."""

    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.tensors[-1].stop

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.tensors)

    def views(self, flat: F32) -> dict[str, F32]:
        """Name -> the tensor as a view into `flat` [size]."""
        return {t.name: flat[t.start : t.stop].reshape(t.shape) for t in self.tensors}


@functools.lru_cache(maxsize=16)
def layout_of(model: ModelConfig) -> Layout:
    """The layout of a model. The embedding is tied: it is also the output matrix."""
    width, ffn = model.width, model.ffn
    shapes: list[tuple[str, tuple[int, ...]]] = [("embed", (model.vocab, width))]
    for i in range(model.layers):
        shapes += [
            (f"layers.{i}.attn_norm", (width,)),
            (f"layers.{i}.q", (width, width)),
            (f"layers.{i}.k", (width, width)),
            (f"layers.{i}.v", (width, width)),
            (f"layers.{i}.o", (width, width)),
            (f"layers.{i}.ffn_norm", (width,)),
            (f"layers.{i}.gate", (ffn, width)),
            (f"layers.{i}.up", (ffn, width)),
            (f"layers.{i}.down", (width, ffn)),
        ]
    shapes.append(("norm", (width,)))
    tensors = []
    start = 0
    for name, shape in shapes:
        stop = start + math.prod(shape)
        residual = name.endswith((".o", ".down"))
        decays = len(shape) == 2 and name != "embed"
        tensors.append(Tensor(name, shape, start, stop, decays, residual))
        start = stop
    return Layout(tuple(tensors))
