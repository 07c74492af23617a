"""Frames: every message survives being cut and joined; every lie about it is a PeerError."""

from __future__ import annotations

import array
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pnode.errors import PeerError, VersionMismatchError
from p2pnode.limits import LIMITS, Limits
from p2pnode.protocol import frames
from p2pnode.protocol.frames import (
    DATA_HEADER_BYTES,
    MIN_FRAGMENT_BYTES,
    Channel,
    DataHeader,
    Fragmenter,
    Kind,
    Reassembler,
)

RUN = b"run-tag!"
OTHER = b"another!"
NO_RUN = bytes(8)


def reassembler(channel: Channel = Channel.BULK, largest: int = 1 << 20) -> Reassembler:
    made = Reassembler(channel)
    made.set_run(RUN, largest)
    return made


def cut(message: int, data: bytes, run: bytes = RUN, size: int = MIN_FRAGMENT_BYTES) -> list[bytes]:
    return list(Fragmenter(message, [data], run, size))


def frame(index: int, payload: bytes, *, message=0, count=3, total=3000, run=RUN) -> bytes:
    return DataHeader(message, index, count, total, run).pack() + payload


KB = b"x" * 1024


@given(
    parts=st.lists(st.binary(max_size=5000), max_size=6),
    size=st.integers(MIN_FRAGMENT_BYTES, 4096),
)
def test_a_message_in_parts_arrives_whole(parts, size):
    receiver = reassembler()
    fragmenter = Fragmenter(7, parts, RUN, size)
    done = [receiver.receive(f) for f in fragmenter]
    assert done[:-1] == [None] * (len(done) - 1)
    assert done[-1] == (RUN, bytearray(b"".join(parts)))
    assert receiver.held_bytes == 0


@given(
    sizes=st.tuples(st.integers(0, 6000), st.integers(0, 6000)),
    order=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_two_messages_may_alternate(sizes, order):
    receiver = reassembler()
    datas = [bytes([i + 1]) * n for i, n in enumerate(sizes)]
    queues = [cut(i, d) for i, d in enumerate(datas)]
    got = []
    # Ids rise in the order of beginning, so message 0 goes first.
    got.append(receiver.receive(queues[0].pop(0)))
    for pick in [*order, *[False] * 20, *[True] * 20]:
        if queues[pick]:
            got.append(receiver.receive(queues[pick].pop(0)))
    assert sorted(bytes(m) for done in got if done for m in done[1:]) == sorted(datas)


def test_arrays_of_any_type_and_shape_are_taken_as_bytes():
    numbers = array.array("i", range(1000))
    matrix = memoryview(bytes(range(12))).cast("B", (3, 4))
    joined = reassembler()
    done = [joined.receive(f) for f in Fragmenter(0, [numbers, matrix, b""], RUN, 1024)]
    assert done[-1] == (RUN, numbers.tobytes() + bytes(range(12)))


def test_frames_are_no_longer_than_promised():
    for one in cut(0, b"x" * 10_000, size=2048):
        assert len(one) <= 2048 + DATA_HEADER_BYTES


def test_the_first_header_binds_and_each_contradiction_is_named():
    wrong = {
        "smaller total": frame(2, KB, total=2100),
        "larger total": frame(2, KB, total=1_000_000),
        "smaller count": frame(2, KB, count=3 - 1),
        "larger count": frame(2, KB, count=4),
        "other run": frame(2, KB, run=OTHER),
    }
    for name, bad in wrong.items():
        receiver = reassembler()
        receiver.receive(frame(0, KB))
        receiver.receive(frame(1, KB))
        with pytest.raises(PeerError, match="contradicted"):
            receiver.receive(bad)
        assert receiver.held_bytes == 2048, name


@pytest.mark.parametrize("index", [0, 2, 3, 2**32 - 1])
def test_any_other_index_than_the_next_is_refused(index):
    receiver = reassembler()
    receiver.receive(frame(0, KB))
    with pytest.raises(PeerError, match="where 1 of 3 was due"):
        receiver.receive(frame(index, KB))


def test_a_repeated_fragment_is_refused_with_the_same_bytes_and_with_others():
    for payload in (KB, b"y" * 1024):
        receiver = reassembler()
        receiver.receive(frame(0, KB))
        receiver.receive(frame(1, KB))
        with pytest.raises(PeerError, match="where 2 of 3 was due"):
            receiver.receive(frame(1, payload))


def test_a_finished_message_cannot_be_sent_again():
    receiver = reassembler()
    for one in cut(5, b"hello"):
        assert receiver.receive(one) == (RUN, b"hello")
    for message in (5, 4):
        with pytest.raises(PeerError, match="again or out of turn"):
            receiver.receive(frame(0, KB, message=message))


def test_a_message_begins_with_fragment_0():
    with pytest.raises(PeerError, match="instead of 0"):
        reassembler().receive(frame(1, KB))


@pytest.mark.parametrize(
    ("index", "nbytes"),
    [(0, 0), (0, MIN_FRAGMENT_BYTES - 1), (0, 3000), (0, 5000), (2, 951), (2, 953), (2, 0)],
)
def test_fragment_lengths_must_add_up(index, nbytes):
    receiver = reassembler()
    for before in range(index):
        receiver.receive(frame(before, KB))
    with pytest.raises(PeerError, match="were left"):
        receiver.receive(frame(index, b"z" * nbytes))


@pytest.mark.parametrize(("count", "total"), [(0, 3000), (4, 3000), (2**32 - 1, 3000), (2, 0)])
def test_impossible_counts_are_refused(count, total):
    with pytest.raises(PeerError, match="are possible"):
        reassembler().receive(frame(0, KB, count=count, total=total))


def test_a_claimed_length_allocates_nothing():
    receiver = reassembler(largest=LIMITS.bulk_bytes)
    receiver.receive(frame(0, KB, count=1000, total=LIMITS.bulk_bytes))
    assert receiver.held_bytes == 1024


def test_messages_over_the_limit_of_channel_and_run_are_refused():
    def begin(receiver: Reassembler, total: int, run: bytes = RUN) -> None:
        receiver.receive(frame(0, KB, count=2, total=total, run=run))

    begin(reassembler(largest=5000), 5000)
    with pytest.raises(PeerError, match="at most 5,000"):
        begin(reassembler(largest=5000), 5001)
    with pytest.raises(PeerError, match="announced a message"):
        begin(reassembler(), LIMITS.bulk_bytes + 1, OTHER)
    control = Reassembler(Channel.CONTROL)
    control.set_run(RUN, LIMITS.bulk_bytes)  # a run cannot widen a channel
    with pytest.raises(PeerError, match="announced a message"):
        begin(control, LIMITS.control_bytes + 1)


def test_only_so_many_messages_may_be_unfinished():
    receiver = reassembler()
    for message in range(LIMITS.partial_messages):
        receiver.receive(frame(0, KB, message=message))
    with pytest.raises(PeerError, match="while 2 others were unfinished"):
        receiver.receive(frame(0, KB, message=9))


def test_memory_is_bounded_by_the_largest_messages():
    limits = dataclasses.replace(Limits(), bulk_bytes=10 * 1024)
    receiver = Reassembler(Channel.BULK, limits)
    receiver.set_run(RUN, 1 << 30)
    for index in range(9):
        for message in range(limits.partial_messages):
            receiver.receive(frame(index, KB, message=message, count=10, total=10 * 1024))
    assert receiver.held_bytes < limits.partial_messages * limits.bulk_bytes
    receiver.clear()
    assert receiver.held_bytes == 0


def test_messages_of_another_run_are_checked_but_not_kept():
    receiver = reassembler()
    parts = cut(0, b"x" * 3000, OTHER)
    for part in parts:
        assert receiver.receive(part) is None
        assert receiver.held_bytes == 0
    assert receiver.receive(cut(1, b"lobby", NO_RUN)[0]) == (NO_RUN, b"lobby")
    receiver.receive(frame(0, KB, message=2, run=OTHER))
    with pytest.raises(PeerError, match="where 1 of 3 was due"):
        receiver.receive(frame(2, KB, message=2, run=OTHER))


def test_a_run_that_begins_in_the_middle_of_its_message_does_no_harm():
    receiver = Reassembler(Channel.BULK)
    first, *rest = cut(0, b"x" * 3000)
    receiver.receive(first)
    receiver.set_run(RUN, 1 << 20)
    assert [receiver.receive(part) for part in rest] == [None, None]
    assert receiver.receive(cut(1, b"next")[0]) == (RUN, b"next")


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_raise_anything_but_the_peers_errors(raw, with_version):
    if with_version:
        raw = bytes([frames.WIRE_VERSION]) + raw
    receiver = reassembler()
    try:
        kind = frames.frame_kind(raw)
        if kind is Kind.DATA:
            receiver.receive(raw)
        elif kind in (Kind.RELAY, Kind.RELAYED):
            frames.unpack_relay(raw)
        else:
            frames.unpack_value(raw)
    except (PeerError, VersionMismatchError):
        pass


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4), st.integers(0, 3100)),
        max_size=20,
    )
)
def test_hostile_sequences_end_in_peer_errors_and_bounded_memory(steps):
    receiver = reassembler(largest=4000)
    for message, index, count, nbytes in steps:
        try:
            receiver.receive(frame(index, b"h" * nbytes, message=message, count=count))
        except PeerError:
            break
        assert receiver.held_bytes <= LIMITS.partial_messages * 4000


def test_values_and_relay_frames_round_trip():
    for kind in (Kind.PING, Kind.PONG, Kind.ACK):
        packed = frames.pack_value(kind, 2**63)
        assert (frames.frame_kind(packed), frames.unpack_value(packed)) == (kind, 2**63)
        with pytest.raises(PeerError, match=kind.name):
            frames.unpack_value(packed + b"x")
    packed = frames.pack_relay(Kind.RELAY, Channel.BULK, b"p" * 32, b"sealed")
    assert frames.frame_kind(packed) is Kind.RELAY
    assert frames.unpack_relay(packed) == (Channel.BULK, b"p" * 32, b"sealed")
    with pytest.raises(PeerError, match="cannot be read"):
        frames.unpack_relay(packed[:-6])


def test_another_wire_version_is_named():
    packed = bytearray(frames.pack_value(Kind.PING, 1))
    packed[0] = 9
    with pytest.raises(VersionMismatchError, match="wire version 9"):
        frames.frame_kind(bytes(packed))


def test_unknown_kinds_and_stubs_are_refused():
    with pytest.raises(PeerError, match="unknown kind 99"):
        frames.frame_kind(bytes([frames.WIRE_VERSION, 99]) + bytes(10))
    with pytest.raises(PeerError, match="shortest"):
        frames.frame_kind(b"")


def test_misuse_by_our_own_code_is_refused():
    with pytest.raises(ValueError, match="minimum"):
        Fragmenter(0, [b"x"], RUN, MIN_FRAGMENT_BYTES - 1)
    with pytest.raises(ValueError, match="run tag"):
        Fragmenter(0, [b"x"], b"short", 2048)
