"""ICE: which addresses are offered and which of a remote description are taken."""

from __future__ import annotations

import socket

import pytest

from p2pnode.errors import P2PNodeError, PeerError
from p2pnode.limits import LIMITS
from p2pnode.net import ice
from p2pnode.net.ice import IceMode, IcePolicy, Interface, filter_description
from p2pnode.net.ice_servers import IceServer
from p2pnode.net.rtc import RtcTransport, fingerprint, max_message

MACHINE = [
    Interface("lo", "127.0.0.1"),
    Interface("lo", "::1"),
    Interface("docker0", "172.17.0.1"),
    Interface("wg0", "10.9.0.2"),
    Interface("eth0", "fe80::1"),
    Interface("eth0", "2001:db8::5"),
    Interface("eth0", "192.168.1.5"),
    Interface("eth0", "169.254.3.4"),
]


def offered(**options) -> list[str]:
    return IcePolicy(**options).addresses(MACHINE)


def test_default_offers_real_addresses_first_then_tunnels_then_bridges():
    assert offered() == ["192.168.1.5", "2001:db8::5", "10.9.0.2", "172.17.0.1"]


@pytest.mark.parametrize("name", ["docker0", "br-1f2e", "virbr0", "veth12", "vEthernet (WSL)"])
def test_bridges_come_after_tunnels(name: str):
    machine = [Interface(name, "10.0.0.1"), *MACHINE[3:4], *MACHINE[6:7]]
    assert IcePolicy().addresses(machine) == ["192.168.1.5", "10.9.0.2", "10.0.0.1"]


@pytest.mark.parametrize("name", ["tun0", "tailscale0", "wg1", "utun4", "ppp0", "zt5u4"])
def test_tunnels_come_after_real_interfaces(name: str):
    machine = [Interface(name, "100.64.0.1"), Interface("enp3s0", "192.168.1.5")]
    assert IcePolicy().addresses(machine) == ["192.168.1.5", "100.64.0.1"]


def test_relay_mode_offers_no_address():
    assert offered(mode=IceMode.RELAY) == []


def test_loopback_offers_nothing_else():
    assert offered(mode=IceMode.LOOPBACK) == ["127.0.0.1", "::1"]


def test_interfaces_can_be_allowed_and_denied_by_name_address_and_network():
    assert offered(deny=["wg*", "docker*"]) == ["192.168.1.5", "2001:db8::5"]
    assert offered(allow=["docker0"]) == ["172.17.0.1"]
    assert offered(allow=["10.0.0.0/8", "192.168.1.5"]) == ["192.168.1.5", "10.9.0.2"]
    assert offered(allow=["eth0"], deny=["2001:db8::/32"]) == ["192.168.1.5"]


def test_a_machine_with_only_loopback_still_offers_something():
    alone = MACHINE[:1]
    assert IcePolicy().addresses(alone) == ["127.0.0.1"]
    assert IcePolicy().addresses([]) == ["127.0.0.1"]


def test_the_number_of_addresses_is_bounded():
    many = [Interface("eth0", f"10.0.0.{i}") for i in range(1, 100)]
    assert len(IcePolicy().addresses(many)) == ice.MAX_ADDRESSES


def test_this_machine_has_addresses():
    assert any(i.address == "127.0.0.1" for i in ice.local_interfaces())


def nothing(*_: object) -> None:
    pass


async def candidates(policy: IcePolicy) -> list[str]:
    transport = RtcTransport(policy, nothing, nothing)
    try:
        sdp = await transport.offer()
    finally:
        await transport.close()
    return [line for line in sdp.splitlines() if line.startswith("a=candidate")]


async def test_an_offer_in_loopback_mode_names_only_loopback():
    lines = await candidates(IcePolicy(mode=IceMode.LOOPBACK))
    assert lines
    assert all(line.split()[4] in ("127.0.0.1", "::1") for line in lines)


async def test_loopback_mode_asks_no_server():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        asked = IceServer("stun", "127.0.0.1", server.getsockname()[1])
        await candidates(IcePolicy(mode=IceMode.LOOPBACK, servers=[asked]))
        with pytest.raises(BlockingIOError):
            server.recv(100)


@pytest.mark.parametrize(
    "name", ["get_component_candidates", "query_consent", "check_start", "build_request"]
)
async def test_the_hooks_are_checked(monkeypatch, name: str):
    ice.check_library()

    async def changed(self, component, something_else):
        return []

    monkeypatch.setattr(ice.aioice.Connection, name, changed)
    with pytest.raises(P2PNodeError, match="install aiortc"):
        ice.check_library()


HEAD = "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\nm=application 9 UDP/DTLS/SCTP x\r\n"


def candidate(address: str, number: int = 1) -> str:
    return f"a=candidate:{number} 1 udp 2130706431 {address} 5000 typ host\r\n"


def test_local_names_and_broken_candidates_are_dropped():
    sdp = HEAD + candidate("3f2a.local") + candidate("192.0.2.1") + "a=candidate:1 1 udp\r\n"
    sdp += candidate("example.org") + candidate("2001:db8::1")
    assert filter_description(sdp) == HEAD + candidate("192.0.2.1") + candidate("2001:db8::1")


def test_the_number_of_remote_candidates_is_bounded():
    sdp = HEAD + "".join(candidate(f"10.0.{i}.1", i) for i in range(200))
    assert filter_description(sdp).count("a=candidate") == LIMITS.sdp_candidates


@pytest.mark.parametrize(
    "sdp",
    [
        "",
        "v=0\r\n",
        HEAD + "m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n",
        HEAD.replace("application", "video"),
        HEAD + HEAD,
    ],
)
def test_only_data_channels_are_accepted(sdp: str):
    with pytest.raises(PeerError, match="data channels"):
        filter_description(sdp)


FINGERPRINT = ":".join(["A1"] * 32)


def test_the_fingerprint_is_read_and_must_be_one():
    line = f"a=fingerprint:sha-256 {FINGERPRINT}\r\n"
    assert fingerprint(HEAD + line) == "a1" * 32
    assert fingerprint(HEAD + line + line) == "a1" * 32
    for sdp in (HEAD, HEAD + line.replace("A1", "A1A1"), HEAD + line + line.replace("A1", "B1")):
        with pytest.raises(PeerError, match="fingerprint"):
            fingerprint(sdp)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("", 65_536),
        ("a=max-message-size:262144\r\n", 262_144),
        ("a=max-message-size:16384\r\n", 16_384),
        ("a=max-message-size:0\r\n", 65_536),
    ],
)
def test_the_remote_message_size_is_read(line: str, size: int):
    assert max_message(HEAD + line) == size


def test_a_remote_message_size_of_no_use_is_refused():
    with pytest.raises(PeerError, match="at most 100 bytes"):
        max_message(HEAD + "a=max-message-size:100\r\n")
