"""How the suite is shared out among processes (`pytest -n auto`)."""

from pathlib import Path

import pytest

ONE_AT_A_TIME = Path(__file__).parent / "integration"
"""Its tests start several processes each, so they run one after another, beside the others."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay together, for what they share."""
    for item in items:
        alone = item.path.is_relative_to(ONE_AT_A_TIME)
        group = ONE_AT_A_TIME if alone else item.path
        item.add_marker(pytest.mark.xdist_group(str(group)))
