"""A server without rooms, for tests of its core."""

import pytest

from tests.signaling.rooms_server import Server


@pytest.fixture
def server():
    return Server()
