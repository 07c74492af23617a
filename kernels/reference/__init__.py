"""The specification: every operation in plain numpy, one obvious form each.

Nothing here depends on bits that numpy does not promise: no sum, mean or einsum, no
transcendental function, no power, and no matrix product but of integers within the exact range
of binary64. A test holds this. May import: constants, errors, types.

Arguments have been checked by `kernels.table.Kernels`, where shapes and dtypes are stated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import attention, elementary, layers, loss, optimizer, products

FORMS: dict[str, Callable[..., Any]] = {
    "exp": elementary.exp,
    "log": elementary.log,
    "quantise_rows": products.quantise_rows,
    "quantise_cols": products.quantise_cols,
    "linear": products.linear,
    "linear_dx": products.linear_dx,
    "linear_dw": products.linear_dw,
    "rmsnorm": layers.rmsnorm,
    "rmsnorm_backward": layers.rmsnorm_backward,
    "rope": layers.rope,
    "rope_backward": layers.rope_backward,
    "swiglu": layers.swiglu,
    "swiglu_backward": layers.swiglu_backward,
    "add": layers.add,
    "embed": layers.embed,
    "embed_backward": layers.embed_backward,
    "attention": attention.attention,
    "attention_step": attention.attention_step,
    "attention_backward": attention.attention_backward,
    "cross_entropy": loss.cross_entropy,
    "grid": optimizer.grid,
    "grid_add": optimizer.grid_add,
    "dequantise": optimizer.dequantise,
    "norm": optimizer.norm,
    "adam": optimizer.adam,
}
