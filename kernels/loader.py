"""Chooses a form for every operation. May import: everything here.

P2PNODE_NO_NUMBA=1 in the environment keeps numba out.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

from . import floatmode, gates, reference
from .spot import SpotChecks
from .table import Kernels


def load(reference_only: bool = False) -> Kernels:
    """Compiled forms that pass their gates, reference forms for the rest.

    The first call compiles (tens of seconds), later processes load from the cache (about 2 s);
    call it where that may happen, before or outside an event loop.
    """
    if reference_only:
        return _reference("the reference was asked for")
    if os.environ.get("P2PNODE_NO_NUMBA") == "1":
        return _reference("P2PNODE_NO_NUMBA is set")
    with no_collection():
        return _compiled()


def will_compile() -> bool:
    """Whether `load` will have to compile, which takes memory too. Imports numba."""
    if os.environ.get("P2PNODE_NO_NUMBA") == "1":
        return False
    try:
        with no_collection():
            from .jit.compile import is_complete
    except Exception:  # as in `load`
        return False
    return not is_complete()


def _compiled() -> Kernels:
    try:
        from . import jit
        from .jit.compile import mark_complete
        from .jit.floatmode import pin

        pin()
    except Exception as error:  # a broken numba fails in many ways; none may stop a node
        return _reference(f"numba does not work here: {type(error).__name__}: {error}")
    forms: dict[str, Callable[..., Any]] = dict(jit.FORMS)
    demoted = {}
    for name in reference.FORMS:
        reason = gates.fault(name, forms[name])
        if reason is not None:
            forms[name], demoted[name] = reference.FORMS[name], reason
    mark_complete()
    return Kernels("numba", forms, pin, demoted, spots=SpotChecks())


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """The garbage collector off: a tenth of the time to compile goes into looking through objects
    that all stay. They are left out afterwards too: looking through them holds every thread up
    for 60 to 170 ms."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def _reference(reason: str) -> Kernels:
    return Kernels("reference", reference.FORMS, floatmode.require, reason=reason)
