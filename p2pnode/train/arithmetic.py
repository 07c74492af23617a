"""The one place where p2pnode imports the `kernels` package.

`kernels` is also the name of a well-known package on the index, so ours is found by location, not
by name: installed it lies inside p2pnode, in a checkout beside it. It is always loaded as
`p2pnode_kernels` and registered under that name, so a foreign `kernels` is neither shadowed nor
mistaken for ours, and compiled functions in numba's cache resolve wherever they are loaded.

May import: kernels, errors.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from p2pnode.errors import ArithmeticUnsoundError, NonFiniteError

if TYPE_CHECKING:
    import kernels

__all__ = ["ALIAS", "kernels", "locate", "refusals"]

ALIAS = "p2pnode_kernels"
_PACKAGE = Path(__file__).resolve().parent.parent


def _is_ours(folder: Path) -> bool:
    """True if the package in `folder` sets the marker; read, not run, as it may be foreign."""
    try:
        text = (folder / "__init__.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.startswith("P2PNODE_KERNELS = True") for line in text.splitlines())


def locate(package: Path = _PACKAGE) -> Path:
    """Folder of our kernels for a p2pnode package at `package`. Raises ArithmeticUnsoundError."""
    for folder in (package / "kernels", package.parent / "kernels"):
        if _is_ours(folder):
            return folder
    raise ArithmeticUnsoundError(
        f"The arithmetic kernels are missing: neither {package / 'kernels'} nor "
        f"{package.parent / 'kernels'} holds them. Install p2pnode again."
    )


def _load(folder: Path) -> ModuleType:
    loaded = sys.modules.get(ALIAS)
    if loaded is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(
        ALIAS, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None  # a .py path always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[ALIAS] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[ALIAS]
        raise
    return module


@contextlib.contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn the kernels' refusals into NonFiniteError or ArithmeticUnsoundError, with what was
    being done."""
    try:
        yield
    except kernels.NonFiniteInputError as error:
        raise NonFiniteError(f"{what}: {error}") from None
    except (kernels.FloatModeError, kernels.UnsoundError) as error:
        raise ArithmeticUnsoundError(f"{what}: {error}") from None


if not TYPE_CHECKING:
    kernels = _load(locate())
