"""Gates: an operation's compiled form may be used only if it gives the reference's bits.

May import: gate_cases, reference, types, workspace.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from .gate_cases import GATES, UNNAMED, Form
from .reference import FORMS
from .types import AttentionSaved, Ints, Quantised
from .workspace import poisoned

POISONS = (0xFF, 0x42)
"""Bytes that fill fresh buffers: NaN or -1, then an ordinary number."""


def _leaves(result: Any) -> Iterator[Ints | str]:
    """The arrays, numbers and names of refusals that make up an answer, in order."""
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from _leaves(part)
    elif isinstance(result, Quantised):
        yield from (result.q, result.scale)
    elif isinstance(result, AttentionSaved):
        for rows in (result.q8, result.k8, result.v8):
            yield from _leaves(rows)
        yield from (result.peak, result.inverse_sum)
    elif isinstance(result, np.ndarray | np.generic):
        yield np.asarray(result)
    else:
        yield str(result)


def outcome(
    name: str, form: Form, cases: dict[str, Callable[[Form], Iterable[Any]]] = GATES
) -> bytes:
    """SHA-256 over the bit patterns, dtypes and shapes of a form's answers to its gate."""
    digest = hashlib.sha256(name.encode())
    with np.errstate(all="ignore"):
        for leaf in (leaf for answer in cases[name](form) for leaf in _leaves(answer)):
            if isinstance(leaf, str):
                digest.update(leaf.encode())
            else:
                little = leaf.astype(leaf.dtype.newbyteorder("<"), copy=False)
                digest.update(f"{little.dtype.str}{little.shape}".encode())
                digest.update(little.tobytes())
    return digest.digest()


@functools.cache
def expected(name: str) -> bytes:
    """The outcome of the reference form."""
    return outcome(name, FORMS[name])


@functools.cache
def _expected_unnamed(name: str) -> bytes:
    return outcome(name, FORMS[name], UNNAMED)


@functools.cache
def digest() -> str:
    """SHA-256 (hex) over every gate's expected outcome: the identity of the arithmetic."""
    return hashlib.sha256(b"".join(expected(name) for name in sorted(GATES))).hexdigest()


def fault(name: str, form: Form) -> str | None:
    """Why the form may not be used; None if on poisoned buffers it gives the reference's bits."""
    for poison in POISONS:
        try:
            with poisoned(poison):
                right = outcome(name, form) == expected(name)
                if right and name in UNNAMED:
                    right = outcome(name, form, UNNAMED) == _expected_unnamed(name)
        except Exception as error:  # a form that fails in any way is replaced
            return f"it failed: {type(error).__name__}: {error}"
        if not right:
            return "its bits differ from the reference"
    return None
