"""Relayed links, without a network: two ends and a neighbour that may lose, forge and replay."""

from __future__ import annotations

import dataclasses
import random

import pytest

from p2pnode.errors import PeerError
from p2pnode.limits import LIMITS
from p2pnode.net import relay
from p2pnode.net.events import NO_RUN, Heard, Priority
from p2pnode.net.seal import SEAL_BYTES
from p2pnode.protocol.frames import (
    RELAY_HEADER_BYTES,
    Channel,
    DataHeader,
    Kind,
)
from tests.net.triangle import A, B, C, Triangle


def test_messages_cross_in_both_directions_and_the_neighbour_reads_nothing():
    net = Triangle()
    secret = b"gradient " * 30_000
    assert net.send(A, secret)
    net.pass_on()
    net.send(C, b"answer", Priority.CONTROL)
    net.pass_on()
    assert net.messages(C) == [secret]
    assert net.messages(A) == [b"answer"]
    assert all(b"gradient" not in body and b"answer" not in body for _, _, body in net.log)
    assert any(isinstance(e, Heard) and e.peer == A for e in net.events[C])
    stats = net.ends[A].stats(C)
    assert stats.relayed
    assert stats.bytes_up > len(secret)
    assert net.ends[A].idle


def test_frames_fit_two_hops_of_16_kib():
    net = Triangle()
    net.send(A, b"x" * 300_000)
    net.pass_on()
    assert max(len(body) for _, _, body in net.log) + RELAY_HEADER_BYTES <= 16 * 1024
    assert relay.FRAME_BYTES + SEAL_BYTES + RELAY_HEADER_BYTES < 16 * 1024


def test_both_may_begin_at_once():
    net = Triangle()
    net.send(A, b"from A")
    net.send(C, b"from C")
    for _ in range(5):
        net.pass_on()
        net.tick()
    assert net.messages(C) == [b"from A"]
    assert net.messages(A) == [b"from C"]


def test_a_lost_opening_is_repeated_and_given_up_in_the_end():
    net = Triangle()
    net.tamper = lambda source, channel, body: []
    net.send(A, b"patience")
    net.pass_on()
    net.tick(1.0)
    net.tamper = lambda source, channel, body: [body]
    net.tick(1.0)
    assert net.messages(C) == [b"patience"]

    lost = Triangle()
    lost.tamper = lambda source, channel, body: []
    for _ in range(relay.WAITING_MESSAGES):
        assert lost.send(A, b"x")
    assert not lost.send(A, b"one too many")
    lost.tick(LIMITS.silence + 1)
    lost.tick()
    assert lost.ends[A].idle


def test_forged_damaged_and_replayed_frames_do_nothing():
    net = Triangle()
    net.send(A, b"first")
    net.pass_on()
    old = [(s, c, b) for s, c, b in net.log if b[:1] == relay.SEALED]

    def tamper(source: bytes, channel: Channel, body: bytes) -> list[bytes]:
        broken = body[:-1] + bytes([body[-1] ^ 1])
        replays = [b for s, c, b in old if s == source and c == channel]
        return [broken, *replays, body, body] if body[:1] == relay.SEALED else [body]

    net.tamper = tamper
    net.send(A, b"second")
    net.send(C, b"third")
    net.pass_on()
    assert net.messages(C) == [b"first", b"second"]
    assert net.messages(A) == [b"third"]


def test_junk_from_the_neighbour_is_ignored():
    net = Triangle()
    net.send(A, b"hello")
    net.pass_on()
    rng = random.Random(2)
    for _ in range(300):
        body = bytes([rng.randrange(5)]) + rng.randbytes(rng.choice([0, 16, 32, 40]))
        if body[:1] != relay.OPEN:
            net.ends[C].received(B, rng.choice(list(Channel)), A, body)
    net.ends[C].received(B, Channel.CONTROL, b"Z" * 32, relay.OPEN + bytes(16))
    net.send(A, b"still here")
    net.pass_on()
    assert net.messages(C) == [b"hello", b"still here"]


def test_after_lost_frames_a_new_session_begins_by_itself():
    net = Triangle()
    net.send(A, b"one")
    net.pass_on()
    dropped = []

    def lossy(source: bytes, channel: Channel, body: bytes) -> list[bytes]:
        if channel is Channel.BULK and len(dropped) < 1:
            dropped.append(body)
            return []
        return [body]

    net.tamper = lossy
    net.send(A, b"x" * 100_000)
    net.pass_on()
    for _ in range(20):
        net.tick()
    net.send(A, b"two")
    net.pass_on()
    assert dropped
    assert net.messages(C) == [b"one", b"two"]


def test_a_restarted_end_is_met_again():
    net = Triangle()
    net.send(A, b"before")
    net.pass_on()
    net.ends[C].drop(A)  # as a process that was started anew
    net.send(A, b"lost")
    net.pass_on()
    for _ in range(8):
        net.tick()
    net.send(A, b"after")
    net.pass_on()
    assert net.messages(C)[0] == b"before"
    assert net.messages(C)[-1] == b"after"


def test_silence_ends_a_relayed_link():
    net = Triangle()
    net.send(A, b"x")
    net.pass_on()
    for _ in range(80):
        net.tick()
    assert net.ends[A].stats(C) is not None
    net.tamper = lambda source, channel, body: []
    for _ in range(40):
        net.tick()
    assert net.ends[A].stats(C) is None
    assert net.ends[C].stats(A) is None


def test_a_lost_neighbour_and_a_removed_member_end_it_at_once():
    net = Triangle()
    net.send(A, b"x")
    net.pass_on()
    net.ends[A].neighbour_lost(B)
    assert net.ends[A].stats(C) is None
    net.ends[C].set_members({})
    assert net.ends[C].stats(A) is None
    net.send(A, b"y")
    net.pass_on()
    assert net.messages(C) == [b"x"]


def test_a_peer_that_breaks_rules_over_a_relay_is_refused_for_a_while():
    net = Triangle()
    net.send(A, b"x")
    net.pass_on()
    path = net.ends[A]._paths[C]
    path.link._transport.send(Channel.BULK, DataHeader(7, 5, 9, 9000, NO_RUN).pack() + b"x" * 2000)
    net.pass_on()
    assert net.ends[C].stats(A) is None
    assert not net.send(C, b"no")
    net.send(A, b"again")
    net.pass_on()
    net.tick()
    assert net.messages(C) == [b"x"]
    net.clock.now += LIMITS.reconnect + 1
    net.tick()
    assert net.send(C, b"yes")
    for _ in range(8):
        net.tick()
    assert net.messages(A) == [b"yes"]


def test_relay_frames_do_not_nest():
    with pytest.raises(PeerError, match="one hop"):
        relay._refuse_nested(Kind.RELAY, Channel.BULK, A, b"x")


def test_openings_cannot_be_forced_faster_than_their_interval():
    net = Triangle()
    for i in range(100):
        net.ends[C].received(B, Channel.CONTROL, A, relay.OPEN + bytes([i]) * 16)
    assert len(net.queue) == 1


def test_in_flight_bytes_fit_the_neighbours_queue():
    net = Triangle(dataclasses.replace(LIMITS, in_flight_seconds=1e6))
    net.send(A, b"x" * 5_000_000)
    worst = 0

    def watch(source: bytes, channel: Channel, body: bytes) -> list[bytes]:
        nonlocal worst
        worst = max(worst, sum(len(b) for s, _, _, b in net.queue if s == A))
        return [body]

    net.tamper = watch
    for _ in range(400):
        net.clock.now += 0.01
        net.pass_on()
    assert net.messages(C) == [b"x" * 5_000_000]
    assert worst <= LIMITS.relay_in_flight_bytes * 1.1
