"""The wire form: what is encoded comes back, and nothing but PeerError comes of anything else."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pnode.errors import PeerError
from p2pnode.protocol import messages as m

RUN = b"r" * 16
HASH = b"h" * 32
PEER = b"p" * 32
EVIDENCE = m.SlotEvidence(3, HASH, HASH, 2**63 - 1, 0, (1, 2), -5, 128)
SUMMARY = m.Summary(-1, 2, 3, (4, 5), 6, HASH)
STATUS = m.Status(
    run=RUN,
    boot=1,
    seq=2,
    term=127,
    leader=PEER,
    leading=True,
    applied=9,
    state_hash=HASH,
    committed=8,
    committed_hash=HASH,
    plan=m.PlanKey(127, 3),
    current=m.PlanKey(127, 2),
    links=(PEER,),
    sets=((0, 1), (5,)),
    speed=1.5,
    kept_from=2,
    wants_state=False,
    received=77,
    frozen=m.FrozenState(7, HASH, HASH),
    before=((2,),),
    verified=0,
    checked=8,
    claim=m.Claim(10, 3),
    auditing=1,
    lacking=False,
    leaving=False,
)
PLAN = m.Plan(
    run=RUN,
    key=m.PlanKey(127, 3),
    leader=PEER,
    step=10,
    roster=(PEER,),
    observers=(HASH,),
    work=(m.Work((0, 1), (0,)),),
    owners=(0,),
    freeze=True,
    excluded=(),
)
SHARD = m.Shard(1, 3)
EXAMPLES: list[tuple[m.Message, bytes]] = [
    (STATUS, b""),
    (PLAN, b""),
    (m.Contribution(RUN, 1, HASH, (3,), SHARD), b"\1\0\0\0"),
    (m.Challenge(RUN, 1, HASH, b"n" * 16, (m.Seen(PEER, (3,), HASH, HASH),)), b""),
    (m.Answer(RUN, 1, b"n" * 16, (((3,), -(2**63)),), (m.Seen(PEER, (3,), HASH, HASH),)), b""),
    (m.Pledge(RUN, PEER, 1, HASH, (3,), b"", (EVIDENCE,), (HASH,) * m.PIECES, HASH), b""),
    (m.ShardSum(RUN, 1, HASH, SHARD, SUMMARY), b"\1\0\0\0"),
    (m.Want(RUN, 1, (3,), (SHARD,)), b""),
    (m.Accuse(RUN, PEER, 1, -1, "probe"), b""),
    (m.Confess(RUN, 1, -1, "embed", "Adam, weights"), b""),
    (
        m.Wrong(
            RUN,
            m.Pledge(RUN, PEER, 1, HASH, (3,), b"", (EVIDENCE,), (HASH,) * m.PIECES, HASH),
            3,
            None,
        ),
        b"",
    ),
    (m.BlobWant(RUN, HASH, -1), b""),
    (m.BlobIndex(RUN, HASH, 1), HASH),
    (m.BlobPart(RUN, HASH, 0), b"x"),
]


def whole(message: m.Message, payload: bytes = b"") -> bytes:
    return b"".join(bytes(buffer) for buffer in m.encode(message, payload))


@pytest.mark.parametrize(("message", "payload"), EXAMPLES)
def test_round_trip(message: m.Message, payload: bytes) -> None:
    back, rest = m.decode(whole(message, payload))
    assert back == message
    assert bytes(rest) == payload


def test_the_payload_is_not_copied() -> None:
    payload = bytearray(1000)
    buffers = m.encode(m.BlobPart(RUN, HASH, 0), payload)
    assert buffers[1] is payload


@given(st.binary(max_size=300))
def test_noise_is_a_peer_error_or_a_message(raw: bytes) -> None:
    with contextlib.suppress(PeerError):
        m.decode(raw)


@settings(max_examples=300)
@given(st.sampled_from(EXAMPLES), st.data())
def test_damaged_messages_are_a_peer_error_or_a_message(
    example: tuple[m.Message, bytes], data: st.DataObject
) -> None:
    raw = bytearray(whole(*example))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    with contextlib.suppress(PeerError):
        m.decode(bytes(raw[:cut]))


JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.binary(max_size=40),
        st.text(max_size=5),
    ),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=8,
)


@settings(max_examples=300)
@given(st.sampled_from(EXAMPLES), st.data())
def test_wrong_fields_are_a_peer_error_or_a_message(
    example: tuple[m.Message, bytes], data: st.DataObject
) -> None:
    fields: list[Any] = list(msgspec.msgpack.decode(msgspec.msgpack.encode(example[0])))
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(JUNK)
    header = msgspec.msgpack.encode(fields)
    with contextlib.suppress(PeerError):
        m.decode(len(header).to_bytes(4, "little") + header)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"run": b"short"}, "run tag"),
        ({"leader": b"short"}, "peer id"),
        ({"applied": -1}, "step"),
        ({"applied": 10**9}, "step"),
        ({"speed": -1.0}, "speed"),
        ({"speed": math.nan}, "speed"),
        ({"links": (PEER,) * 65}, "links"),
        ({"sets": ((),)}, "an empty set"),
        ({"sets": ((1024,),)}, "a slot out of range"),
        ({"sets": ((1,),) * 1025}, "too many sets"),
    ],
)
def test_fields_out_of_bounds_are_refused(change: dict[str, object], what: str) -> None:
    status = msgspec.structs.replace(STATUS, **change)
    with pytest.raises(PeerError):
        m.decode(whole(status))


def test_a_header_that_lies_about_its_length_is_refused() -> None:
    raw = whole(STATUS)
    for length in (len(raw), m.HEADER_BYTES + 1, 2**32 - 1):
        with pytest.raises(PeerError, match="does not fit"):
            m.decode(length.to_bytes(4, "little") + raw[4:])


def test_messages_without_payload_must_have_none() -> None:
    with pytest.raises(PeerError, match="should not have"):
        m.decode(whole(STATUS) + b"x")


def test_the_largest_plan_fits_a_control_message() -> None:
    peers = tuple(bytes([i]) * 32 for i in range(64))
    plan = m.Plan(
        run=RUN,
        key=m.PlanKey(2**31 - 1, 2**31 - 1),
        leader=peers[0],
        step=10_000_000,
        roster=peers,
        observers=(),
        work=tuple(m.Work((slot,), tuple(range(64))) for slot in range(1024)),
        owners=tuple(range(64)),
        freeze=True,
        excluded=peers,
    )
    assert len(whole(plan)) < 1024 * 1024
    assert m.decode(whole(plan))[0] == plan
