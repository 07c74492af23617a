"""A STUN responder: tells a node the address it is seen from (RFC 8489, Binding only).

May import: grouping, limits, throttle. The codec is aioice's.

A UDP source can be forged, so an answer must not be worth forging a question for: it is at most
24 bytes longer than the question (20 bytes at least), and their number per second is bounded.
"""

from __future__ import annotations

import asyncio
from typing import cast

from aioice import stun

from signaling.grouping import limit_key
from signaling.limits import Limits
from signaling.throttle import Bucket, Buckets

_MAX_REQUEST = 548
"""Longest question looked at: what fits any path's smallest datagram (RFC 8489, 6.1)."""
_COOKIE = b"\x21\x12\xa4\x42"


def answer(request: bytes, address: tuple[str, int]) -> bytes | None:
    """The Binding response for a datagram from `address`, or None if it deserves none."""
    if len(request) > _MAX_REQUEST or request[4:8] != _COOKIE:
        return None
    try:
        message = stun.parse_message(request)
    except (ValueError, KeyError):
        return None
    if (message.message_method, message.message_class) != (
        stun.Method.BINDING,
        stun.Class.REQUEST,
    ):
        return None
    response = stun.Message(
        message_method=stun.Method.BINDING,
        message_class=stun.Class.RESPONSE,
        transaction_id=message.transaction_id,
        attributes={"XOR-MAPPED-ADDRESS": address},
    )
    return bytes(response)


class StunResponder(asyncio.DatagramProtocol):
    """asyncio protocol for the UDP socket."""

    def __init__(self, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._all = Bucket(limits.stun_rate, limits.stun_burst, self._loop.time())
        self._each = Buckets(limits.stun_address_rate, limits.stun_address_burst, limits.addresses)
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        address = addr[0].partition("%")[0]
        if self._transport is None or not self._may_answer(address):
            return
        response = answer(data, (address, addr[1]))
        if response is not None:
            self._transport.sendto(response, addr)

    def _may_answer(self, address: str) -> bool:
        now = self._loop.time()
        return self._each.take(limit_key(address), 1, now) and self._all.take(1, now)
