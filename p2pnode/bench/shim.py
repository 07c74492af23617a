"""A link between two UDP sockets of this machine, emulated in user space.

A process of its own that reads one JSON object a line: {"path": fields of Path, "seed": int}; then
{"a": ports of one side's connections}, answered with {"a_found_at": ports, "b_found_at": ports};
then {"b": ports of the other side's}, in the same order. Ends with its input.
May import: bench.path, net.fast.datagrams.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import random
import select
import socket
import sys
import time
from typing import Any

from p2pnode.bench.path import Path
from p2pnode.net.fast.datagrams import DatagramSocket

HOST = "127.0.0.1"
LARGEST = 1472
"""Longest datagram the link carries, as Ethernet does."""

HEADERS = 28
"""IP and UDP, which take their part of the rate."""

READS = 64
"""Batches taken from one socket before others have their turn."""

_STDIN = 0

Due = tuple[float, int, "Port", bytes]


@dataclasses.dataclass(eq=False)
class Port:
    """One end of a link: what comes in here leaves at `other`, towards `other.peer`."""

    sock: socket.socket
    datagrams: DatagramSocket
    path: Path
    peer: tuple[str, int] | None = None
    other: Port | None = None


class Shim:
    """All links."""

    def __init__(self, path: dict[str, Any], seed: int) -> None:
        self._paths = (Path(**path), Path(**path))  # shared by all connections, as one line is
        self._chance = random.Random(seed)
        self._ports: dict[int, Port] = {}
        self._towards_b: list[Port] = []
        self._due: list[Due] = []
        self._count = 0

    def open(self, a: list[int]) -> dict[str, list[int]]:
        """Two new ports for each connection of side a."""
        for port in a:
            near_a, near_b = (self._port(path) for path in self._paths)
            near_a.other, near_b.other = near_b, near_a
            near_a.peer = (HOST, port)
            self._towards_b.append(near_b)
        # b finds a at the port that leads to it, and the other way round
        found = [port.sock.getsockname()[1] for port in self._towards_b]
        other = [p.other.sock.getsockname()[1] for p in self._towards_b if p.other]
        return {"a_found_at": found, "b_found_at": other}

    def _port(self, path: Path) -> Port:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((HOST, 0))
        sock.setblocking(False)
        port = self._ports[sock.fileno()] = Port(sock, DatagramSocket(sock), path)
        return port

    def run(self) -> None:
        """Until the input ends."""
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            readable, _, _ = select.select([_STDIN, *self._ports], [], [], wait)
            for ready in readable:
                if ready == _STDIN:
                    if not self._command(sys.stdin.readline()):
                        return
                else:
                    self._take(self._ports[ready])
            self._deliver()

    def _command(self, line: str) -> bool:
        """False: the input has ended."""
        told = json.loads(line or "{}")
        if "a" in told:
            print(json.dumps(self.open(told["a"])), flush=True)
        elif "b" in told:
            for port, number in zip(self._towards_b, told["b"], strict=True):
                port.peer = (HOST, number)
        return bool(line)

    def _take(self, port: Port) -> None:
        assert port.other is not None
        for _ in range(READS):
            got = port.datagrams.read()
            if got is None:
                return
            data, each, _ = got
            now = time.monotonic()
            for at in range(0, len(data), each):
                datagram = bytes(data[at : at + each])
                if len(datagram) > LARGEST:
                    continue
                for when in port.path.arrivals(len(datagram) + HEADERS, now, self._chance):
                    self._count += 1
                    heapq.heappush(self._due, (when, self._count, port.other, datagram))

    def _deliver(self) -> None:
        now = time.monotonic()
        batch: list[bytes] = []
        port: Port | None = None
        while self._due and self._due[0][0] <= now:
            _, _, to, datagram = heapq.heappop(self._due)
            full = len(batch) >= 40 or (batch and len(datagram) > len(batch[0]))
            short = len(batch) > 1 and len(batch[-1]) < len(batch[0])
            if to is not port or full or short:
                _send(port, batch)
                batch = []
            port = to
            batch.append(datagram)
        _send(port, batch)


def _send(port: Port | None, batch: list[bytes]) -> None:
    if port is not None and port.peer is not None and batch:
        port.datagrams.send(b"".join(batch), len(batch[0]), port.peer)


def main() -> None:
    """Run as the process that the module describes."""
    told = json.loads(sys.stdin.readline())
    Shim(told["path"], told["seed"]).run()


if __name__ == "__main__":
    main()
