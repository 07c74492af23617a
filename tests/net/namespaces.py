"""Small networks of Linux network namespaces: a hub, and leaves that reach the hub only.

    async with star(2) as net:
        net.hub, net.leaves          # the leaves reach HUB, and each other if net.forward(True)

Needs root and iproute2. Everything stays inside the machine: no namespace has a way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator

import pytest

HUB = "10.77.255.1"
"""Address of the hub, reached by every leaf."""

NOWHERE = "10.77.254.254"
"""Nobody has this address: what is sent there vanishes without an answer."""

_counter = itertools.count()


def _available() -> bool:
    if shutil.which("ip") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return False
    name = f"p2p-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


needs_namespaces = pytest.mark.skipif(
    not _available(), reason="network namespaces need Linux, root and iproute2"
)


class Namespace:
    """One namespace; `lo` is up."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        """Its address in the star; loopback if it has none."""

    @property
    def within(self) -> tuple[str, ...]:
        """Prefix of a command that is to run here."""
        return ("ip", "netns", "exec", self.name)

    async def ip(self, *arguments: str) -> None:
        await _run("ip", "-n", self.name, *arguments)

    async def set(self, setting: str, value: str) -> None:
        """A kernel setting of this namespace, as net.ipv4.ip_forward."""
        await _run(
            *self.within, "sh", "-c", f"echo {value} > /proc/sys/{setting.replace('.', '/')}"
        )

    async def carries(self, device: str) -> None:
        """Wait until a device runs, a moment after it was set up: until then a node that starts
        here rightly leaves its address out."""
        for _ in range(500):
            if "state UP" in await _run("ip", "-n", self.name, "link", "show", device):
                return
            await asyncio.sleep(0.01)
        raise RuntimeError(f"{device} of {self.name} does not come up")


_SILENT = """
table ip silent {
  chain out {
    type filter hook output priority filter;
    ip protocol icmp drop
  }
}
"""
"""A firewall that drops what a router has to say to senders."""


class Star:
    """A hub and its leaves."""

    def __init__(self, hub: Namespace, leaves: list[Namespace]) -> None:
        self.hub = hub
        self.leaves = leaves

    async def forward(self, on: bool) -> None:
        """Let the leaves reach each other through the hub, or not."""
        await self.hub.set("net.ipv4.ip_forward", str(int(on)))

    async def narrow(self, index: int, mtu: int) -> None:
        """From now on nothing longer passes between the hub and a leaf unfragmented, and the hub
        keeps that to itself."""
        await self.hub.ip("link", "set", f"leaf{index}", "mtu", str(mtu))
        await self.leaves[index].ip("link", "set", "up0", "mtu", str(mtu))
        await _run(*self.hub.within, "nft", _SILENT)

    async def readdress(self, index: int, address: str) -> None:
        """Give a leaf another address in its network, as when a machine changes its Wi-Fi."""
        leaf = self.leaves[index]
        await leaf.ip("addr", "del", f"{leaf.address}/24", "dev", "up0")
        await leaf.ip("addr", "add", f"{address}/24", "dev", "up0")
        await leaf.ip("route", "replace", "default", "via", f"10.77.{index}.1")
        leaf.address = address


@contextlib.asynccontextmanager
async def alone() -> AsyncIterator[Namespace]:
    """A namespace that has loopback and nothing else."""
    name = f"p2p-{os.getpid()}-{next(_counter)}"
    await _run("ip", "netns", "add", name)
    try:
        namespace = Namespace(name, "127.0.0.1")
        await namespace.ip("link", "set", "lo", "up")
        yield namespace
    finally:
        await _run("ip", "netns", "del", name)


@contextlib.asynccontextmanager
async def star(leaves: int) -> AsyncIterator[Star]:
    """A hub at HUB, and leaf i at 10.77.i.2."""
    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(alone())
        hub.address = HUB
        await hub.ip("addr", "add", f"{HUB}/32", "dev", "lo")
        net = Star(hub, [])
        await net.forward(False)
        for i in range(leaves):
            leaf = await stack.enter_async_context(alone())
            leaf.address = f"10.77.{i}.2"
            await _run(
                *("ip", "link", "add", f"leaf{i}", "netns", hub.name, "type", "veth"),
                *("peer", "name", "up0", "netns", leaf.name),
            )
            await hub.ip("addr", "add", f"10.77.{i}.1/24", "dev", f"leaf{i}")
            await hub.ip("link", "set", f"leaf{i}", "up")
            await leaf.ip("addr", "add", f"{leaf.address}/24", "dev", "up0")
            await leaf.ip("link", "set", "up0", "up")
            await leaf.ip("route", "add", "default", "via", f"10.77.{i}.1")
            await leaf.carries("up0")
            net.leaves.append(leaf)
        yield net


_ROUTER = """
table ip home {{
  chain out {{
    type nat hook postrouting priority srcnat;
    oifname "up0" masquerade {kind}
  }}
  chain in {{
    type filter hook input priority filter;
    iifname "up0" ct state new drop
  }}
}}
"""
"""A home router. Linux keeps the port of a sender if it can, as most routers do; `fully-random`
takes another one for each destination (a symmetric NAT), so that no peer can learn it from STUN.
Strangers are dropped at the door: an answer to them would take the port."""

needs_nat = pytest.mark.skipif(
    shutil.which("nft") is None, reason="NAT between namespaces needs nftables"
)


@contextlib.asynccontextmanager
async def home(router: Namespace, *, symmetric: bool) -> AsyncIterator[Namespace]:
    """A machine at 192.168.1.2 behind a leaf, which becomes its router."""
    rules = _ROUTER.format(kind="fully-random" if symmetric else "")
    async with alone() as machine:
        machine.address = "192.168.1.2"
        await _run(
            *("ip", "link", "add", "home0", "netns", router.name, "type", "veth"),
            *("peer", "name", "eth0", "netns", machine.name),
        )
        await router.ip("addr", "add", "192.168.1.1/24", "dev", "home0")
        await router.ip("link", "set", "home0", "up")
        await router.set("net.ipv4.ip_forward", "1")
        await _run(*router.within, "nft", rules)
        await machine.ip("addr", "add", "192.168.1.2/24", "dev", "eth0")
        await machine.ip("link", "set", "eth0", "up")
        await machine.ip("route", "add", "default", "via", "192.168.1.1")
        await machine.carries("eth0")
        yield machine


async def _run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {output.decode(errors='replace')}")
    return output.decode(errors="replace")
