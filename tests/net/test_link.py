"""Link: acknowledgements, heartbeats, silence, and what a peer that breaks rules meets."""

from __future__ import annotations

import dataclasses

import pytest

from p2pnode.errors import PeerError, VersionMismatchError
from p2pnode.limits import LIMITS
from p2pnode.net.events import NO_RUN, Priority
from p2pnode.net.link import ANSWERS_BUFFERED
from p2pnode.net.outbox import FIRST_FRAGMENT
from p2pnode.protocol.frames import (
    Channel,
    DataHeader,
    Kind,
    frame_kind,
    pack_relay,
    pack_value,
)
from tests.net.fakes import LinkPair

RUN = b"run-tag!"


def test_messages_of_every_size_cross_and_are_acknowledged():
    pair = LinkPair()
    datas = [b"", b"x", b"y" * 200_000, b"z" * 3_000_000]
    for data in datas:
        assert pair.a.link.send([data], Priority.SHARD, NO_RUN, None)
    pair.run()
    assert pair.b.messages == [(NO_RUN, data) for data in datas]
    assert pair.a.link.idle
    assert pair.a.link.stats().queued == pair.a.link.stats().in_flight == 0
    assert pair.b.heard > 3_200_000


def test_a_control_message_overtakes_bulk_beyond_the_in_flight_bound():
    pair = LinkPair()
    pair.a.link.send([b"x" * 3_000_000], Priority.SHARD, NO_RUN, None)
    pair.a.link.send([b"now"], Priority.CONTROL, NO_RUN, None)
    pair.run()
    assert [len(m) for _, m in pair.b.messages] == [3, 3_000_000]


def test_a_peer_with_small_messages_gets_small_frames():
    pair = LinkPair(max_message=16_384)
    pair.a.link.send([b"x" * 100_000], Priority.SHARD, NO_RUN, None)
    pair.run()  # the wire asserts the length of each frame
    assert pair.b.messages == [(NO_RUN, b"x" * 100_000)]


def test_only_the_run_at_hand_is_delivered():
    pair = LinkPair()
    pair.a.link.send([b"early"], Priority.CONTROL, RUN, None)
    pair.run()
    pair.b.link.set_run(RUN, 1_000)
    pair.a.link.send([b"run"], Priority.CONTROL, RUN, None)
    pair.a.link.send([b"lobby"], Priority.CONTROL, NO_RUN, None)
    pair.a.link.send([b"foreign"], Priority.CONTROL, b"other---", None)
    pair.run()
    assert pair.b.messages == [(RUN, b"run"), (NO_RUN, b"lobby")]
    pair.a.link.send([b"x" * 1_001], Priority.SHARD, RUN, None)
    pair.run()
    assert "at most 1,000" in str(pair.b.broken)


def test_the_round_trip_is_measured():
    pair = LinkPair()
    pair.a.link.tick()
    pair.clock.now += 0.2
    pair.run()
    assert pair.a.link.stats().rtt == pytest.approx(0.2, abs=1e-5)


def test_heartbeats_keep_an_idle_link_and_silence_ends_it():
    pair = LinkPair()
    for _ in range(100):
        pair.tick()
    assert pair.a.broken is None
    pair.b.link.close()  # says nothing any more
    seconds = 0.0
    while pair.a.broken is None and seconds < 20:
        pair.tick()
        seconds += 0.25
    assert isinstance(pair.a.broken, ConnectionError)
    # The last frame came up to a heartbeat before.
    assert LIMITS.silence - LIMITS.heartbeat <= seconds <= LIMITS.silence + 0.5
    assert not pair.a.messages


def test_a_slow_transfer_is_a_sign_of_life():
    pair = LinkPair()
    pair.b.link.send([b"x" * 10 * FIRST_FRAGMENT], Priority.SHARD, NO_RUN, None)
    for _ in range(10):  # one fragment each 5 s, and no pong
        pair.clock.now += 5.0
        pair.a.wire.frames.clear()
        pair.a.link.tick()
        channel, frame = next(f for f in pair.b.wire.frames if f[0] is Channel.BULK)
        pair.b.wire.frames.remove((channel, frame))
        pair.a.link.received(channel, frame)
        pair.b.link.received(Channel.CONTROL, pack_value(Kind.ACK, _acked(pair)))
    assert pair.a.broken is None
    assert pair.a.messages


def _acked(pair: LinkPair) -> int:
    waiting = sum(len(f) for c, f in pair.b.wire.frames if c is Channel.BULK)
    return pair.b.link.stats().bytes_up - waiting


def test_our_own_absence_is_not_held_against_the_peer():
    pair = LinkPair()
    pair.tick()
    pair.clock.now += 60.0
    pair.a.link.tick(excuse=60.0)
    assert pair.a.broken is None
    pair.b.link.tick()
    assert isinstance(pair.b.broken, ConnectionError)


def broken_by(frame: bytes, channel: Channel = Channel.CONTROL, **changes: float) -> Exception:
    pair = LinkPair(dataclasses.replace(LIMITS, **changes))
    pair.a.link.received(channel, frame)
    assert pair.a.broken is not None
    pair.a.link.received(channel, frame)  # nothing more happens
    assert not pair.a.messages
    return pair.a.broken


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "shortest"),
        (bytes([1, 77]) + bytes(20), "unknown kind"),
        (DataHeader(0, 1, 2, 3000, NO_RUN).pack() + b"x" * 2000, "instead of 0"),
        (DataHeader(0, 0, 2, 2**31, NO_RUN).pack() + b"x" * 2000, "announced a message"),
        (pack_value(Kind.ACK, 1), "acknowledged 1 bytes"),
        (pack_value(Kind.PONG, 1), "ping that was not sent"),
        (pack_value(Kind.PING, 1) + b"x", "PING"),
        (pack_relay(Kind.RELAY, Channel.BULK, bytes(32), b""), "relay frame"),
    ],
)
def test_a_broken_rule_ends_the_link(frame: bytes, says: str):
    error = broken_by(frame)
    assert isinstance(error, PeerError)
    assert says in str(error)


def test_another_version_ends_the_link_with_its_own_error():
    assert isinstance(broken_by(bytes([2, 1]) + bytes(30)), VersionMismatchError)


def test_a_flood_of_messages_ends_the_link():
    pair = LinkPair(dataclasses.replace(LIMITS, message_burst=50, message_rate=10))
    for message in range(50):
        pair.a.link.received(Channel.CONTROL, DataHeader(message, 0, 1, 0, NO_RUN).pack())
    assert pair.a.broken is None
    pair.clock.now += 1.0
    for message in range(50, 61):
        pair.a.link.received(Channel.CONTROL, DataHeader(message, 0, 1, 0, NO_RUN).pack())
    assert "messages a second" in str(pair.a.broken)


def test_a_flood_of_pings_is_not_answered_one_by_one():
    pair = LinkPair()
    for value in range(1000):
        pair.a.link.received(Channel.CONTROL, pack_value(Kind.PING, value))
    assert len(pair.a.wire.frames) == 1


def test_a_peer_that_does_not_read_gets_no_answers_until_it_does():
    pair = LinkPair()
    pair.b.link.send([b"x" * 50_000], Priority.SHARD, NO_RUN, None)
    pair.a.wire.stuck = ANSWERS_BUFFERED + 1
    pair.run()
    pair.a.link.tick()
    pair.a.link.received(Channel.CONTROL, pack_value(Kind.PING, 1))
    assert not pair.a.wire.frames
    pair.a.wire.stuck = 0
    pair.tick()
    assert pair.b.link.idle
    assert pair.a.broken is None


def test_what_the_transport_finds_ends_the_link():
    pair = LinkPair()
    pair.a.wire.error = PeerError("sends a message without end")
    pair.a.link.tick()
    assert pair.a.broken is pair.a.wire.error


def test_a_cut_connection_ends_the_link_when_it_is_used():
    pair = LinkPair()
    pair.a.wire.dead = True
    pair.a.link.send([b"x"], Priority.CONTROL, NO_RUN, None)
    assert isinstance(pair.a.broken, ConnectionError)


def test_acknowledgements_of_frames_that_came_together_are_one():
    pair = LinkPair()
    pair.a.link.send([b"x" * 90_000], Priority.SHARD, NO_RUN, None)
    while pair.a.wire.frames:
        pair.b.link.received(*pair.a.wire.frames.popleft())
    assert len(pair.later) == 1
    pair.later.popleft()()
    assert [frame_kind(f) for _, f in pair.b.wire.frames] == [Kind.ACK]


def test_relay_frames_are_handed_on_and_acknowledged():
    pair = LinkPair()
    frame = pack_relay(Kind.RELAYED, Channel.BULK, b"p" * 32, b"sealed")
    assert pair.a.link.send_frame(Channel.BULK, frame)
    pair.run()
    assert pair.b.relayed == [(Kind.RELAYED, Channel.BULK, b"p" * 32, b"sealed")]
    assert pair.a.link.idle


def _lose_bulk(pair: LinkPair, seconds: float) -> None:
    """Time passes; every bulk frame from a to b vanishes, control frames pass."""
    for _ in range(round(seconds / 0.25)):
        frames = pair.a.wire.frames
        kept = [frame for frame in frames if frame[0] is Channel.CONTROL]
        frames.clear()
        frames.extend(kept)
        pair.tick()


def test_bulk_that_stands_still_ends_the_link_however_lively_the_heartbeats():
    pair = LinkPair()
    pair.a.link.send([b"x" * 1000], Priority.SHARD, NO_RUN, None)
    _lose_bulk(pair, LIMITS.stall - 1.0)
    assert pair.a.broken is None
    assert pair.a.link.stats().rtt is not None, "the peer answers"
    _lose_bulk(pair, 2.0)
    assert isinstance(pair.a.broken, ConnectionError)
    assert "acknowledged" in str(pair.a.broken)
    assert pair.b.broken is None, "it has nothing to complain of"


def test_a_connection_that_takes_in_what_waits_is_not_stalled():
    """A long frame on a slow line: nothing is acknowledged before its end."""
    pair = LinkPair()
    pair.a.link.send([b"x" * 40_000], Priority.SHARD, NO_RUN, None)
    for second in range(60):
        pair.a.wire.stuck = 60_000 - 1_000 * second
        _lose_bulk(pair, 1.0)
    assert pair.a.broken is None


def test_our_own_absence_is_no_stall():
    pair = LinkPair()
    pair.a.link.send([b"x" * 1000], Priority.SHARD, NO_RUN, None)
    _lose_bulk(pair, LIMITS.stall / 2)
    pair.clock.now += 600.0
    pair.a.link.tick(excuse=600.0)
    assert pair.a.broken is None
