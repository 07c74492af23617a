"""Which path a connection takes, and whether this machine still has its address."""

from __future__ import annotations

import pytest

from p2pnode.net import ice, paths, rtc
from p2pnode.net.paths import is_ours, local_address, uses_turn
from tests.net.sides import connect, sides


def test_addresses_of_this_machine_are_known():
    assert is_ours("127.0.0.1")
    assert not is_ours("192.0.2.77")
    assert not is_ours("2001:db8::77")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_each_loopback_address_alone_is_enough(monkeypatch, address: str):
    if not is_ours(address):
        pytest.skip(f"this machine has no {address}")
    monkeypatch.setattr(ice, "local_interfaces", lambda: [ice.Interface("lo", address)])
    async with sides() as (a, b):
        await connect(a, b)
        assert local_address(a.transport._ice) == local_address(b.transport._ice) == address


async def test_a_connection_on_loopback_is_direct():
    async with sides() as (a, b):
        assert local_address(a.transport._ice) is None
        await connect(a, b)
        assert local_address(a.transport._ice) in ("127.0.0.1", "::1")
        assert not uses_turn(a.transport._ice)
        assert not b.transport.via_turn


async def test_a_connection_whose_address_is_gone_is_given_up(monkeypatch):
    async with sides() as (a, b):
        await connect(a, b)
        a.transport.check()
        monkeypatch.setattr(rtc, "is_ours", lambda address: False)
        a.transport.check()  # it does not look each time
        monkeypatch.setattr(rtc, "ADDRESS_SECONDS", 0.0)
        a.transport._look_at = 0.0
        with pytest.raises(ConnectionError, match="no longer has the address"):
            a.transport.check()


def test_direct_paths_have_time_for_a_repetition():
    """aioice repeats a check after half a second."""
    assert paths.RELAY_PATIENCE > 0.5
