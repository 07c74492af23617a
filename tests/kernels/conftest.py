"""Both kinds of kernels, loaded once for the whole session."""

from __future__ import annotations

import pytest

import kernels


@pytest.fixture(scope="session")
def compiled() -> kernels.Kernels:
    """The compiled kernels; every one of them must have passed its gate."""
    loaded = kernels.load()
    assert loaded.backend == "numba", loaded.reason
    assert loaded.demoted == {}
    return loaded


@pytest.fixture(scope="session")
def reference() -> kernels.Kernels:
    return kernels.load(reference=True)
