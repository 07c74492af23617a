"""A model's weights as the products want them: quantised once per state, on first use.

May import: arithmetic, layout, config.
"""

from __future__ import annotations

from p2pnode.config import ModelConfig
from p2pnode.train.arithmetic import kernels
from p2pnode.train.layout import F32, layout_of


class Weights:
    """Named views into one flat vector, which must not change while this object is used."""

    def __init__(self, ops: kernels.Kernels, model: ModelConfig, flat: F32) -> None:
        self.ops = ops
        self.model = model
        self._views = layout_of(model).views(flat)
        self._forward: dict[str, kernels.Quantised] = {}
        self._backward: dict[str, kernels.Quantised] = {}

    def __getitem__(self, name: str) -> F32:
        return self._views[name]

    def forward(self, name: str) -> kernels.Quantised:
        """The matrix [N, K] in int8, one scale per output row."""
        if name not in self._forward:
            self._forward[name] = self.ops.quantise_rows(self._views[name], kernels.INT8_LIMIT)
        return self._forward[name]

    def backward(self, name: str) -> kernels.Quantised:
        """The matrix [N, K] in 12 bits, one scale per input column."""
        if name not in self._backward:
            self._backward[name] = self.ops.quantise_cols(self._views[name], kernels.INT12_LIMIT)
        return self._backward[name]
