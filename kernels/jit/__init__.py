"""The compiled forms: the same operations as `reference`, tiled and fused, compiled by numba.

They must give the reference's bits. Python wrappers allocate every array (see `workspace`), so
that compiled code runs without the GIL and the gates can poison its buffers. Arguments have been
checked by `kernels.table.Kernels`; compiled code checks no bounds.
May import: constants, errors, types, workspace, and scalar helpers of reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import attention, attention_backward, layers, loss, optimizer, products

FORMS: dict[str, Callable[..., Any]] = {
    "exp": layers.exp,
    "log": layers.log,
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
    "attention_backward": attention_backward.attention_backward,
    "cross_entropy": loss.cross_entropy,
    "grid": optimizer.grid,
    "grid_add": optimizer.grid_add,
    "dequantise": optimizer.dequantise,
    "norm": optimizer.norm,
    "adam": optimizer.adam,
}
