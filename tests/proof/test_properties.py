"""The compiled operations and the reference have every property."""

from __future__ import annotations

import pytest

import kernels

from .properties import PROPERTIES, Property


@pytest.mark.parametrize("form", ["compiled", "reference"])
@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
def test_property(check: Property, form: str) -> None:
    check(kernels.load(reference=form == "reference"))
