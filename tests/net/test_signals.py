"""Offers, answers, ends: round trip, and nothing but PeerError on junk."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pnode.errors import PeerError
from p2pnode.net.signals import Answer, Gone, Offer, decode_signal, encode_signal


@pytest.mark.parametrize(
    "signal", [Offer(b"l" * 16, "v=0\r\n"), Answer(b"l" * 16, "v=0\r\n"), Gone(b"l" * 16)]
)
def test_round_trip(signal):
    assert decode_signal(encode_signal(signal)) == signal


@pytest.mark.parametrize(
    "signal", [Offer(b"short", "v=0"), Offer(b"l" * 17, "v=0"), Answer(b"l" * 16, "x" * 16_385)]
)
def test_sizes_are_bounded(signal):
    with pytest.raises(PeerError, match="cannot be read"):
        decode_signal(encode_signal(signal))


@given(st.binary(max_size=100))
def test_junk_is_a_peers_fault(raw):
    with contextlib.suppress(PeerError):
        decode_signal(raw)
