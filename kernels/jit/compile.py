"""The decorators every compiled function uses, and where compiled code is cached.

May import: numba.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config
from numba.core.registry import cpu_target

config: Any = numba_config
Compiled = Callable[..., Any]


def _user_cache() -> Path:
    """The directory for caches by this platform's convention."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _sources() -> str:
    """Hash over everything that compiled code depends on.

    numba notices edits of the file that holds a cached function, but not of functions and
    constants that it takes from other files. The package's name is part of the key because numba
    would import the name under which the code was compiled, which may belong to another package.
    """
    digest = hashlib.sha256(f"{__package__} {numba.__version__}".encode())
    here = Path(__file__).parent
    for path in [
        *sorted(here.glob("*.py")),
        here.parent / "constants.py",
        here.parent / "types.py",
    ]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_directory() -> Path | None:
    """A writable directory for this version of the kernels, or None. numba adds the CPU's name.

    NUMBA_CACHE_DIR is respected as the place to put it.
    """
    try:
        base = Path(config.CACHE_DIR) if config.CACHE_DIR else _user_cache() / "p2pnode" / "numba"
        path = base / f"kernels-{_sources()}"
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None


_CACHE = cache_directory()
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_rewrites": True, "no_cfunc_wrapper": True}
"""IEEE-754 division. Rewriting is for array expressions, wrappers in C are for callbacks: there are
none, and both take time to compile."""
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True}


def _complete() -> Path | None:
    """The file that says that everything has been compiled for this processor."""
    if _CACHE is None:
        return None
    processor = repr(cpu_target.target_context.codegen().magic_tuple())
    return _CACHE / f"complete-{hashlib.sha256(processor.encode()).hexdigest()[:16]}"


def is_complete() -> bool:
    """Whether everything has been compiled before for this processor, and was kept."""
    path = _complete()
    return path is not None and path.exists()


def mark_complete() -> None:
    """Everything has been compiled."""
    path = _complete()
    if path is not None:
        with contextlib.suppress(OSError):
            path.touch()


def kernel(function: Compiled) -> Compiled:
    """Compile a function that Python calls: without the GIL, cached."""
    saved = config.CACHE_DIR
    if _CACHE is not None:
        config.CACHE_DIR = str(_CACHE)
    try:
        decorate: Any = numba.njit(nogil=True, cache=_CACHE is not None, **_OPTIONS)
        compiled: Compiled = decorate(function)
        return compiled
    finally:
        config.CACHE_DIR = saved


def routine(function: Compiled) -> Compiled:
    """Compile a function that only kernels call; LLVM decides where to inline it."""
    compiled: Compiled = numba.njit(**_INNER)(function)
    return compiled


def inlined(function: Compiled) -> Compiled:
    """Compile a longer function once; LLVM puts it into every kernel that calls it."""
    compiled: Compiled = numba.njit(forceinline=True, **_INNER)(function)
    return compiled


def helper(function: Compiled) -> Compiled:
    """Compile a small function straight into the kernels that call it, anew for each."""
    compiled: Compiled = numba.njit(inline="always", **_INNER)(function)
    return compiled
