"""Server addresses as people type them."""

import pytest
from yarl import URL

from p2pnode.errors import UsageError
from p2pnode.net.ice_servers import IceServer
from p2pnode.net.signaling_url import data_url, is_loopback, server_url, stun_url


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("example.org", "ws://example.org:8765/ws"),
        ("example.org:9000", "ws://example.org:9000/ws"),
        ("192.0.2.1", "ws://192.0.2.1:8765/ws"),
        ("[2001:db8::1]:9000", "ws://[2001:db8::1]:9000/ws"),
        ("http://example.org", "ws://example.org/ws"),
        ("http://example.org:8765/", "ws://example.org:8765/ws"),
        ("https://example.org", "wss://example.org/ws"),
        ("wss://example.org/p2p", "wss://example.org/p2p/ws"),
        ("ws://example.org:1/ws", "ws://example.org:1/ws"),
    ],
)
def test_forms(typed, meant):
    assert server_url(typed) == URL(meant)
    assert server_url(str(server_url(typed))) == URL(meant)


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "http://",
        "http:",
        "ftp://example.org",
        "example.org:port",
        "http://user:word@example.org",
        "http://example.org?x=1",
        "http://example.org#code",
        "http://example.org:99999",
        "\x00",
        "https://[57::0]:@/ws",
        "http://exa mple\x1b.org",
        "a" * 10_000,
    ],
)
def test_what_is_no_address(typed):
    with pytest.raises(UsageError, match="is not the address of a signaling server"):
        server_url(typed)


@pytest.mark.parametrize(
    ("typed", "here"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8:1", True),
        ("[::1]", True),
        ("localhost", True),
        ("node.localhost", True),
        ("192.0.2.1", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(typed, here):
    assert is_loopback(server_url(typed)) == here


def test_stun_address():
    assert stun_url(server_url("https://example.org"), 8765) == "stun:example.org:8765"
    assert stun_url(server_url("[2001:db8::1]"), 8765) == "stun:[2001:db8::1]:8765"


@pytest.mark.parametrize("host", ["example.org", "192.0.2.1", "[2001:db8::1]"])
def test_stun_addresses_are_ones_that_ice_takes(host):
    server = IceServer.parse(stun_url(server_url(host), 8765))
    assert (server.host, server.port) == (host.strip("[]"), 8765)


def test_text_is_served_beside_the_websocket():
    assert data_url(server_url("example.org")) == "http://example.org:8765/data/"
    assert data_url(server_url("https://example.org/p2p")) == "https://example.org/p2p/data/"
    assert data_url(server_url("[2001:db8::1]")) == "http://[2001:db8::1]:8765/data/"
