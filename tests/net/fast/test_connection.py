"""The libraries are what the fast path was written for, or aiortc's own path is taken."""

from __future__ import annotations

import logging
from importlib.metadata import version

import pytest
from aiortc import RTCConfiguration, RTCPeerConnection, rtcpeerconnection, rtcsctptransport
from OpenSSL import SSL

from p2pnode.net.fast import connection
from p2pnode.net.fast.connection import FastPeerConnection, missing, peer_connection, unsupported
from p2pnode.net.ice import IceMode, IcePolicy
from p2pnode.net.rtc import RtcTransport
from p2pnode.protocol.frames import Channel
from tests.net.fakes import until


@pytest.fixture(autouse=True)
def _fresh():
    unsupported.cache_clear()
    yield
    unsupported.cache_clear()


async def test_the_installed_versions_have_all_that_is_needed():
    versions = {name: version(name) for name in ("aiortc", "aioice", "pyOpenSSL")}
    assert missing() is None, versions
    assert isinstance(peer_connection(RTCConfiguration(iceServers=[])), FastPeerConnection)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (rtcsctptransport.RTCSctpTransport, "_receive_chunk"),
        (RTCPeerConnection, "_RTCPeerConnection__createSctpTransport"),
        (rtcpeerconnection, "RTCSctpTransport"),
        (SSL, "_lib"),
    ],
)
async def test_a_missing_name_means_the_stock_path_and_one_warning(
    owner, name, monkeypatch, caplog
):
    monkeypatch.delattr(owner, name)
    assert name in str(missing())
    monkeypatch.undo()
    monkeypatch.setattr(connection, "missing", lambda: f"{owner} has no {name}")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert type(peer_connection(RTCConfiguration(iceServers=[]))) is RTCPeerConnection
    assert [name in record.getMessage() for record in caplog.records] == [True]


async def test_an_attribute_that_is_no_longer_set_is_noticed(monkeypatch):
    monkeypatch.setattr(
        connection, "_SOURCES", ((rtcsctptransport.RTCSctpTransport.__init__, ("_gone",)),)
    )
    assert missing() == "RTCSctpTransport.__init__ sets no _gone"


async def test_a_node_works_without_it(monkeypatch):
    monkeypatch.setattr(connection, "missing", lambda: "a test took it away")
    got: list[tuple[Channel, bytes]] = []
    ice = IcePolicy(mode=IceMode.LOOPBACK)
    a = RtcTransport(ice, lambda *_: None, lambda _: None)
    monkeypatch.undo()
    unsupported.cache_clear()
    b = RtcTransport(ice, lambda channel, frame: got.append((channel, frame)), lambda _: None)
    try:
        await a.accept(await b.answer(await a.offer()))
        await a.opened
        await b.opened
        a.send(Channel.BULK, bytes(60_000))
        await until(lambda: got == [(Channel.BULK, bytes(60_000))])
    finally:
        await a.close()
        await b.close()


async def test_aiortcs_own_classes_are_in_place_again():
    peer = FastPeerConnection(RTCConfiguration(iceServers=[]))
    peer.createDataChannel("x")
    assert rtcpeerconnection.RTCSctpTransport is rtcsctptransport.RTCSctpTransport
    assert type(peer.sctp) is not rtcsctptransport.RTCSctpTransport
    await peer.close()
