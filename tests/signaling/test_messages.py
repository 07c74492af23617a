"""Bounds of the wire messages, and what a signature covers."""

import msgspec
import pytest

from signaling.messages import (
    MAX_MEMBERS,
    MAX_WAITING,
    MESSAGE_BYTES,
    IceServer,
    Loan,
    Publish,
    Refused,
    Register,
    Relay,
    Relayed,
    View,
    Welcome,
    decode_from_node,
    decode_from_server,
    encode,
    signing_text,
)

ID = b"i" * 32


def test_largest_messages_fit_a_frame():
    ids = (ID,) * MAX_MEMBERS
    for message in (
        View("host", ID, 2**53, ids, (ID,) * MAX_WAITING),
        Relayed(ID, bytes(MESSAGE_BYTES - 256)),
        Relay(ID, bytes(MESSAGE_BYTES - 256)),
    ):
        assert len(encode(message)) <= MESSAGE_BYTES


@pytest.mark.parametrize(
    "message",
    [
        View("host", ID[:-1]),
        View("host", ID, -1),
        View("king", ID),
        View("host", ID, 1, (ID,) * (MAX_MEMBERS + 1)),
        View("host", ID, 1, (), (ID,) * (MAX_WAITING + 1)),
        Refused("x" * 33, ""),
        Refused("x", "y" * 513),
        Relayed(ID, bytes(MESSAGE_BYTES)),
        Welcome((IceServer(("x",)),) * 17),
        Welcome((IceServer(("x" * 257,)),)),
        Welcome((IceServer(()),)),
        Welcome((), 65_536),
        Loan((IceServer(("x",)),) * 9, 1),
        Loan((), 0),
        Loan((), 32 * 86_400),
    ],
)
def test_server_messages_out_of_bounds(message):
    with pytest.raises(msgspec.ValidationError):
        decode_from_server(encode(message))


@pytest.mark.parametrize(
    "message",
    [
        Register(1, ID, ID, bytes(63), "any"),
        Register(1, ID + b"x", ID, bytes(64), "any"),
        Register(1, ID, ID, bytes(64), "all"),
        Register(-1, ID, ID, bytes(64), "any"),
        Register(1, ID, ID, bytes(64), "any", bytes(8193)),
        Publish(bytes(8193)),
        Relay(ID[:-1], b""),
        Relay(ID, bytes(MESSAGE_BYTES)),
    ],
)
def test_node_messages_out_of_bounds(message):
    with pytest.raises(msgspec.ValidationError):
        decode_from_node(encode(message))


def test_each_side_only_takes_the_others_messages():
    with pytest.raises(msgspec.ValidationError):
        decode_from_node(encode(Relayed(ID, b"")))
    with pytest.raises(msgspec.ValidationError):
        decode_from_server(encode(Relay(ID, b"")))


def test_later_versions_may_add_fields():
    """So that the version in a challenge can be read by every older node."""
    raw = msgspec.msgpack.encode(
        {"type": "Challenge", "protocol": 7, "nonce": ID, "something": [1, 2, 3]}
    )
    assert decode_from_server(raw).protocol == 7


def test_signed_texts_are_unambiguous():
    texts = {
        signing_text(b"a", b"bc"),
        signing_text(b"ab", b"c"),
        signing_text(b"a", b"b", b"c"),
        signing_text(b"abc"),
        signing_text(b"abc", b""),
    }
    assert len(texts) == 5
