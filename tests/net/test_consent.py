"""Consent to send: slow answers count, no answers end the connection."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aioice import stun
from aioice.ice import StunProtocol

from p2pnode.net import consent
from p2pnode.net.consent import keep_consent
from tests.net.fakes import until
from tests.net.sides import connect, sides

RTO = 0.05
"""The first wait for an answer; aioice gives an answer this long, and 0.5 s in earnest."""


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(stun, "RETRY_RTO", RTO)


@contextlib.contextmanager
def answers(monkeypatch, delay: float | None):
    """Binding responses leave `delay` seconds late, or never. Yields what was answered."""
    loop, given, send = asyncio.get_running_loop(), [], StunProtocol.send_stun

    def later(self, message, addr):
        if message.message_class is not stun.Class.RESPONSE:
            send(self, message, addr)
            return
        given.append(message)
        if delay is not None:
            loop.call_later(delay, send, self, message, addr)

    with monkeypatch.context() as patch:
        patch.setattr(StunProtocol, "send_stun", later)
        yield given


async def test_answers_that_take_long_keep_the_connection(monkeypatch):
    async with sides() as (a, b):
        await connect(a, b)
        with answers(monkeypatch, RTO * 1.5) as given:
            keeping = asyncio.create_task(keep_consent(a.transport._ice, interval=0.001))
            await until(lambda: len(given) >= 8 * consent.FAILURES)
            assert not keeping.done()
            keeping.cancel()
        assert not a.ended


async def test_the_same_answers_would_be_too_late_without_repetitions(monkeypatch):
    """The guard of the test above: what aioice does by itself."""
    monkeypatch.setattr(consent, "RETRANSMISSIONS", 0)
    async with sides() as (a, b):
        await connect(a, b)
        with answers(monkeypatch, RTO * 1.5):
            async with asyncio.timeout(20):
                await keep_consent(a.transport._ice, interval=0.001)
        await until(lambda: a.ended)


async def test_without_answers_the_connection_ends(monkeypatch):
    async with sides() as (a, b):
        await connect(a, b)
        with answers(monkeypatch, None) as given:
            async with asyncio.timeout(20):
                await keep_consent(a.transport._ice, interval=0.001)
            assert len(given) == consent.FAILURES * (1 + consent.RETRANSMISSIONS)
        await until(lambda: a.ended)
        assert isinstance(a.ended[0], ConnectionError)


async def test_every_connection_keeps_consent_this_way(monkeypatch):
    kept = []

    async def note(ice):
        kept.append(ice)

    monkeypatch.setattr("p2pnode.net.ice.keep_consent", note)
    async with sides() as (a, b):
        await connect(a, b)
        await until(lambda: len(kept) == 2)
        assert {id(ice) for ice in kept} == {id(a.transport._ice), id(b.transport._ice)}
