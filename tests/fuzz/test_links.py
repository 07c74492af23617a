"""Frames of a hostile other end, and of a hostile neighbour that relays, into live links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pnode.errors import PeerError, VersionMismatchError
from p2pnode.limits import KIB
from p2pnode.net import relay
from p2pnode.net.events import NO_RUN, Priority
from p2pnode.net.seal import RANDOM_BYTES
from p2pnode.protocol.frames import Channel, DataHeader, Kind, pack_relay, pack_value
from tests.fuzz.effort import effort
from tests.net.fakes import LinkPair
from tests.net.triangle import A, B, C, Triangle

NUMBER = st.sampled_from([0, 1, 2, 3, 1023, 1024, 1025, 3000, 2**31, 2**32 - 1]) | st.integers(0, 9)
BODY = st.sampled_from([b"", b"x", b"y" * 1023, b"z" * 1024, b"w" * 3000])
DATA = st.builds(
    lambda message, index, count, total, run, body: (
        DataHeader(message, index, count, total, run).pack() + body
    ),
    *(NUMBER, NUMBER, NUMBER, NUMBER),
    st.sampled_from([NO_RUN, b"run-tag!", b"another!"]),
    BODY,
)
VALUES = st.builds(
    pack_value, st.sampled_from([Kind.PING, Kind.PONG, Kind.ACK]), st.sampled_from([0, 1, 2**63])
)
RELAYED = st.builds(
    pack_relay,
    st.sampled_from([Kind.RELAY, Kind.RELAYED]),
    st.sampled_from(list(Channel)),
    st.sampled_from([A, B, C]),
    st.sampled_from([b"\x01" + b"r" * 16, b"\x02" + b"r" * 32, b"\x03" + b"s" * 40, b"?"]),
)
FRAME = DATA | VALUES | RELAYED | st.binary(max_size=64)


@effort(60)
@given(frames=st.lists(st.tuples(st.sampled_from(list(Channel)), FRAME), max_size=30))
def test_any_frames_end_in_an_error_of_the_peers_own(frames: list[tuple[Channel, bytes]]) -> None:
    pair = LinkPair()
    honest = pair.a
    for channel, frame in frames:
        honest.link.received(channel, frame)
        while pair.later:
            pair.later.popleft()()
    assert honest.broken is None or isinstance(honest.broken, PeerError | VersionMismatchError)
    held = sum(part.held_bytes for part in honest.link._reassemblers.values())
    assert held <= sum(len(frame) for _, frame in frames)
    assert len(honest.wire.frames) <= 1 + 2 * len(frames), (
        "it does not answer more than it is asked"
    )


@effort(30)
@given(
    data=st.data(),
    messages=st.lists(st.sampled_from([b"a" * 10, b"b" * 5 * KIB, b"c" * 70 * KIB]), min_size=1),
)
def test_altered_frames_never_become_another_message(
    data: st.DataObject, messages: list[bytes]
) -> None:
    """What arrives whole before the link breaks is what was sent, in order."""
    pair = LinkPair()
    for message in messages:
        pair.b.link.send([message], Priority.SHARD, NO_RUN, None)
        while pair.b.wire.frames:
            channel, frame = pair.b.wire.frames.popleft()
            if data.draw(st.integers(0, 3)) == 0:  # a header that lies, the body as it was
                place = data.draw(st.integers(0, min(len(frame), 32) - 1))
                frame = frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]
            pair.a.link.received(channel, frame)
        pair.run()
    sent = iter(messages)  # one whose run tag was altered is of another run, and left out
    assert all(message in sent for _, message in pair.a.messages), "in order, and unchanged"


BODIES = st.one_of(
    st.sampled_from([relay.OPEN + b"r" * RANDOM_BYTES, relay.ACCEPT + b"r" * 2 * RANDOM_BYTES]),
    st.sampled_from([relay.OPEN, relay.ACCEPT, relay.SEALED, b"", relay.SEALED + bytes(64)]),
    st.binary(max_size=80),
)


@effort(40)
@given(data=st.data())
def test_a_hostile_neighbour_can_lose_frames_and_nothing_else(data: st.DataObject) -> None:
    world = Triangle()
    past: list[bytes] = []

    def tamper(source: bytes, channel: Channel, body: bytes) -> list[bytes]:
        past.append(body)
        match data.draw(st.integers(0, 7)):
            case 0:
                return []
            case 1:
                return [body, body]
            case 2:
                return [data.draw(BODIES), body]
            case 3:
                return [data.draw(st.sampled_from(past))]
            case 4 if body:
                place = data.draw(st.integers(0, len(body) - 1))
                return [body[:place] + bytes([body[place] ^ 255]) + body[place + 1 :]]
        return [body]

    world.tamper = tamper
    sent = {A: [], C: []}
    for number in range(6):
        source = data.draw(st.sampled_from([A, C]))
        message = bytes([number]) * data.draw(st.sampled_from([1, 20 * KIB]))
        if world.send(source, message):
            sent[source].append(message)
        world.pass_on()
        world.clock.now += 1.0
        for end in world.ends.values():
            end.tick(0.0)
        world.pass_on()
    for at, source in ((A, C), (C, A)):
        got = world.messages(at)
        assert len(set(got)) == len(got), "nothing twice"
        assert set(got) <= set(sent[source]), "nothing that was not sent"


@pytest.mark.parametrize("kind", ["open", "accept"])
def test_a_member_with_a_useless_key_does_not_cost_the_neighbour_its_link(kind: str) -> None:
    """The relay key stands in the roster as its owner wrote it. Whoever relays is not to blame."""
    world = Triangle()
    end = world.ends[A]
    end.set_members({B: world.keys[B].public_key().public_bytes_raw(), C: bytes(32)})
    if kind == "open":
        end.received(B, Channel.CONTROL, C, relay.OPEN + b"r" * RANDOM_BYTES)
    else:
        end.send(C, B, [b"hello"], Priority.CONTROL, run=NO_RUN, key=None)
        mine = world.queue[-1][3][1:]
        end.received(B, Channel.CONTROL, C, relay.ACCEPT + mine + b"r" * RANDOM_BYTES)
    assert end.stats(C) is None
    assert not end.send(C, B, [b"again"], Priority.CONTROL, run=NO_RUN, key=None)
