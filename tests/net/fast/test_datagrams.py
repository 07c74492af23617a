"""Batches of datagrams through real sockets: with the help of the kernel, and without."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

import pytest

from p2pnode.net.fast.datagrams import DatagramSocket


@contextlib.contextmanager
def sockets(*, offload: bool = True) -> Iterator[tuple[DatagramSocket, DatagramSocket, tuple]]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two,
    ):
        for sock in (one, two):
            sock.bind(("127.0.0.1", 0))
            sock.setblocking(False)
        yield (
            DatagramSocket(one, offload=offload),
            DatagramSocket(two, offload=offload),
            two.getsockname(),
        )


def read_all(sock: DatagramSocket) -> list[bytes]:
    out = []
    while (got := sock.read()) is not None:
        data, each, _ = got
        out.extend(bytes(data[at : at + each]) for at in range(0, len(data), each))
    return out


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("lengths", [[1200] * 40, [1200] * 39 + [77], [5], [16_000] * 4])
def test_datagrams_arrive_as_they_were_cut(offload: bool, lengths: list[int]):
    datagrams = [bytes([i]) * length for i, length in enumerate(lengths)]
    with sockets(offload=offload) as (one, two, address):
        assert one.send(b"".join(datagrams), lengths[0], address)
        assert read_all(two) == datagrams
        assert two.read() is None


def test_a_kernel_that_cannot_cut_is_asked_once():
    datagrams = [bytes([i]) * 1000 for i in range(20)]
    with sockets() as (one, two, address):
        asked = []

        class Refuses:
            sendto = one._sock.sendto

            def sendmsg(self, *_: object) -> None:
                asked.append(1)
                raise OSError(errno.EIO, "no checksum offload")

        one._sock = Refuses()
        one._cuts = True
        for _ in range(2):
            one.send(b"".join(datagrams), 1000, address)
        assert read_all(two) == datagrams * 2
        assert len(asked) == 1


def test_a_full_buffer_is_told_and_an_unreachable_host_is_not():
    with sockets() as (one, _, address):

        class Full:
            @staticmethod
            def sendto(*_: object) -> None:
                raise BlockingIOError

            sendmsg = sendto

        class Unreachable:
            @staticmethod
            def sendto(*_: object) -> None:
                raise OSError(errno.ENETUNREACH, "away")

            sendmsg = sendto

        one._sock = Full()
        assert not one.send(bytes(10), 10, address)
        assert not one.send(bytes(100), 10, address)
        one._sock = Unreachable()
        assert one.send(bytes(10), 10, address)
        assert one.send(bytes(100), 10, address)
