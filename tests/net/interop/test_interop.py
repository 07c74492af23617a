"""Our connections with other WebRTC stacks, in both roles: every message arrives with its hash.

Stock aiortc, Chrome's libwebrtc (native) and headless Chromium. Links at both ends cut the messages
into our 48 KiB frames; the stacks below carry them.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable

import pytest

from p2pnode.net.events import Priority
from tests.net.fakes import until
from tests.net.interop import chromium
from tests.net.interop.conversation import conversation, digest
from tests.net.interop.partner import Partner, StockAiortc

FRAME = 48 * 1024
SIZES = (1, 1200, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME, 700_001)


def stock() -> Callable[..., Partner]:
    return StockAiortc


def native() -> Callable[..., Partner]:
    if importlib.util.find_spec("webrtc") is None:
        pytest.skip("the package wrtc (a native WebRTC stack) is not installed")
    from tests.net.interop.native import LibWebRtc

    return LibWebRtc


def browser() -> Callable[..., Partner]:
    if chromium.PROGRAM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    return chromium.Chromium


both_roles = pytest.mark.parametrize("we_offer", [True, False], ids=["we-offer", "we-answer"])
all_stacks = pytest.mark.parametrize("stack", [stock, native, browser])


def messages(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size) for size in SIZES]


@all_stacks
@both_roles
async def test_messages_arrive_whole_in_order_and_both_ways(stack, we_offer: bool):
    sent = {"ours": messages(1), "theirs": messages(2)}
    async with conversation(stack(), we_offer=we_offer) as (ours, theirs):
        for end, name in ((ours, "ours"), (theirs, "theirs")):
            for message in sent[name]:
                end.send(message, Priority.SHARD)
        for end, name in ((theirs, "ours"), (ours, "theirs")):
            await until(lambda: len(end.messages) == len(SIZES) or ours.ended, 60)  # noqa: B023
            assert end.digests() == [digest(message) for message in sent[name]]
        assert not ours.ended
        assert not theirs.ended


@all_stacks
async def test_control_messages_pass_bulk_ones(stack):
    bulk, control = random.Random(3).randbytes(2_000_000), b"control"
    async with conversation(stack(), we_offer=True) as (ours, theirs):
        ours.send(bulk, Priority.SHARD)
        ours.send(control, Priority.CONTROL)
        await until(lambda: len(theirs.messages) == 2 or ours.ended, 60)
        assert theirs.digests() == [digest(control), digest(bulk)]


@all_stacks
async def test_each_side_sees_the_other_close(stack):
    async with conversation(stack(), we_offer=True) as (ours, theirs):
        await theirs.connection.close()
        await until(lambda: ours.ended, 20)
        assert isinstance(ours.ended[0], ConnectionError)
    async with conversation(stack(), we_offer=False) as (ours, theirs):
        await ours.connection.close()
        await until(lambda: theirs.ended, 20)
