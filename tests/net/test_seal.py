"""Sealed sessions: only the two ends can read or write, and nothing works twice."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from p2pnode.errors import PeerError
from p2pnode.net.seal import FramesLostError, SealedSession
from p2pnode.protocol.frames import Channel

A, C = b"A" * 32, b"C" * 32
KEYS = {A: X25519PrivateKey.generate(), C: X25519PrivateKey.generate()}


def public(peer: bytes) -> bytes:
    return KEYS[peer].public_key().public_bytes_raw()


def sessions(random_a=b"a" * 16, random_c=b"c" * 16) -> tuple[SealedSession, SealedSession]:
    opener, accepter = (A, random_a), (C, random_c)
    return (
        SealedSession(KEYS[A], public(C), opener, accepter, opened_here=True),
        SealedSession(KEYS[C], public(A), opener, accepter, opened_here=False),
    )


def test_frames_cross_in_both_directions_and_on_both_channels():
    a, c = sessions()
    for channel in Channel:
        for frame in (b"one", b"", b"x" * 15_000):
            assert c.unseal(channel, a.seal(channel, frame)) == frame
            assert a.unseal(channel, c.seal(channel, frame)) == frame


def test_every_changed_bit_is_noticed():
    a, c = sessions()
    sealed = a.seal(Channel.BULK, b"frame")
    for position in range(len(sealed)):
        broken = bytearray(sealed)
        broken[position] ^= 1
        assert c.unseal(Channel.BULK, bytes(broken)) is None
    assert c.unseal(Channel.BULK, sealed[:-1]) is None
    assert c.unseal(Channel.BULK, b"") is None
    assert c.unseal(Channel.BULK, sealed) == b"frame"


def test_replays_reflections_and_moves_between_channels_are_refused():
    a, c = sessions()
    first, second = a.seal(Channel.BULK, b"1"), a.seal(Channel.BULK, b"2")
    assert a.unseal(Channel.BULK, first) is None
    assert c.unseal(Channel.CONTROL, first) is None
    assert c.unseal(Channel.BULK, first) == b"1"
    assert c.unseal(Channel.BULK, first) is None
    assert c.unseal(Channel.BULK, second) == b"2"
    assert c.unseal(Channel.BULK, first) is None


def test_a_missing_frame_is_told_from_a_forged_one():
    a, c = sessions()
    a.seal(Channel.BULK, b"lost")
    sealed = a.seal(Channel.BULK, b"next")
    assert c.unseal(Channel.BULK, sealed[:-1] + bytes([sealed[-1] ^ 1])) is None
    with pytest.raises(FramesLostError, match="1 relayed frames"):
        c.unseal(Channel.BULK, sealed)


def test_another_session_or_another_key_opens_nothing():
    a, _ = sessions()
    sealed = a.seal(Channel.BULK, b"frame")
    assert sessions(random_c=b"d" * 16)[1].unseal(Channel.BULK, sealed) is None
    relay = X25519PrivateKey.generate()
    for theirs in (public(A), public(C)):
        for opened in (True, False):
            spy = SealedSession(relay, theirs, (A, b"a" * 16), (C, b"c" * 16), opened_here=opened)
            assert spy.unseal(Channel.BULK, sealed) is None


@pytest.mark.parametrize("key", [b"", b"short", bytes(32), b"x" * 33])
def test_an_unusable_key_is_a_peers_fault(key: bytes):
    with pytest.raises(PeerError, match="relay key"):
        SealedSession(KEYS[A], key, (A, b"a" * 16), (C, b"c" * 16), opened_here=True)
