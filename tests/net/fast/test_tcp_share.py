"""Beside a real TCP flow on one bottleneck: two network namespaces, joined by two TUN devices with
the emulated path between them. Takes a minute or two: `pytest -m campaign -s`, as root."""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest

from p2pnode.bench.path import Path

RATE = 2.5e6  # 20 Mbit/s
SECONDS = 20.0
SPACES = ("wire-a", "wire-b")
ADDRESSES = ("10.91.7.1", "10.91.7.2")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000

PEER = """
import sys
from p2pnode.bench import peer, stacks
from p2pnode.net.ice import IcePolicy
stacks.POLICY = IcePolicy()
peer.main()
"""
TCP = """
import socket, sys, time
host, seconds = sys.argv[2], float(sys.argv[3])
if sys.argv[1] == "receive":
    server = socket.create_server((host, 5555))
    print("ready", flush=True)
    taken, nbytes = server.accept()[0], 0
    while data := taken.recv(1 << 16):
        nbytes += len(data)
    print(nbytes, flush=True)
else:
    to = socket.socket()
    to.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sys.argv[4].encode())
    to.connect((host, 5555))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        to.send(bytes(16384))
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Line(threading.Thread):
    """Carries packets between two TUN devices."""

    def __init__(self, devices: list[int], queue: float) -> None:
        super().__init__(daemon=True)
        self.devices = devices
        self.paths = [Path(rate=RATE, delay=0.025, queue=queue) for _ in range(2)]
        self.over = False

    def run(self) -> None:
        due: list[tuple[float, int, int, bytes]] = []
        count, chance = 0, random.Random(1)
        while not self.over:
            wait = max(0.0, due[0][0] - time.monotonic()) if due else 0.2
            for device in select.select(self.devices, [], [], wait)[0]:
                side = self.devices.index(device)
                packet = os.read(device, 2048)
                now = time.monotonic()
                for at in self.paths[side].arrivals(len(packet), now, chance):
                    count += 1
                    heapq.heappush(due, (at, count, self.devices[1 - side], packet))
            while due and due[0][0] <= time.monotonic():
                os.write(due[0][2], heapq.heappop(due)[3])


@contextlib.contextmanager
def line(queue: float) -> Iterator[None]:
    devices = []
    try:
        for space, address in zip(SPACES, ADDRESSES, strict=True):
            ip("netns", "add", space)
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            devices.append(device)
            request = struct.pack("16sH14x", space.encode(), IFF_TUN | IFF_NO_PI)
            fcntl.ioctl(device, TUNSETIFF, request)
            ip("link", "set", space, "netns", space)
            ip("-n", space, "addr", "add", f"{address}/30", "dev", space)
            ip("-n", space, "link", "set", space, "up")
        carrier = Line(devices, queue)
        carrier.start()
        yield
        carrier.over = True
        carrier.join()
    finally:
        for device in devices:
            os.close(device)
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def start(space: str, code: str, *arguments: str) -> subprocess.Popen:
    command = ["ip", "netns", "exec", space, sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen) -> dict:
    return json.loads(process.stdout.readline())


def pass_on(source: subprocess.Popen, target: subprocess.Popen) -> None:
    target.stdin.write(source.stdout.readline())
    target.stdin.flush()


@pytest.mark.campaign
@pytest.mark.parametrize("queue", [0.1, 0.05, 0.02])
@pytest.mark.parametrize("algorithm", ["cubic", "reno"])
def test_a_tcp_flow_keeps_a_share(queue: float, algorithm: str):
    if os.geteuid() or not FilePath("/dev/net/tun").exists():
        pytest.skip("namespaces and TUN devices need root")
    with line(queue):
        setting = json.dumps({"kind": "fast", "connections": 1, "seconds": SECONDS, "seed": 1})
        sender = start(SPACES[0], PEER, "send", setting)
        receiver = start(SPACES[1], PEER, "receive", setting)
        sink = start(SPACES[1], TCP, "receive", ADDRESSES[1], "0")
        assert sink.stdout.readline() == "ready\n"
        pass_on(sender, receiver)
        source = start(SPACES[0], TCP, "send", ADDRESSES[1], str(SECONDS + 4), algorithm)
        pass_on(receiver, sender)
        ours = told(sender)
        theirs = int(sink.stdout.readline()) / (SECONDS + 4)
        source.wait()
        for process in (receiver, sender):
            process.kill()
    share = theirs / (theirs + ours["rate"])
    print(f"\n{algorithm}, queue {queue * 1e3:.0f} ms: TCP has {share:.0%} of both")
    assert ours["intact"]
    assert share > 0.15
