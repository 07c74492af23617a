"""A UDP socket read and written in batches: one system call for many datagrams where Linux can.

UDP_SEGMENT lets the kernel cut one buffer into datagrams (GSO), UDP_GRO joins those that came one
after another; elsewhere each datagram is one call. May import: nothing of ours.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
from typing import Any

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
IP_MTU_DISCOVER = 10
IPV6_MTU_DISCOVER = 23
MAY_FRAGMENT, DO_NOT_FRAGMENT = 0, 2
"""Linux, from linux/udp.h, linux/in.h and linux/in6.h; Python's socket module does not name them
all."""

MAX_SEGMENTS = 60
MAX_BYTES = 65_000
"""Of one call: the kernel takes 64 datagrams and 65,535 bytes with headers."""

BUFFER_BYTES = 4 * 1024 * 1024
"""Asked of the kernel for each direction; it gives what its administrator allows."""

_READ_BYTES = 65_536
_SEGMENT = struct.Struct("=H")
_GRO = struct.Struct("=i")
_CONTROL_BYTES = 64
_REFUSALS = {
    *(errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP),
    errno.EMSGSIZE,  # where older kernels say EINVAL
}
"""Of UDP_SEGMENT: no such option, an interface that makes no checksums or carries less than one of
the datagrams."""

Address = tuple[Any, ...]


class DatagramSocket:
    """Wraps a bound, non-blocking UDP socket; it stays its owner's to close."""

    def __init__(self, sock: socket.socket, *, offload: bool = True) -> None:
        """offload: let the kernel cut and join datagrams, if it can."""
        self._sock = sock
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._cuts = offload and sys.platform == "linux"
        self._joins = self._cuts and self._option(SOL_UDP, UDP_GRO, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._option(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self._ip_option = (
            (socket.IPPROTO_IP, IP_MTU_DISCOVER)
            if sock.family == socket.AF_INET
            else (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER)
        )
        # The system's default forbids routers to fragment and waits for them to complain, which
        # many firewalls keep to themselves: on a path of less than 1,280 bytes nothing would pass.
        self.sends_whole = sys.platform == "linux" and self._option(*self._ip_option, MAY_FRAGMENT)
        """`send_whole` does what it says."""

    def read(self) -> tuple[memoryview, int, Address] | None:
        """(datagrams, length of each but perhaps the last, sender), or None: nothing waits.

        The memory is used again by the next call.
        """
        try:
            if not self._joins:
                length, address = self._sock.recvfrom_into(self._buffer)
                return self._view[:length], max(1, length), address
            length, control, _, address = self._sock.recvmsg_into([self._buffer], _CONTROL_BYTES)
        except OSError:  # nothing waits, or the network told of an earlier send that failed
            return None
        each = length
        for level, kind, data in control:
            if level == SOL_UDP and kind == UDP_GRO:
                each = _GRO.unpack_from(data)[0]
        return self._view[:length], max(1, each), address

    def send(self, data: bytes, each: int, address: Address) -> int:
        """Send datagrams of `each` bytes, the last perhaps shorter. How many bytes have left: less
        than all if the kernel's buffer is full. What the network refuses is dropped, as routers do.
        """
        if self._cuts and len(data) > each:
            control = [(SOL_UDP, UDP_SEGMENT, _SEGMENT.pack(each))]
            try:
                self._sock.sendmsg([data], control, 0, address)
                return len(data)
            except BlockingIOError:
                return 0
            except OSError as error:
                if error.errno not in _REFUSALS:
                    return len(data)
                self._cuts = False
        for at in range(0, len(data), each):
            try:
                self._sock.sendto(data[at : at + each], address)
            except BlockingIOError:
                return at
            except OSError:
                continue
        return len(data)

    def send_whole(self, datagram: bytes, address: Address) -> None:
        """Send one that nobody on the way may fragment, or not at all."""
        if self._option(*self._ip_option, DO_NOT_FRAGMENT):
            with contextlib.suppress(OSError):
                self._sock.sendto(datagram, address)
            self._option(*self._ip_option, MAY_FRAGMENT)

    def _option(self, level: int, option: int, value: int) -> bool:
        with contextlib.suppress(OSError):
            self._sock.setsockopt(level, option, value)
            return True
        return False
