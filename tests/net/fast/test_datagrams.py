"""Batches of datagrams through real sockets: with the help of the kernel, and without."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator

import pytest

from p2pnode.net.fast.datagrams import (
    DO_NOT_FRAGMENT,
    IP_MTU_DISCOVER,
    MAY_FRAGMENT,
    DatagramSocket,
)


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
        data = b"".join(datagrams)
        assert one.send(data, lengths[0], address) == len(data)
        assert read_all(two) == datagrams
        assert two.read() is None


@pytest.mark.parametrize("refusal", [errno.EIO, errno.EINVAL, errno.EMSGSIZE])
def test_a_kernel_that_cannot_cut_is_asked_once(refusal: int):
    datagrams = [bytes([i]) * 1000 for i in range(20)]
    with sockets() as (one, two, address):
        asked = []

        class Refuses:
            sendto = one._sock.sendto

            def sendmsg(self, *_: object) -> None:
                asked.append(1)
                raise OSError(refusal, "as interfaces and kernels say it")

        one._sock = Refuses()
        one._cuts = True
        for _ in range(2):
            one.send(b"".join(datagrams), 1000, address)
        assert read_all(two) == datagrams * 2
        assert len(asked) == 1


def test_a_full_buffer_is_told_and_an_unreachable_host_is_not():
    with sockets() as (one, _, address):

        class Full:
            """Takes two and is full."""

            room = 2

            def sendto(self, *_: object) -> None:
                self.room -= 1
                if self.room < 0:
                    raise BlockingIOError

            def sendmsg(self, *_: object) -> None:
                raise BlockingIOError

        class Unreachable:
            def __init__(self, reason: int) -> None:
                self.reason = reason

            def sendto(self, *_: object) -> None:
                raise OSError(self.reason, "away")

            sendmsg = sendto

        one._sock = Full()
        assert one.send(bytes(100), 10, address) == 0, "the kernel takes all or nothing"
        one._cuts = False
        assert one.send(bytes(100), 10, address) == 20
        one._cuts = True
        for reason in (errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.ENOBUFS):
            one._sock = Unreachable(reason)
            assert one.send(bytes(10), 10, address) == 10
            assert one.send(bytes(100), 10, address) == 100
            assert one._cuts


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is sent whole elsewhere")
def test_only_what_is_to_be_sent_whole_is():
    option = socket.IPPROTO_IP, IP_MTU_DISCOVER
    with sockets() as (one, two, address):
        seen = []

        class Looks:
            getsockopt, setsockopt = one._sock.getsockopt, one._sock.setsockopt

            def sendto(self, *_: object) -> None:
                seen.append(self.getsockopt(*option))
                raise OSError(errno.EMSGSIZE, "longer than the interface carries")

        assert one.sends_whole
        one._sock = Looks()
        one.send_whole(bytes(9000), address)
        one.send(bytes(9000), 9000, address)
        assert seen == [DO_NOT_FRAGMENT, MAY_FRAGMENT]
        assert two.read() is None
