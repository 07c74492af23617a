"""Real processes, real WebRTC on loopback."""

from collections.abc import Iterator

import pytest

from tests.integration.commands import Demo
from tests.integration.terminals import Terminal


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The one-node run that every other run must equal."""
    return Demo(tmp_path_factory.mktemp("undisturbed"), "--nodes", "1")


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Those that a test opens; closed after it."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()
