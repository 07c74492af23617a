"""Paths: which pair of addresses a connection uses.

May import: nothing of ours.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

RELAY_PATIENCE = 1.0
"""Seconds that direct paths have before one through a TURN server is tried. The first check that
succeeds decides, and the first packets through a home router are often lost: the repetition comes
after half a second."""


def check_direct_first(ice: Any) -> None:
    """Have the aioice.Connection begin its checks of relayed paths later than the others."""
    loop = asyncio.get_running_loop()
    check = ice.check_start
    began: float | None = None

    async def check_in_turn(pair: Any) -> None:
        nonlocal began
        now = loop.time()
        if began is None:
            began = now
        relayed = _is_relayed(pair)
        if relayed and any(not _is_relayed(other) for other in ice._check_list):
            # Said before it is true: aioice would else offer this pair again and again and never
            # come to those after it.
            ice.check_state(pair, type(pair).State.IN_PROGRESS)
            await asyncio.sleep(began + RELAY_PATIENCE - now)
        await check(pair)

    ice.check_start = check_in_turn


def uses_turn(ice: Any) -> bool:
    """Whether the connection goes through a TURN server of either side."""
    return any(_is_relayed(pair) for pair in ice._nominated.values())


def local_address(ice: Any) -> str | None:
    """The address of this machine that the connection sends from; None if it is not known."""
    for pair in ice._nominated.values():
        if pair.local_candidate.type == "host":
            return str(pair.local_candidate.host)
    return None


def is_ours(address: str) -> bool:
    """Whether this machine (still) has the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _is_relayed(pair: Any) -> bool:
    return "relay" in (pair.local_candidate.type, pair.remote_candidate.type)
