"""Credentials for TURN servers, also as a real one judges them."""

import asyncio
import base64
import hashlib
import hmac
import re
import time
from pathlib import Path

import pytest

from p2pnode.net import ice
from p2pnode.net.ice import IcePolicy, Interface
from p2pnode.net.ice_servers import IceServer
from p2pnode.net.rtc import RtcTransport
from signaling.turn import TurnLender, turn_url
from tests.net.coturn import SECRET, coturn, needs_coturn

PEER, OTHER = bytes([1]) * 32, bytes([2]) * 32


def test_user_name_and_password_are_those_of_the_scheme(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.9)
    loan = TurnLender(["turn:a", "turns:a"], SECRET, 600).lend(PEER)
    (server,) = loan.ice
    assert loan.seconds == 600
    assert server.urls == ("turn:a", "turns:a")
    expiry, _, label = server.username.partition(":")
    assert int(expiry) == 1_700_000_600
    expected = hmac.new(SECRET.encode(), server.username.encode(), hashlib.sha1).digest()
    assert base64.b64decode(server.credential) == expected
    assert label
    assert label not in PEER.hex()


def test_the_label_of_a_peer_stays_and_differs_from_those_of_others():
    lender = TurnLender(["turn:a"], SECRET)

    def label(peer):
        return lender.lend(peer).ice[0].username.split(":")[1]

    assert label(PEER) == label(PEER) != label(OTHER)


@pytest.mark.parametrize("url", ["turn:h", "turn:h:1?transport=tcp", "turns:[::1]:5349"])
def test_addresses_are_taken(url):
    assert turn_url(url) == url


@pytest.mark.parametrize(
    "url",
    ["", "h:1", "stun:h", "turn:u:p@h", "turn:h?transport=sctp", "turn:", "turn:" + "h" * 300],
)
def test_other_addresses_are_refused(url):
    with pytest.raises(ValueError, match="TURN server"):
        turn_url(url)


def test_a_secret_that_can_be_guessed_is_refused():
    with pytest.raises(ValueError, match="characters"):
        TurnLender(["turn:a"], "secret")
    with pytest.raises(ValueError, match="between 1 and 8"):
        TurnLender(["turn:a"] * 9, SECRET)


async def relays_for(servers) -> int:
    """How many relayed addresses these servers give."""
    transport = RtcTransport(IcePolicy(servers=servers), print, print)
    try:
        async with asyncio.timeout(20):
            return (await transport.offer()).count("typ relay")
    finally:
        await transport.close()


@needs_coturn
async def test_a_real_server_takes_them_until_they_expire(monkeypatch, caplog):
    monkeypatch.setattr(ice, "local_interfaces", lambda: [Interface("lo", "127.0.0.1")])

    def server(lender):
        (lent,) = lender.lend(PEER).ice
        return IceServer.parse(lent.urls[0], lent.username, lent.credential)

    async with coturn(secret=True) as turn:
        url = f"turn:127.0.0.1:{turn.port}"
        assert await relays_for([server(TurnLender([url], SECRET, 60))]) == 1
        assert await relays_for([server(TurnLender([url], SECRET, -1))]) == 0
        assert await relays_for([server(TurnLender([url], SECRET + "x", 60))]) == 0
        assert caplog.text.count("refuses") == 2


@needs_coturn
async def test_the_configuration_that_operations_gives_works(monkeypatch):
    monkeypatch.setattr(ice, "local_interfaces", lambda: [Interface("lo", "127.0.0.1")])
    page = Path(__file__).parents[2].joinpath("docs", "OPERATIONS.md").read_text(encoding="utf-8")
    found = re.search(r"```\n(use-auth-secret\n.*?)```", page, re.DOTALL)
    assert found is not None
    config = found[1].replace("THE-SECRET-IN-FILE", SECRET)
    async with coturn(config=config) as turn:
        lender = TurnLender([f"turn:127.0.0.1:{turn.port}"], SECRET)
        (lent,) = lender.lend(PEER).ice
        server = IceServer.parse(lent.urls[0], lent.username, lent.credential)
        assert await relays_for([server]) == 1
        for complaint in ("Bad configuration", "ERROR", "error resolving"):
            assert complaint not in turn.log()
