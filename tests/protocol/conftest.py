"""A room without nodes, for tests of admission."""

import pytest

from tests.protocol.room_world import World


@pytest.fixture
def world():
    return World()
