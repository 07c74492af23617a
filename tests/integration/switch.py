"""A network of machines on one: every node in a network namespace of its own, and a switch between
them that loses, delays and withholds packets as a test says.

The switch holds the other end of each namespace's TUN device and forwards IPv4 packets in this
process, so that what a test does to the network is nothing the node's own code could bypass. Needs
root, `ip` and /dev/net/tun.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import socket
import struct
from pathlib import Path

_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PACKET = 65_535


def missing() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if shutil.which("ip") is None:
        return "needs `ip` (iproute2)"
    if os.geteuid() != 0 or not os.access(_TUN, os.W_OK):
        return f"needs root and {_TUN}"
    return ""


class Switch:
    """Use as an asynchronous context manager; it leaves no namespace behind."""

    def __init__(self, seed: int, *, loss: float = 0.0, delay: float = 0.0) -> None:
        """loss: probability for every packet; delay: seconds, one way."""
        self._loss = loss
        self._delay = delay
        self._random = random.Random(seed)
        self._ports: dict[str, int] = {}
        self._where: dict[bytes, str] = {}
        """Which namespace has an address; one that is given up stays its old owner's."""
        self._hosts: dict[str, int] = {}
        self.dark: set[str] = set()
        """Namespaces that are cut off."""
        self.deaf: set[tuple[str, str]] = set()
        """(from, to): what is sent this way vanishes."""
        self.lost = 0
        """Packets lost or withheld so far."""

    async def __aenter__(self) -> "Switch":
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *error: object) -> None:
        for name, port in self._ports.items():
            self._loop.remove_reader(port)
            os.close(port)
            with contextlib.suppress(RuntimeError):
                await _ip("netns", "del", self._space(name))
        self._ports.clear()

    def within(self, name: str) -> tuple[str, ...]:
        """Put before a command to run it at this place."""
        return ("ip", "netns", "exec", self._space(name))

    def address(self, name: str) -> str:
        return f"10.77.0.{self._hosts[name]}"

    async def plug(self, name: str) -> None:
        """A new namespace with an address."""
        space = self._space(name)
        await _ip("netns", "add", space)
        port = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
        self._ports[name] = port
        device = struct.pack("16sH14x", space.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(port, _TUNSETIFF, device)
        await _ip("link", "set", space, "netns", space)
        await _ip("-n", space, "link", "set", "lo", "up")
        await self._number(name)
        await _ip("-n", space, "link", "set", space, "up")
        self._loop.add_reader(port, self._forward, name, port)

    async def move(self, name: str) -> None:
        """Another address instead of the one it had, as after a change of networks."""
        space, old = self._space(name), self.address(name)
        await self._number(name)
        await _ip("-n", space, "addr", "del", f"{old}/24", "dev", space)

    async def _number(self, name: str) -> None:
        # In ascending order the first address would stay the primary one, and go last.
        self._hosts[name] = max(self._hosts.values(), default=0) + 1
        space, address = self._space(name), self.address(name)
        self._where[socket.inet_aton(address)] = name
        await _ip("-n", space, "addr", "add", f"{address}/24", "dev", space)

    def _space(self, name: str) -> str:
        return f"p2p{os.getpid()}{name}"[-15:]

    def _forward(self, name: str, port: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(port, _PACKET)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue
            to = self._where.get(packet[16:20])
            if to is None or to == name:
                continue
            if (
                {name, to} & self.dark
                or (name, to) in self.deaf
                or self._random.random() < self._loss
            ):
                self.lost += 1
            elif self._delay:
                self._loop.call_later(self._delay, self._deliver, to, packet)
            else:
                self._deliver(to, packet)

    def _deliver(self, to: str, packet: bytes) -> None:
        if to in self._ports:
            with contextlib.suppress(OSError):  # a queue that is full, a device that is gone
                os.write(self._ports[to], packet)


async def _ip(*arguments: str) -> None:
    child = await asyncio.create_subprocess_exec("ip", *arguments, stderr=asyncio.subprocess.PIPE)
    _, said = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {said.decode()}")
