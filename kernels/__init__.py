"""The arithmetic: arrays in, arrays out, the same bits on every machine. No I/O, no clock.

`load()` gives the operations (`Kernels`), compiled by numba where that works and agrees with the
reference, in plain numpy elsewhere. Imports nothing outside itself but numpy and numba.
"""

from __future__ import annotations

from .errors import (
    AccumulatorBoundError,
    FloatModeError,
    KernelError,
    NonFiniteInputError,
    ShapeError,
    UnsoundError,
)
from .probe import probe, probe_expected
from .random import normal_weights, random_u64
from .scalars import (
    adam_scalars,
    clip_factor,
    first_exponent,
    grid_limit,
    next_exponent,
    rope_tables,
    schedule,
)
from .table import Kernels
from .types import INT8_LIMIT, INT12_LIMIT, AdamScalars, AttentionSaved, Quantised
from .weigh import weigh
from .workspace import empty

P2PNODE_KERNELS = True
"""Marks this package; another one on the index is also called `kernels`."""

ARITHMETIC_VERSION = 1
"""Raised whenever any result's bits change."""


def load(reference: bool = False) -> Kernels:
    """The operations, compiled where numba works and agrees with the reference, else in numpy.

    reference: the reference forms only. Compiles on the first use on a machine; see `loader`.
    """
    from .loader import load as choose

    return choose(reference)


def use_threads(count: int) -> None:
    """Compute with `count` threads from now on, the calling one included: the bits are the same.

    The reference forms use one.
    """
    from .loader import no_collection

    try:
        with no_collection():
            from .jit import threads
    except Exception:  # a broken numba fails in many ways; `load` tells which
        return
    threads.use(count)


def will_compile() -> bool:
    """Whether `load` will compile: not done yet here for this version. Imports numba."""
    from .loader import will_compile as choose

    return choose()


def gates_digest() -> str:
    """SHA-256 (hex) over the reference outputs of the gates: a constant of the arithmetic."""
    from .gates import digest

    return digest()


__all__ = [
    "ARITHMETIC_VERSION",
    "INT8_LIMIT",
    "INT12_LIMIT",
    "P2PNODE_KERNELS",
    "AccumulatorBoundError",
    "AdamScalars",
    "AttentionSaved",
    "FloatModeError",
    "KernelError",
    "Kernels",
    "NonFiniteInputError",
    "Quantised",
    "ShapeError",
    "UnsoundError",
    "adam_scalars",
    "clip_factor",
    "empty",
    "first_exponent",
    "gates_digest",
    "grid_limit",
    "load",
    "next_exponent",
    "normal_weights",
    "probe",
    "probe_expected",
    "random_u64",
    "rope_tables",
    "schedule",
    "use_threads",
    "weigh",
]
